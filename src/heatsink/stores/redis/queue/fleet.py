"""The fleet in Redis. Ownership is kept in the partitions, where claims check it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from heatsink.bulk.actions import BUILT_IN
from heatsink.bulk.store import ANNOUNCED_MS, Plan
from heatsink.stores.redis.connection import Connection, Word

from .keys import QueueKeys
from .queue import RedisQueue
from .scripts import Script, SlotClock

_PLAN = msgspec.msgpack.Decoder(Plan)
_packed = msgspec.msgpack.Encoder().encode
_ANY_VERSION = "-inf"


class RedisFleet:
    def __init__(
        self,
        connection: Connection,
        keys: QueueKeys,
        queue: RedisQueue,
        time: SlotClock,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._queue = queue
        self._time = time
        self._time_key = keys.fleet("time")
        self._join = Script("homes/fleet_join", "clock")
        self._offer = Script("homes/fleet_offer", "clock")
        self._plan = Script("homes/fleet_plan")

    async def join(self, consumer: str, actions: Sequence[str], ttl_ms: int) -> list[str]:
        await self._offers(0, ttl_ms, actions)
        told, members = await self._timed(self._join, "members", "offers", consumer, ttl_ms)
        self._time.heard(self._time_key, told)
        return sorted(member.decode() for member in members)

    async def leave(self, consumer: str) -> None:
        await self._connection.run("ZREM", self._keys.fleet("members"), consumer)

    async def actions(self) -> list[str]:
        names = await self._offers(ANNOUNCED_MS)
        return [name for name in names if not name.startswith(BUILT_IN)]

    async def offered(self) -> list[str]:
        is_anybody_there = await self._connection.run("ZCARD", self._keys.fleet("members"))
        return await self._offers(0) if is_anybody_there else []

    async def _offers(self, age_ms: int, ttl_ms: int = 0, actions: Sequence[str] = ()) -> list[str]:
        words: list[Word] = [age_ms, ANNOUNCED_MS, ttl_ms, *actions]
        names = await self._timed(self._offer, "offers", "members", *words)
        return sorted(name.decode() for name in names)

    async def _timed(self, script: Script, name: str, other: str, *words: Word) -> Any:
        now, others = self._time.words(self._time_key), [self._time_key, self._keys.fleet(other)]
        key = self._keys.fleet(name)
        return await script.run(self._connection, key, now, *words, others=others)

    async def own(self, partition: int, consumer: str, ttl_ms: int, workers: int = 0) -> bool:
        owned, told = await self._queue.run("own", partition, consumer, ttl_ms, workers)
        self._queue.heard(partition, told)
        return bool(owned)

    async def disown(self, partition: int, consumer: str) -> None:
        await self._queue.run("disown", partition, consumer)

    async def plan(self, default: Plan) -> Plan:
        return await self._put(_ANY_VERSION, default)

    async def change(self, plan: Plan) -> Plan:
        return await self._put(str(plan.version), plan)

    async def _put(self, version: str, plan: Plan) -> Plan:
        key = self._keys.fleet("plan")
        words = (version, plan.version, _packed(plan))
        return _PLAN.decode(await self._plan.run(self._connection, key, *words))
