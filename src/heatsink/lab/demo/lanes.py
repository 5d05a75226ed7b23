"""Lanes: a plain store and Heatsink under the same traffic, with counts of how their calls end.

A plain lane calls its store as an ordinary client does: one key, one partition, three tries.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import ceil
from random import Random
from typing import Generic, Protocol, TypeVar

import msgspec

from heatsink.client.heatsink import Heatsink
from heatsink.errors import Retryable, Throttled
from heatsink.primitives.clock import Clock, now_ms
from heatsink.primitives.ids import TIME_MS_MAX, Uuid7, minter_of
from heatsink.primitives.subjects import Subject

TRIES = 3
T = TypeVar("T")
Store = TypeVar("Store")


class Totals(msgspec.Struct):
    """How many calls of a lane were offered, accepted and dropped.

    `throttled` counts the tries that the store refused. A call that was retried may count several
    times.
    """

    offered: int = 0
    accepted: int = 0
    throttled: int = 0
    dropped: int = 0

    @property
    def waiting(self) -> int:
        return self.offered - self.accepted - self.dropped


class LaneHeat(msgspec.Struct, frozen=True):
    """The calls per second that the partition `name` accepted and refused."""

    name: str
    taken_s: int
    refused_s: int


class Rates(msgspec.Struct, frozen=True):
    """Rates per second since the last reading, and the latencies of calls accepted since then."""

    offered_s: int
    accepted_s: int
    throttled_s: int
    dropped_s: int
    p50_ms: int
    p99_ms: int
    partitions: list[LaneHeat]


class LaneMeter:
    """Counts the calls of one lane and how they end. `read` returns the counts as rates."""

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
        """Count the call to the store inside the block as accepted or refused."""
        try:
            yield
        except Throttled:
            self.refuse(partition, raw)
            raise
        self.take(partition)

    def refuse(self, partition: str, raw: bytes) -> None:
        """Count a refused try of the call with the id `raw`.

        The first refusal of a call sets `last_fresh_refusal_s`; refusals of its retries do not.
        """
        self.totals.throttled += 1
        self._refused[partition] += 1
        self.last_refusal_s = self._clock.monotonic_s()
        if raw not in self._ever_refused:
            self._ever_refused.add(raw)
            self.last_fresh_refusal_s = self.last_refusal_s

    def read(self) -> Rates:
        """Return the rates since the last call of `read`."""
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

    def _heat(self, per_s: float) -> list[LaneHeat]:
        names = sorted({*self._taken, *self._refused}, key=lambda name: (len(name), name))
        taken, refused = self._taken, self._refused
        return [
            LaneHeat(name, round(taken[name] * per_s), round(refused[name] * per_s))
            for name in names
        ]


def _percentile_ms(sorted_s: list[float], share: float) -> int:
    """Return a percentile in milliseconds, rounded up, so that no call seems to take 0 ms."""
    return ceil(1000 * sorted_s[int(share * (len(sorted_s) - 1))]) if sorted_s else 0


class Spread(msgspec.Struct, frozen=True):
    """Over how many buckets new writes are spread, and why.

    `buckets` is the number of buckets now, `target` that of the newest epoch, which may not have
    started yet, and `widest` the largest number so far.
    """

    buckets: int
    target: int
    widest: int
    reason: str


UNSPREAD = Spread(1, 1, 1, "a plain store keeps a key in one partition")


async def spread_of(heatsink: Heatsink, key: str | Subject) -> Spread:
    explained = await heatsink.explain(key)
    layout = explained.layout
    return Spread(explained.buckets, layout.buckets, layout.max_buckets, explained.reason)


class Contender(Protocol):
    meter: LaneMeter

    async def call(self, body: bytes) -> bytes:
        """Make one call, with retries, and return its id. Raises `Retryable` if all tries fail."""

    async def spread(self) -> Spread: ...


class LaneNow(msgspec.Struct, frozen=True):
    """One lane at one moment: its rates, its totals of the run, and its number of partitions."""

    rates: Rates
    totals: Totals
    spread: Spread


class DemoLane:
    """Starts the calls of one lane, counts how they end, and keeps the acknowledged ones."""

    def __init__(self, contender: Contender, clock: Clock, tasks: asyncio.TaskGroup) -> None:
        self.contender = contender
        self.meter = contender.meter
        self.accepted: dict[bytes, bytes] = {}
        self._clock = clock
        self._tasks = tasks

    @property
    def totals(self) -> Totals:
        return self.meter.totals

    def offer(self, body: bytes) -> None:
        self.totals.offered += 1
        self._tasks.create_task(self._send(body))

    async def _send(self, body: bytes) -> None:
        begun_s = self._clock.monotonic_s()
        try:
            known_as = await self.contender.call(body)
        except Retryable:
            self.totals.dropped += 1
            return
        self.meter.accept(self._clock.monotonic_s() - begun_s)
        self.accepted[body] = known_as

    async def now(self) -> LaneNow:
        spread = await self.contender.spread()
        return LaneNow(self.meter.read(), self.totals_now(), spread)

    def totals_now(self) -> Totals:
        return msgspec.structs.replace(self.totals)


class PlainClient(Generic[Store]):
    """A client without Heatsink that retries throttled calls; the base class of all plain lanes."""

    def __init__(self, store: Store, key: str, meter: LaneMeter, clock: Clock, rng: Random) -> None:
        self.meter = meter
        self._store = store
        self._key = key
        self._clock = clock
        self._rng = rng
        self._minter = minter_of(Uuid7(), rng)

    def _mint(self) -> tuple[bytes, int]:
        return self._minter.mint(now_ms(self._clock), TIME_MS_MAX)

    async def _try(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, and retry it as the "standard" mode of the AWS SDKs does.

        There is a random pause of up to 1 s after the first try, and of up to 2 s after the second.
        The SDKs' retry quota, which would give up sooner, is left out.
        """
        for attempt in range(TRIES - 1):
            try:
                return await call()
            except Throttled:
                await self._clock.sleep(self._rng.random() * 2**attempt)
        return await call()

    async def spread(self) -> Spread:
        return UNSPREAD
