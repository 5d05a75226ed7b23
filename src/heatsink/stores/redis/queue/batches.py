"""Batches at home in Redis: a small record each, replaced only if it is the one that was read."""

from __future__ import annotations

import asyncio
import builtins

import msgspec

from heatsink.bulk.batch import KEEP_MS, Batch
from heatsink.stores.redis.connection import Connection

from .keys import QueueKeys
from .scripts import Script

INDEX_MAX = 10_000
INDEX_KEEP_S = 30 * 24 * 3600
PAGE = 100
_BATCH = msgspec.msgpack.Decoder(Batch)
_packed = msgspec.msgpack.Encoder().encode


class RedisBatches:
    """A record comes before its line in the index: `list` may drop lines that lead nowhere."""

    def __init__(self, connection: Connection, keys: QueueKeys) -> None:
        self._connection = connection
        self._keys = keys
        self._open = Script("homes/batch_open", "record")
        self._update = Script("homes/batch_update", "record")
        self._index = Script("homes/batch_index")
        self._restore = Script("homes/batch_restore", "record")

    async def open(self, batch: Batch) -> Batch:
        key = self._keys.batch(batch.id)
        words = (batch.version, batch.tag, _packed(batch), KEEP_MS)
        kept = await self._open.run(self._connection, key, *words)
        found = _BATCH.decode(kept)
        await self._list(found)
        return found

    async def _list(self, found: Batch) -> None:
        indexes = self._keys.newest(), self._keys.newest(found.tenant)
        await asyncio.gather(*(self._enter(index, found) for index in indexes))

    async def _enter(self, index: str, batch: Batch) -> None:
        words = (batch.submitted_ms, batch.id, INDEX_MAX, INDEX_KEEP_S)
        await self._index.run(self._connection, index, *words)

    async def update(self, batch: Batch) -> Batch | None:
        key = self._keys.batch(batch.id)
        newer = batch.next()
        keep_ms = 0 if batch.is_sealed else KEEP_MS
        words = (batch.version, batch.tag, newer.version, newer.tag, _packed(newer), keep_ms)
        replaced = await self._update.run(self._connection, key, *words)
        return newer if replaced else None

    async def restore(self, batch: Batch) -> Batch:
        words = (batch.version, batch.tag, _packed(batch))
        kept = await self._restore.run(self._connection, self._keys.batch(batch.id), *words)
        found = _BATCH.decode(kept)
        await self._list(found)
        return found

    async def get(self, id: str) -> Batch | None:
        return record_of(await self._connection.run("HGET", self._keys.batch(id), "record"))

    async def list(self, limit: int, tenant: str = "") -> builtins.list[Batch]:
        found: builtins.list[Batch] = []
        while len(found) < limit:
            page = await self._page(len(found), PAGE, tenant)
            found += page
            if len(page) < PAGE:
                break
        return sorted(found, key=lambda batch: (-batch.submitted_ms, batch.id))[:limit]

    async def browse(self, start: int, limit: int) -> builtins.list[Batch]:
        return await self._page(start, limit, "")

    async def _page(self, start: int, limit: int, tenant: str) -> builtins.list[Batch]:
        """Lines of the index that lead nowhere are dropped, and the page is read again."""
        index = self._keys.newest(tenant)
        while True:
            ids = await self._connection.run("ZRANGE", index, start, start + limit - 1, "REV")
            found = await asyncio.gather(*(self.get(id.decode()) for id in ids))
            gone = [id for id, batch in zip(ids, found, strict=True) if batch is None]
            if not gone:
                return [batch for batch in found if batch is not None]
            await self._connection.run("ZREM", index, *gone)

    async def forget(self, id: str, after_ms: int) -> None:
        await self._connection.run("PEXPIRE", self._keys.batch(id), after_ms)


def record_of(word: bytes | None) -> Batch | None:
    return _BATCH.decode(word) if word else None
