"""The two ways to write the same conversation to the same kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Protocol

import msgspec

from heatsink.client.heatsink import Heatsink
from heatsink.client.settings import Settings
from heatsink.clock import Clock, now_ms
from heatsink.errors import Throttled
from heatsink.ids import TIME_MS_MAX, Minter, Uuid7
from heatsink.spread.policy import BucketRules
from heatsink.spread.store import LogStore, Row
from heatsink.stores.stores import Stores
from heatsink.stores.throttled import PartitionLimit, throttled

from .meter import Meter, MeteredLog

KEY = "chat"
TRIES = 3
PAGE_ROWS = 1_000
COOL_DOWN_S = 5.0  # minutes in production; a demo has no minutes
FILL = 0.8  # of a partition's limit is what Heatsink plans with


class Spread(msgspec.Struct, frozen=True):
    """Over how many partitions new rows go, soon will, and at most ever did; and why."""

    buckets: int
    target: int
    widest: int
    reason: str


class Contender(Protocol):
    meter: Meter

    async def append(self, body: bytes) -> bytes:
        """Write one message; its id. Raises `Retryable` when it gives up."""

    async def spread(self) -> Spread: ...

    def read_back(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Every id and message that is there."""


class PlainStore:
    """One key, one partition, and the retries of an ordinary client.

    Up to three tries, as in the "standard" mode of the AWS SDKs: a random pause of up to 1 s after
    the first, up to 2 s after the second. Their retry quota, which would give up sooner, is left
    out.
    """

    def __init__(self, store: LogStore, meter: Meter, clock: Clock, rng: Random) -> None:
        self.meter = meter
        self._store = store
        self._clock = clock
        self._rng = rng
        self._minter = Minter(Uuid7(), rng)

    async def append(self, body: bytes) -> bytes:
        raw, _ = self._minter.mint(now_ms(self._clock), TIME_MS_MAX)
        row = Row(raw, body, epoch_ms=0, buckets=1)
        for attempt in range(TRIES - 1):
            try:
                await self._store.put(KEY, row)
                return raw
            except Throttled:
                await self._clock.sleep(self._rng.random() * 2**attempt)
        await self._store.put(KEY, row)
        return raw

    async def spread(self) -> Spread:
        return Spread(1, 1, 1, "a plain store has no other place for it")

    async def read_back(self) -> AsyncIterator[tuple[bytes, bytes]]:
        async for _, row in self._store.scan():
            yield row.raw, row.body


class SpreadStore:
    """Heatsink, as an application uses it."""

    def __init__(self, heatsink: Heatsink, meter: Meter) -> None:
        self.meter = meter
        self._heatsink = heatsink

    async def append(self, body: bytes) -> bytes:
        return (await self._heatsink.log.append(KEY, body)).raw

    async def spread(self) -> Spread:
        explained = await self._heatsink.explain(KEY)
        layout = explained.layout
        return Spread(explained.buckets, layout.buckets, layout.max_buckets, explained.reason)

    async def read_back(self) -> AsyncIterator[tuple[bytes, bytes]]:
        cursor: str | None = None
        while True:
            page = await self._heatsink.log.page(
                KEY, limit=PAGE_ROWS, cursor=cursor, order="oldest"
            )
            for entry in page.entries:
                yield entry.raw, entry.body
            cursor = page.cursor
            if cursor is None:
                return


def _limited(stores: Stores, limit: int, clock: Clock, meter: Meter) -> Stores:
    stores = throttled(stores, PartitionLimit(writes_s=limit), clock)
    return replace(stores, log=MeteredLog(stores.log, meter))


@asynccontextmanager
async def open_plain(
    stores: Stores, limit: int, clock: Clock, rng: Random
) -> AsyncIterator[PlainStore]:
    meter = Meter(clock)
    try:
        yield PlainStore(_limited(stores, limit, clock, meter).log, meter, clock, rng)
    finally:
        await stores.close()


@asynccontextmanager
async def open_heatsink(
    stores: Stores, limit: int, clock: Clock, rng: Random
) -> AsyncIterator[SpreadStore]:
    meter = Meter(clock)
    rules = BucketRules(bucket_units_s=int(FILL * limit), cool_down_s=COOL_DOWN_S)
    limited = _limited(stores, limit, clock, meter)
    try:
        async with Heatsink(limited, Settings(rules=rules), clock, rng) as heatsink:
            yield SpreadStore(heatsink, meter)
    finally:
        await stores.close()  # a run that is broken off while Heatsink opens has not closed them
