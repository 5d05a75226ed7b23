"""Shares of counters in dicts: the reference that other stores are compared with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from heatsink.errors import TokenExpired
from heatsink.spread.store import Running, Total, check_running, check_share


@dataclass
class _Token:
    time_ms: int
    amount: int


@dataclass
class _Writer:
    time_ms: int
    totals: Running = field(default_factory=Running)
    folded: bool = False


@dataclass
class _Share:
    value: int = 0
    sealed_ms: int = 0
    folded_ms: int = 0
    tokens: dict[bytes, _Token] = field(default_factory=dict)
    writers: dict[bytes, _Writer] = field(default_factory=dict)

    def check_open(self, time_ms: int) -> None:
        if time_ms < self.sealed_ms:
            raise TokenExpired("the time of this token is sealed: use a fresh one")

    def seal(self, before_ms: int) -> None:
        self.sealed_ms = max(self.sealed_ms, before_ms)
        self.tokens = {t: r for t, r in self.tokens.items() if r.time_ms >= self.sealed_ms}
        self.writers = {w: r for w, r in self.writers.items() if not r.folded}
        for writer in self.writers.values():
            if writer.time_ms < self.sealed_ms:
                self.value += writer.totals.net
                writer.folded = True


class MemoryCounters:
    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}

    def _share(self, partition: str) -> _Share:
        return self._shares.setdefault(partition, _Share())

    async def add(self, partition: str, token: bytes, time_ms: int, amount: int) -> int | None:
        share = self._share(partition)
        before = share.tokens.get(token)
        if before is not None:
            return before.amount
        share.check_open(time_ms)
        check_share(share.value, amount)
        share.tokens[token] = _Token(time_ms, amount)
        share.value += amount
        return None

    async def raise_to(
        self, partition: str, writer: bytes, time_ms: int, to: Running
    ) -> Running | None:
        check_running(to)
        share = self._share(partition)
        known = share.writers.get(writer)
        if known is None:
            share.check_open(time_ms)
            known = share.writers[writer] = _Writer(time_ms)
        if known.folded:
            return known.totals
        raised = max(known.totals.raised, to.raised)
        lowered = max(known.totals.lowered, to.lowered)
        known.totals = Running(raised, lowered)
        return None

    async def totals(self, partitions: Sequence[str]) -> list[Total]:
        return [_total(self._shares.get(partition, _Share())) for partition in partitions]

    async def fold(self, sources: Sequence[str], target: str, before_ms: int) -> None:
        into = self._share(target)
        for source in sources:
            share = self._share(source)
            share.seal(before_ms)
            if source != target:
                into.value, share.value = into.value + share.value, 0
        into.folded_ms = max(into.folded_ms, before_ms)

    async def shares(self) -> AsyncIterator[str]:
        for partition, share in list(self._shares.items()):
            if share.value or share.writers:
                yield partition

    def erase(self, partition: str) -> None:
        self._shares.pop(partition, None)


def _total(share: _Share) -> Total:
    writers = sum(writer.totals.net for writer in share.writers.values() if not writer.folded)
    return Total(share.value, writers, share.sealed_ms, share.folded_ms)
