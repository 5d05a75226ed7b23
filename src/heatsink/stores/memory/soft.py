"""Soft decisions inside one process: the reference that Redis is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from heatsink.registry.decision import Decision
from heatsink.registry.soft import SoftDecision


class MemorySoft:
    def __init__(self, log: list[SoftDecision]) -> None:
        self._log = log
        self._next = 0

    async def publish(self, decisions: Sequence[Decision], term: int) -> None:
        self._log.extend(SoftDecision(term, decision) for decision in decisions)

    async def read(self) -> list[SoftDecision]:
        if self._next > len(self._log):
            self._next = 0
        read = self._log[self._next :]
        self._next += len(read)
        return read
