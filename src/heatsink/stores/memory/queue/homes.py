"""Batches, limits and the fleet in memory."""

from __future__ import annotations

import builtins
from collections import defaultdict
from collections.abc import Sequence

from heatsink.bulk import rates
from heatsink.bulk.actions import BUILT_IN
from heatsink.bulk.batch import KEEP_MS, Batch, PartPlace, Rate
from heatsink.bulk.rates import Limit
from heatsink.bulk.store import ANNOUNCED_MS, Grants, PartCounts, Plan
from heatsink.clock import Clock

from .queue import MemoryQueue


class MemoryBatches:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._batches: dict[str, Batch] = {}
        self._gone_s: dict[str, float] = {}

    async def open(self, batch: Batch) -> Batch:
        self._drop_old()
        if batch.id not in self._batches:
            self._keep(batch)
        return self._batches[batch.id]

    async def update(self, batch: Batch) -> Batch | None:
        known = self._batches.get(batch.id)
        if known is None or (known.version, known.tag) != (batch.version, batch.tag):
            return None
        return self._keep(batch.next())

    async def restore(self, batch: Batch) -> Batch:
        known = self._batches.get(batch.id)
        return self._keep(batch) if known is None or known.version < batch.version else known

    def _keep(self, batch: Batch) -> Batch:
        self._batches[batch.id] = batch
        self._gone_s.pop(batch.id, None)
        if not batch.is_sealed:
            self._gone_s[batch.id] = self._clock.now_s() + KEEP_MS / 1000
        return batch

    async def get(self, id: str) -> Batch | None:
        self._drop_old()
        return self._batches.get(id)

    async def list(self, limit: int, tenant: str = "") -> list[Batch]:
        return self._newest(tenant)[:limit]

    async def browse(self, start: int, limit: int) -> builtins.list[Batch]:
        return self._newest("")[start : start + limit]

    def _newest(self, tenant: str) -> builtins.list[Batch]:
        self._drop_old()
        found = [b for b in self._batches.values() if tenant in ("", b.tenant)]
        return sorted(found, key=lambda b: (-b.submitted_ms, b.id))

    async def forget(self, id: str, after_ms: int) -> None:
        self._gone_s[id] = self._clock.now_s() + after_ms / 1000

    def _drop_old(self) -> None:
        now_s = self._clock.now_s()
        for id in [id for id, gone_s in self._gone_s.items() if gone_s <= now_s]:
            del self._gone_s[id]
            self._batches.pop(id, None)


class MemoryLimits:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limits: defaultdict[str, Limit] = defaultdict(Limit)

    def _now_ms(self) -> float:
        return self._clock.now_s() * 1000

    async def declare(self, lane: str, rate: Rate | None) -> None:
        self._limits[lane] = rates.declared(self._limits[lane], rate, self._now_ms())

    async def reserve(self, lane: str, starts: int, ahead_ms: int) -> Grants:
        limit, grants = rates.reserve(self._limits[lane], self._now_ms(), starts, ahead_ms)
        self._limits[lane] = limit
        return grants

    async def refused(self, lane: str, started_per_s: float, retry_after_ms: int) -> None:
        limit = self._limits[lane]
        self._limits[lane] = rates.refused(limit, self._now_ms(), started_per_s, retry_after_ms)

    async def rate_of(self, lane: str) -> float | None:
        return rates.rate_of(self._limits[lane], self._now_ms())


class MemoryBarrier:
    """What is in memory is as durable as it gets."""

    def __init__(self, queue: MemoryQueue, batches: MemoryBatches) -> None:
        self._queue = queue
        self._batches = batches

    async def parts(self, places: Sequence[PartPlace]) -> list[PartCounts | None]:
        return [await self._queue.part(place.partition, place.id) for place in places]

    async def batches(self, ids: Sequence[str]) -> list[Batch | None]:
        return [await self._batches.get(id) for id in ids]


class MemoryFleet:
    """Ownership is kept in the partitions, where claims check it."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self._members: dict[str, float] = {}
        self._offered_ms: dict[str, float] = {}
        self._plan: Plan | None = None

    async def join(self, consumer: str, actions: Sequence[str], ttl_ms: int) -> list[str]:
        now_ms = self._queue.now_ms()
        self._members[consumer] = now_ms + ttl_ms
        for action in actions:
            until_ms = self._offered_ms.get(action, 0.0)
            self._offered_ms[action] = max(until_ms, now_ms + ttl_ms)
        self._members = {n: until for n, until in self._members.items() if until > now_ms}
        return sorted(self._members)

    async def leave(self, consumer: str) -> None:
        self._members.pop(consumer, None)

    async def actions(self) -> list[str]:
        names = self._offered_since(self._queue.now_ms() - ANNOUNCED_MS)
        return [name for name in names if not name.startswith(BUILT_IN)]

    async def offered(self) -> list[str]:
        return self._offered_since(self._queue.now_ms()) if self._members else []

    def _offered_since(self, time_ms: float) -> list[str]:
        return sorted(name for name, until_ms in self._offered_ms.items() if until_ms > time_ms)

    async def own(self, partition: int, consumer: str, ttl_ms: int, workers: int = 0) -> bool:
        queue, now_ms = self._queue.partitions[partition], self._queue.now_ms()
        if queue.owner not in ("", consumer) and now_ms < queue.owned_until_ms:
            return False
        queue.owner, queue.owned_until_ms = consumer, now_ms + ttl_ms
        queue.workers = workers
        return True

    async def disown(self, partition: int, consumer: str) -> None:
        queue = self._queue.partitions[partition]
        if queue.owner == consumer:
            queue.owner, queue.workers = "", 0

    async def plan(self, default: Plan) -> Plan:
        self._plan = self._plan or default
        return self._plan

    async def change(self, plan: Plan) -> Plan:
        if self._plan is None or plan.version > self._plan.version:
            self._plan = plan
        return self._plan
