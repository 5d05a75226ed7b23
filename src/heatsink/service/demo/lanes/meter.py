"""Counts what happens to one lane, and reads the counts off as rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import msgspec

from heatsink.clock import Clock
from heatsink.errors import Throttled


class Totals(msgspec.Struct):
    """Calls offered, accepted and dropped; answers "throttled" that the store gave."""

    offered: int = 0
    accepted: int = 0
    throttled: int = 0
    dropped: int = 0

    @property
    def waiting(self) -> int:
        return self.offered - self.accepted - self.dropped


class PartitionHeat(msgspec.Struct, frozen=True):
    """Calls a second that one partition took and refused."""

    name: str
    taken_s: int
    refused_s: int


class Rates(msgspec.Struct, frozen=True):
    """The last moment, per second; latencies are of calls that were accepted in it."""

    offered_s: int
    accepted_s: int
    throttled_s: int
    dropped_s: int
    p50_ms: int
    p99_ms: int
    partitions: list[PartitionHeat]


class Meter:
    """Running totals, and what was added since they were last read."""

    def __init__(self, clock: Clock, counts_reads: bool = False) -> None:
        self.totals = Totals()
        self.counts_reads = counts_reads
        self.taken: Counter[str] = Counter()
        self.last_refusal_s = float("-inf")
        self.last_fresh_refusal_s = float("-inf")
        self._clock = clock
        self._read = Totals()
        self._read_s = clock.monotonic_s()
        self._latencies_s: list[float] = []
        self._taken: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._ever_refused: set[bytes] = set()

    def accept(self, latency_s: float) -> None:
        self.totals.accepted += 1
        self._latencies_s.append(latency_s)

    def take(self, partition: str, calls: int = 1) -> None:
        self.taken[partition] += calls
        self._taken[partition] += calls

    @contextmanager
    def counting(self, partition: str, raw: bytes) -> Iterator[None]:
        """A call to the store: taken, or refused."""
        try:
            yield
        except Throttled:
            self.refuse(partition, raw)
            raise
        self.take(partition)

    def refuse(self, partition: str, raw: bytes) -> None:
        """A refusal is fresh if it was the call's first try."""
        self.totals.throttled += 1
        self._refused[partition] += 1
        self.last_refusal_s = self._clock.monotonic_s()
        if raw not in self._ever_refused:
            self._ever_refused.add(raw)
            self.last_fresh_refusal_s = self.last_refusal_s

    def read(self) -> Rates:
        """The rates since the last reading."""
        now_s = self._clock.monotonic_s()
        per_s = 1 / max(now_s - self._read_s, 0.001)
        before, now = self._read, msgspec.structs.replace(self.totals)
        latencies_s = sorted(self._latencies_s)
        rates = Rates(
            offered_s=round((now.offered - before.offered) * per_s),
            accepted_s=round((now.accepted - before.accepted) * per_s),
            throttled_s=round((now.throttled - before.throttled) * per_s),
            dropped_s=round((now.dropped - before.dropped) * per_s),
            p50_ms=_percentile_ms(latencies_s, 0.50),
            p99_ms=_percentile_ms(latencies_s, 0.99),
            partitions=self._heat(per_s),
        )
        self._read, self._read_s, self._latencies_s = now, now_s, []
        self._taken.clear()
        self._refused.clear()
        return rates

    def _heat(self, per_s: float) -> list[PartitionHeat]:
        names = sorted({*self._taken, *self._refused}, key=lambda name: (len(name), name))
        taken, refused = self._taken, self._refused
        return [
            PartitionHeat(name, round(taken[name] * per_s), round(refused[name] * per_s))
            for name in names
        ]


def _percentile_ms(sorted_s: list[float], share: float) -> int:
    """Rounded up: nothing takes no time."""
    return ceil(1000 * sorted_s[int(share * (len(sorted_s) - 1))]) if sorted_s else 0
