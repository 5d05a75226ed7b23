"""Soft decisions: targets that cost time when they are lost, never data (worker counts, modes).

They need no transaction with the registry, only an order: of two decisions about one thing the one
of the later term holds, and within a term the later one. So a deposed leader changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from .decision import Decision


class SoftDecision(msgspec.Struct, frozen=True):
    term: int
    decision: Decision


class SoftStore(Protocol):
    """A log that may forget old entries, or all: leaders say everything again now and then."""

    async def publish(self, decisions: Sequence[Decision], term: int) -> None: ...

    async def read(self) -> list[SoftDecision]:
        """All that came since this reader last asked, in order."""


class Targets:
    """What soft decisions add up to. Terms only grow: what a lower one says is refused."""

    def __init__(self) -> None:
        self.term = 0
        self._targets: dict[tuple[str, str], Decision] = {}

    def apply(self, news: Iterable[SoftDecision]) -> None:
        for soft in news:
            if soft.term >= self.term:
                self.term = soft.term
                self._take(soft.decision)

    def _take(self, decision: Decision) -> None:
        what = (decision.subject, decision.setting)
        if decision.value is None:
            self._targets.pop(what, None)
        else:
            self._targets[what] = decision

    def forget(self, subject: str, setting: str) -> None:
        """Drop a target that nobody repeats any more, so that memory stays bounded."""
        self._targets.pop((subject, setting), None)

    def get(self, subject: str, setting: str) -> Decision | None:
        return self._targets.get((subject, setting))
