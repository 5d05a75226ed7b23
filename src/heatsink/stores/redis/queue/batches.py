"""Batches at home in Redis: a small record each, replaced only if it is the one that was read."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable

import msgspec

from heatsink.bulk.batch import Batch
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

    def __init__(
        self, connection: Connection, keys: QueueKeys, touched: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._touched = touched
        self._open = Script("homes/batch_open")
        self._update = Script("homes/batch_update")
        self._index = Script("homes/batch_index")

    async def open(self, batch: Batch) -> Batch:
        key = self._keys.batch(batch.id)
        kept = await self._open.run(self._connection, key, batch.version, _packed(batch))
        self._touched(key)
        found = _BATCH.decode(kept)
        indexes = self._keys.newest(), self._keys.newest(found.tenant)
        await asyncio.gather(*(self._enter(index, found) for index in indexes))
        return found

    async def _enter(self, index: str, batch: Batch) -> None:
        words = (batch.submitted_ms, batch.id, INDEX_MAX, INDEX_KEEP_S)
        await self._index.run(self._connection, index, *words)

    async def update(self, batch: Batch) -> Batch | None:
        key = self._keys.batch(batch.id)
        newer = msgspec.structs.replace(batch, version=batch.version + 1)
        words = (batch.version, newer.version, _packed(newer))
        replaced = await self._update.run(self._connection, key, *words)
        self._touched(key)
        return newer if replaced else None

    async def get(self, id: str) -> Batch | None:
        record = await self._connection.run("HGET", self._keys.batch(id), "record")
        return _BATCH.decode(record) if record else None

    async def list(self, limit: int, tenant: str = "") -> builtins.list[Batch]:
        index, start = self._keys.newest(tenant), 0
        found: builtins.list[Batch] = []
        while len(found) < limit:
            ids = await self._connection.run("ZRANGE", index, start, start + PAGE - 1, "REV")
            batches = await asyncio.gather(*(self.get(id.decode()) for id in ids))
            gone = [id for id, batch in zip(ids, batches, strict=True) if batch is None]
            if gone:
                await self._connection.run("ZREM", index, *gone)
            found += [batch for batch in batches if batch is not None]
            start += len(ids) - len(gone)
            if len(ids) < PAGE:
                break
        return sorted(found, key=lambda batch: (-batch.submitted_ms, batch.id))[:limit]

    async def forget(self, id: str, after_ms: int) -> None:
        await self._connection.run("PEXPIRE", self._keys.batch(id), after_ms)
