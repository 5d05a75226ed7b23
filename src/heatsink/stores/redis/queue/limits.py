"""Rate limits at home in Redis, each with a time of its own: the Lua is `bulk/rates.py`'s twin."""

from __future__ import annotations

from typing import Any

from heatsink.bulk.batch import Rate
from heatsink.bulk.store import Grants
from heatsink.stores.redis.connection import Connection, Word

from .keys import QueueKeys
from .scripts import Script, SlotClock

_OPERATIONS = ("declare", "reserve", "refused", "rate")


class RedisLimits:
    def __init__(self, connection: Connection, keys: QueueKeys, time: SlotClock) -> None:
        self._connection = connection
        self._keys = keys
        self._time = time
        self._scripts = {
            name: Script(f"homes/limit_{name}", "clock", "limit") for name in _OPERATIONS
        }

    async def _run(self, operation: str, lane: str, *words: Word) -> Any:
        key = self._keys.limit(lane)
        script, now = self._scripts[operation], self._time.words(key)
        return await script.run(self._connection, key, now, *words, others=[key])

    async def declare(self, lane: str, rate: Rate | None) -> None:
        words = (rate.count, repr(rate.period_s)) if rate else ("", "")
        await self._run("declare", lane, *words)

    async def reserve(self, lane: str, starts: int, ahead_ms: int) -> Grants:
        size, count, *times, told = await self._run("reserve", lane, starts, ahead_ms)
        self._time.heard(self._keys.limit(lane), told)
        first_ms, step_ms, now_ms = map(float, times)
        waits = [first_ms + step_ms * i - now_ms for i in range(count)]
        return Grants(size, waits, now_ms, first_ms + step_ms * count - now_ms)

    async def refused(self, lane: str, started_per_s: float, retry_after_ms: int) -> None:
        await self._run("refused", lane, repr(float(started_per_s)), retry_after_ms)

    async def rate_of(self, lane: str) -> float | None:
        found = await self._run("rate", lane)
        return None if found is None else float(found)
