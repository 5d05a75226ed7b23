"""The two ways to write the same conversation to the same kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from heatsink.client.heatsink import Heatsink
from heatsink.service.demo.lanes.lane import Contender, Spread, spread_of
from heatsink.service.demo.lanes.meter import Meter
from heatsink.service.demo.lanes.plain import PlainClient
from heatsink.spread.store import LogStore, Row

PAGE_ROWS = 1_000


class Chat(Contender, Protocol):
    def read_back(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Every id and message that is there."""


class PlainChat(PlainClient[LogStore]):
    """One key, one partition, and the retries of an ordinary client."""

    async def call(self, body: bytes) -> bytes:
        raw, _ = self._mint()
        row = Row(raw, body, epoch_ms=0, buckets=1)
        await self._try(lambda: self._store.put(self._key, row))
        return raw

    async def read_back(self) -> AsyncIterator[tuple[bytes, bytes]]:
        async for _, row in self._store.scan():
            yield row.raw, row.body


class SpreadChat:
    """Heatsink, as an application uses it."""

    def __init__(self, heatsink: Heatsink, key: str, meter: Meter) -> None:
        self.meter = meter
        self._heatsink = heatsink
        self._key = key

    async def call(self, body: bytes) -> bytes:
        return (await self._heatsink.log.append(self._key, body)).raw

    async def spread(self) -> Spread:
        return await spread_of(self._heatsink, self._key)

    async def read_back(self) -> AsyncIterator[tuple[bytes, bytes]]:
        cursor: str | None = None
        while True:
            page = await self._heatsink.log.page(
                self._key, limit=PAGE_ROWS, cursor=cursor, order="oldest"
            )
            for entry in page.entries:
                yield entry.raw, entry.body
            cursor = page.cursor
            if cursor is None:
                return
