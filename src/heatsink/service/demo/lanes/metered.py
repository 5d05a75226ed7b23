"""Stores that tell a meter what became of the calls about its key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from heatsink.isolate.store import HomeEntry, HomeStore
from heatsink.spread.store import Answer, Ask, CounterStore, LogStore, Row
from heatsink.stores.stores import Stores

from .meter import Meter


class Tap:
    """Who listens to which key; homes are counted by author."""

    def __init__(self, meters: Mapping[str, Meter] | None = None) -> None:
        self._meters = dict(meters or {})

    @contextmanager
    def on(self, key: str, meter: Meter) -> Iterator[Meter]:
        self._meters[key] = meter
        try:
            yield meter
        finally:
            del self._meters[key]

    def meter(self, partition: str) -> Meter | None:
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
    """Counts a write for each home that a post is pushed into."""

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
