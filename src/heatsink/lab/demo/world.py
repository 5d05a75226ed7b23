"""What all acts share: one Heatsink, used as in an application, and plain stores to compare with.

The dashboard beside the demo shows this Heatsink. Every store has the same limit per partition key.
Every store reports calls on a watched key to the meter of that key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec

from heatsink.bulk.actions import Actions
from heatsink.bulk.scaling.load import WorkerRules
from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.work.consumer import Consumer
from heatsink.client.heatsink import Heatsink
from heatsink.client.queue import Queue, connect_queue
from heatsink.client.settings import Settings
from heatsink.primitives.clock import Clock
from heatsink.spread.policy import BucketRules
from heatsink.spread.store import Answer, Ask, CounterStore, LogStore, Row
from heatsink.stores.sqlite import sqlite_stores
from heatsink.stores.stores import Stores
from heatsink.stores.throttled import PartitionLimit, throttled
from heatsink.timelines import TimelineSettings
from heatsink.timelines.store import HomeEntry, HomeStore

from .lanes import LaneMeter
from .traffic import READS_A_WRITE, TrafficPlan

FILL = 0.8  # the share of a partition's limit that Heatsink plans with
COOL_DOWN_S = 5.0  # five minutes in production, too long for a demo
WORKERS = WorkerRules(base=4, workers_max=64, drain_s=40.0, hold_s=10.0)
GRACE_S = 0.5
MakeStores = Callable[[str], Stores]


class Tap:
    """The meters of watched keys: each counts the calls on its key.

    A write to a home timeline counts for the author of the post.
    """

    def __init__(self, meters: Mapping[str, LaneMeter] | None = None) -> None:
        self._meters = dict(meters or {})

    @contextmanager
    def on(self, key: str, meter: LaneMeter) -> Iterator[LaneMeter]:
        self._meters[key] = meter
        try:
            yield meter
        finally:
            del self._meters[key]

    def meter(self, partition: str) -> LaneMeter | None:
        return self._meters.get(partition.partition("#")[0])


class MeteredLog:
    def __init__(self, store: LogStore, tap: Tap) -> None:
        self._store = store
        self._tap = tap
        self.get = store.get
        self.delete = store.delete
        self.erase = store.erase

    def put(self, partition: str, row: Row) -> Awaitable[Row | None]:
        meter = self._tap.meter(partition)
        if meter is None:
            return self._store.put(partition, row)
        with meter.counting(partition, row.raw):
            return self._store.put(partition, row)

    async def query(self, partition: str, ask: Ask) -> Answer:
        meter = self._tap.meter(partition)
        if meter is None or not meter.counts_reads:
            return await self._store.query(partition, ask)
        with meter.counting(partition, b""):
            return await self._store.query(partition, ask)

    def scan(self) -> AsyncIterator[tuple[str, Row]]:
        return self._store.scan()


class MeteredCounters:
    def __init__(self, store: CounterStore, tap: Tap) -> None:
        self._store = store
        self._tap = tap
        self.raise_to = store.raise_to
        self.totals = store.totals
        self.shares = store.shares
        self.fold = store.fold

    async def add(self, partition: str, token: bytes, time_ms: int, amount: int) -> int | None:
        meter = self._tap.meter(partition)
        if meter is None:
            return await self._store.add(partition, token, time_ms, amount)
        with meter.counting(partition, token):
            return await self._store.add(partition, token, time_ms, amount)


class MeteredHomes:
    """Home timelines that count one write for each home into which a post is pushed."""

    def __init__(self, store: HomeStore, tap: Tap) -> None:
        self._store = store
        self._tap = tap
        self.page = store.page
        self.fill = store.fill
        self.drop = store.drop
        self.looked_at_s = store.looked_at_s

    async def push(self, users: Sequence[str], entry: HomeEntry) -> None:
        await self._store.push(users, entry)
        if meter := self._tap.meter(entry.author):
            meter.take(entry.raw.hex(), len(users))


def metered(stores: Stores, tap: Tap) -> Stores:
    log, counters = MeteredLog(stores.log, tap), MeteredCounters(stores.counters, tap)
    return replace(stores, log=log, counters=counters)


@dataclass(frozen=True)
class DemoWorld:
    """What an act runs on: one Heatsink, and plain stores to compare it with.

    `stores(name, tap)` makes an empty store of the same kind and with the same limit as Heatsink's
    store. The meters of `tap` count its calls.
    """

    hs: Heatsink
    tap: Tap
    stores: Callable[[str, Tap], Stores]
    clock: Clock
    rng: Random
    _runs: count[int] = field(default_factory=lambda: count(1))

    def fresh(self, name: str) -> str:
        """Return a key that no run has used before, so that each run starts cold."""
        return f"{name}-{next(self._runs)}"

    @asynccontextmanager
    async def plain(self, key: str, meter: LaneMeter) -> AsyncIterator[Stores]:
        """Yield a store without Heatsink. The meter counts the calls on `key`."""
        stores = self.stores(f"plain-{key}", Tap({key: meter}))
        await stores.open()
        try:
            yield stores
        finally:
            await stores.close()

    @asynccontextmanager
    async def working(self, actions: Actions) -> AsyncIterator[Consumer]:
        """Run a consumer of the queue during the block, and yield it."""
        consumer = self.hs.worker(actions, workers=WORKERS.base, grace_s=GRACE_S)
        running = asyncio.ensure_future(consumer.run())
        try:
            yield consumer
        finally:
            consumer.stop()
            await running


def workers_of(plan: TrafficPlan) -> WorkerRules:
    return msgspec.structs.replace(WORKERS, drain_s=WORKERS.drain_s / plan.speed)


def settings_of(plan: TrafficPlan) -> Settings:
    return Settings(
        rules=BucketRules(bucket_units_s=int(FILL * plan.limit), cool_down_s=COOL_DOWN_S),
        timelines=TimelineSettings(threshold=plan.threshold),
        workers=workers_of(plan),
        bulk=BulkSettings(durability="fsync"),
        name="demo",
    )


@asynccontextmanager
async def world_of(
    make_stores: MakeStores,
    make_queue: Callable[[], Queue],
    plan: TrafficPlan,
    clock: Clock,
    rng: Random,
) -> AsyncIterator[DemoWorld]:
    limit = PartitionLimit(writes_s=plan.limit, reads_s=READS_A_WRITE * plan.limit)

    def limited(name: str, tap: Tap) -> Stores:
        return metered(throttled(make_stores(name), limit, clock), tap)

    tap = Tap()

    def queue() -> Queue:
        made = make_queue()
        made.homes = MeteredHomes(made.homes, tap)
        return made

    stores = limited("heatsink", tap)
    try:
        async with Heatsink(stores, settings_of(plan), clock, rng, queue) as hs:
            yield DemoWorld(hs, tap, limited, clock, rng)
    finally:
        await stores.close()  # a run stopped while Heatsink opens has not closed them


@asynccontextmanager
async def open_world(plan: TrafficPlan, clock: Clock, rng: Random) -> AsyncIterator[DemoWorld]:
    """Yield a world of SQLite files and a private Valkey server, in a temporary folder."""
    with TemporaryDirectory(prefix="heatsink-demo-", ignore_cleanup_errors=True) as folder:

        def make_stores(name: str) -> Stores:
            return sqlite_stores(Path(folder) / f"{name}.db", clock)

        def make_queue() -> Queue:
            bulk = settings_of(plan).bulk
            return connect_queue(f"embedded:///{folder}/queue", bulk, clock, rng)

        async with world_of(make_stores, make_queue, plan, clock, rng) as world:
            yield world
