"""Wraps any store so that each partition key has a throughput limit, as in DynamoDB."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace

from heatsink.errors import Throttled
from heatsink.heat.heat import write_units
from heatsink.primitives.checks import CheckedStruct, check_number
from heatsink.primitives.clock import Clock
from heatsink.spread.store import Answer, Ask, CounterStore, LogStore, Row, Running, Total

from .stores import Stores

IDLE_BUCKETS_MAX = 10_000
READ_UNIT_BYTES = 4_096


class PartitionLimit(CheckedStruct, frozen=True):
    """The throughput limit of each partition key.

    With it, a store on a laptop throttles as in a cloud.
    """

    writes_s: float = 1_000.0
    """Write units a second: one per KB of a write."""
    reads_s: float = 3_000.0
    """Read units a second: one per 4 KB of a read."""
    burst_s: float = 1.0
    """Seconds of unused throughput that a partition key can save up."""

    def __post_init__(self) -> None:
        for name in ("writes_s", "reads_s", "burst_s"):
            check_number(name, getattr(self, name), 0.001)


class TokenBuckets:
    """One token bucket per partition key. Buckets that are full again are dropped from memory."""

    def __init__(self, rate: float, burst_s: float, clock: Clock) -> None:
        self._rate = rate
        self._most = max(rate * burst_s, 1.0)
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}
        self.refused = 0

    def take(self, partition: str, units: float) -> None:
        """Take `units` from the partition key's token bucket, or raise `Throttled`.

        A request for more units than the token bucket can hold passes if the token bucket is full.
        """
        now_s = self._clock.monotonic_s()
        level = self._level(partition, now_s)
        if level < min(units, self._most):
            self._levels[partition] = (level, now_s)
            self.refused += 1
            raise Throttled(partition)
        self._levels[partition] = (level - units, now_s)
        if len(self._levels) > IDLE_BUCKETS_MAX:
            self._forget_full(now_s)

    def charge(self, partition: str, units: float) -> None:
        """Take units that a request has already consumed. The level may become negative."""
        now_s = self._clock.monotonic_s()
        self._levels[partition] = (self._level(partition, now_s) - units, now_s)

    def _level(self, partition: str, now_s: float) -> float:
        level, since_s = self._levels.get(partition, (self._most, now_s))
        return min(level + (now_s - since_s) * self._rate, self._most)

    def _forget_full(self, now_s: float) -> None:
        full_s = 2 * self._most / self._rate
        self._levels = {p: (n, t) for p, (n, t) in self._levels.items() if now_s - t < full_s}


class _Limits:
    def __init__(self, limit: PartitionLimit, clock: Clock) -> None:
        self.writes = TokenBuckets(limit.writes_s, limit.burst_s, clock)
        self.reads = TokenBuckets(limit.reads_s, limit.burst_s, clock)

    def charge_read(self, partition: str, size: int) -> None:
        """Take the units of a read of `size` bytes, except the first unit.

        The first unit was taken before the read, when the size was unknown.
        """
        extra = -(-size // READ_UNIT_BYTES) - 1
        if extra > 0:
            self.reads.charge(partition, extra)


class ThrottledLog:
    def __init__(self, store: LogStore, limits: _Limits) -> None:
        self._store = store
        self._limits = limits

    def put(self, partition: str, row: Row) -> Awaitable[Row | None]:
        self._limits.writes.take(partition, write_units(1, len(row.body)))
        return self._store.put(partition, row)

    async def get(self, partition: str, raw: bytes) -> Row | None:
        self._limits.reads.take(partition, 1)
        return await self._store.get(partition, raw)

    async def query(self, partition: str, ask: Ask) -> Answer:
        self._limits.reads.take(partition, 1)
        answer = await self._store.query(partition, ask)
        self._limits.charge_read(partition, sum(len(row.body) for row in answer.rows))
        return answer

    async def delete(self, partition: str, tombstone: Row) -> bool:
        self._limits.writes.take(partition, 1)
        return await self._store.delete(partition, tombstone)

    async def erase(self, partition: str) -> int:
        self._limits.writes.take(partition, 1)
        return await self._store.erase(partition)

    def scan(self) -> AsyncIterator[tuple[str, Row]]:
        return self._store.scan()


class ThrottledCounters:
    def __init__(self, store: CounterStore, limits: _Limits) -> None:
        self._store = store
        self._limits = limits

    async def add(self, partition: str, token: bytes, time_ms: int, amount: int) -> int | None:
        self._limits.writes.take(partition, 1)
        return await self._store.add(partition, token, time_ms, amount)

    async def raise_to(
        self, partition: str, writer: bytes, time_ms: int, to: Running
    ) -> Running | None:
        self._limits.writes.take(partition, 1)
        return await self._store.raise_to(partition, writer, time_ms, to)

    async def totals(self, partitions: Sequence[str]) -> list[Total]:
        for partition in partitions:
            self._limits.reads.take(partition, 1)
        return await self._store.totals(partitions)

    def shares(self) -> AsyncIterator[str]:
        return self._store.shares()

    async def fold(self, sources: Sequence[str], target: str, before_ms: int) -> None:
        for partition in dict.fromkeys([*sources, target]):
            self._limits.writes.take(partition, 1)
        await self._store.fold(sources, target, before_ms)


def throttled(stores: Stores, limit: PartitionLimit, clock: Clock) -> Stores:
    """Return the same stores with a limit on each partition key.

    The rows and the counters of a partition key share one limit.
    """
    limits = _Limits(limit, clock)
    log = ThrottledLog(stores.log, limits)
    return replace(stores, log=log, counters=ThrottledCounters(stores.counters, limits))
