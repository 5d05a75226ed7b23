"""The queue in memory, which is the reference: partitions, batch records, limits, fleet."""

from __future__ import annotations

import asyncio
import builtins
from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Self

from heatsink.bulk import rates
from heatsink.bulk.actions import BUILT_IN
from heatsink.bulk.batch import KEEP_MS, Batch, PartEnd, PartPlace, Rate
from heatsink.bulk.items import Gap
from heatsink.bulk.rates import Limit
from heatsink.bulk.slot_time import SlotTime, SlotWitness, moved_along, time_after
from heatsink.bulk.store import (
    ANNOUNCED_MS,
    Chores,
    Chunk,
    Claimed,
    ClaimRequest,
    FailedItem,
    Grants,
    LivePart,
    Outcome,
    Part,
    PartCounts,
    PartitionLoad,
    QueuePlan,
    Verb,
)
from heatsink.primitives.clock import Clock

from .partition import QueuePartition


class MemoryBell:
    """Wakes one process when a partition may have something new to claim."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung: set[int] = set()
        self._waiter: asyncio.Future[None] | None = None

    def ring(self, partition: int) -> None:
        self._rung.add(partition)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> set[int]:
        if not self._rung:
            self._waiter = asyncio.get_running_loop().create_future()
            pause = asyncio.ensure_future(self._clock.sleep(timeout_s))
            try:
                await asyncio.wait({self._waiter, pause}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
                self._waiter = None
        rung, self._rung = self._rung, set()
        return rung


class Timed:
    """A store whose slots keep their own time; each process has a view with its own `SlotWitness`.

    Views share all other state. So methods change shared objects in place and never rebind a field.
    """

    def __init__(self, clock: Clock, witness: SlotWitness | None = None) -> None:
        self._clock = clock
        self._witness = witness or SlotWitness(clock)

    def seen_by(self, witness: SlotWitness) -> Self:
        view = copy(self)
        view._witness = witness
        return view

    def as_of_now(self) -> Self:
        """A view for one call, with what the caller knows of the time when it sends the call."""
        return self.seen_by(self._witness.as_of_now())

    def _time(self, slot: str, known: SlotTime | None) -> SlotTime:
        return time_after(known, self._clock.now_s() * 1000, self._witness.evidence(slot))


class MemoryQueue(Timed):
    """All partitions of a queue."""

    def __init__(self, clock: Clock, witness: SlotWitness | None = None) -> None:
        super().__init__(clock, witness)
        self.partitions: defaultdict[int, QueuePartition] = defaultdict(QueuePartition)
        self.bells: list[MemoryBell] = []

    def seen_ms(self, partition: int) -> float:
        """The partition's time, for calls that only read."""
        return self._time(str(partition), self.partitions[partition].time).own_ms

    def now_ms(self, partition: int) -> float:
        """Advance the partition's time and return it."""
        queue = self.partitions[partition]
        queue.pass_time(self._time(str(partition), queue.time))
        return queue.time.own_ms if queue.time else 0.0

    def told_ms(self, partition: int) -> float:
        """Like `now_ms`, and let the caller's witness remember it."""
        now_ms, known = self.now_ms(partition), self.partitions[partition].time
        self._witness.heard(str(partition), known.told_ms if known else 0.0)
        return now_ms

    async def stage(self, partition: int, part: Part, chunks: Sequence[Chunk]) -> PartitionLoad:
        queue, now_ms = self.partitions[partition], self.now_ms(partition)
        queue.stage(part, chunks, now_ms)
        return queue.load(now_ms)

    async def steer(
        self,
        partition: int,
        part: str,
        verb: Verb,
        lap: int = 0,
        since: int = 0,
        record: Batch | None = None,
    ) -> bool:
        queue = self.partitions[partition]
        found = queue.steer(part, verb, lap, since, record, self.now_ms(partition))
        if verb in ("release", "resume", "retry"):
            for bell in self.bells:
                bell.ring(partition)
        return found

    async def claim(self, partition: int, request: ClaimRequest) -> Claimed:
        return self.partitions[partition].claim(request, self.told_ms(partition))

    async def settle(
        self, partition: int, outcomes: Sequence[Outcome], beats: Sequence[str], lease_ms: int
    ) -> list[str]:
        now_ms = self.now_ms(partition)
        return self.partitions[partition].settle(outcomes, beats, lease_ms, now_ms)

    async def chores(self, partition: int, reported: Sequence[PartEnd]) -> Chores:
        return self.partitions[partition].chores(reported, self.now_ms(partition))

    async def load(self, partition: int) -> PartitionLoad:
        return self.partitions[partition].load(self.seen_ms(partition))

    async def part(self, partition: int, part: str) -> PartCounts | None:
        return self.partitions[partition].part(part, self.seen_ms(partition))

    async def failures(self, partition: int, part: str, after: str, limit: int) -> list[FailedItem]:
        return self.partitions[partition].failures(part, after, limit)

    async def gaps(self, partition: int, part: str, chunks: int) -> list[Gap]:
        return self.partitions[partition].gaps(part, chunks)

    async def live_parts(self, partition: int, after: str, limit: int) -> list[LivePart]:
        return self.partitions[partition].live_parts(after, limit)

    async def record_of(self, partition: int, part: str) -> Batch | None:
        return self.partitions[partition].record_of(part)


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


class MemoryLimits(Timed):
    """Each rate limit keeps a time of its own, from when it is first used."""

    def __init__(self, clock: Clock, witness: SlotWitness | None = None) -> None:
        super().__init__(clock, witness)
        self._limits: dict[str, Limit] = {}
        self._times: dict[str, SlotTime] = {}

    def _read(self, lane: str) -> tuple[Limit, SlotTime]:
        limit, time = self._limits.get(lane, Limit()), self._time(lane, self._times.get(lane))
        if time.late_ms:
            limit = rates.moved_along(limit, time.own_ms, time.late_ms)
        return limit, time

    def _keep(self, lane: str, limit: Limit, time: SlotTime) -> None:
        self._limits[lane], self._times[lane] = limit, time

    async def declare(self, lane: str, rate: Rate | None) -> None:
        limit, time = self._read(lane)
        if rate is not None or lane in self._limits:
            self._keep(lane, rates.declared(limit, rate, time.own_ms), time)

    async def reserve(self, lane: str, starts: int, ahead_ms: int) -> Grants:
        limit, time = self._read(lane)
        limit, grants = rates.reserve(limit, time.own_ms, starts, ahead_ms)
        self._keep(lane, limit, time)
        self._witness.heard(lane, time.told_ms)
        return grants

    async def refused(self, lane: str, started_per_s: float, retry_after_ms: int) -> None:
        limit, time = self._read(lane)
        lowered = rates.refused(limit, time.own_ms, started_per_s, retry_after_ms)
        self._keep(lane, lowered, time)

    async def rate_of(self, lane: str) -> float | None:
        limit, time = self._read(lane)
        return rates.rate_of(limit, time.own_ms)


class MemoryBarrier:
    """Returns at once: memory has nothing more durable to wait for."""

    def __init__(self, queue: MemoryQueue, batches: MemoryBatches) -> None:
        self._queue = queue
        self._batches = batches

    async def parts(self, places: Sequence[PartPlace]) -> list[PartCounts | None]:
        return [await self._queue.part(place.partition, place.id) for place in places]

    async def batches(self, ids: Sequence[str]) -> list[Batch | None]:
        return [await self._batches.get(id) for id in ids]


@dataclass
class _Fleet:
    members: dict[str, float] = field(default_factory=dict)
    offered_ms: dict[str, float] = field(default_factory=dict)
    plan: QueuePlan | None = None
    time: SlotTime | None = None


class MemoryFleet(Timed):
    """Members and the plan. A partition records its own owner, since claims check it there."""

    def __init__(
        self, clock: Clock, queue: MemoryQueue, witness: SlotWitness | None = None
    ) -> None:
        super().__init__(clock, witness)
        self._queue = queue
        self._fleet = _Fleet()

    def seen_by(self, witness: SlotWitness) -> Self:
        view = super().seen_by(witness)
        view._queue = self._queue.seen_by(witness)
        return view

    def _now_ms(self) -> float:
        fleet = self._fleet
        time = fleet.time = self._time("fleet", fleet.time)
        for dues in (fleet.members, fleet.offered_ms):
            dues |= {name: moved_along(until_ms, time) for name, until_ms in dues.items()}
        return time.own_ms

    async def join(self, consumer: str, actions: Sequence[str], ttl_ms: int) -> list[str]:
        fleet, now_ms = self._fleet, self._now_ms()
        fleet.members[consumer] = now_ms + ttl_ms
        for action in actions:
            until_ms = fleet.offered_ms.get(action, 0.0)
            fleet.offered_ms[action] = max(until_ms, now_ms + ttl_ms)
        fleet.members = {n: until for n, until in fleet.members.items() if until > now_ms}
        self._witness.heard("fleet", fleet.time.told_ms if fleet.time else 0.0)
        return sorted(fleet.members)

    async def leave(self, consumer: str) -> None:
        self._fleet.members.pop(consumer, None)

    async def actions(self) -> list[str]:
        names = self._offered_since(self._now_ms() - ANNOUNCED_MS)
        return [name for name in names if not name.startswith(BUILT_IN)]

    async def offered(self) -> list[str]:
        return self._offered_since(self._now_ms()) if self._fleet.members else []

    def _offered_since(self, time_ms: float) -> list[str]:
        offered_ms = self._fleet.offered_ms
        return sorted(name for name, until_ms in offered_ms.items() if until_ms > time_ms)

    async def own(self, partition: int, consumer: str, ttl_ms: int, workers: int = 0) -> bool:
        queue, now_ms = self._queue.partitions[partition], self._queue.told_ms(partition)
        if queue.owner not in ("", consumer) and now_ms < queue.owned_until_ms:
            return False
        queue.owner, queue.owned_until_ms = consumer, now_ms + ttl_ms
        queue.workers = workers
        return True

    async def disown(self, partition: int, consumer: str) -> None:
        queue, _ = self._queue.partitions[partition], self._queue.now_ms(partition)
        if queue.owner == consumer:
            queue.owner, queue.workers = "", 0

    async def plan(self, default: QueuePlan, keep: bool = True) -> QueuePlan:
        found = self._fleet.plan or default
        if keep:
            self._fleet.plan = found
        return found

    async def change(self, plan: QueuePlan) -> QueuePlan:
        known = self._fleet.plan
        if known is None or plan.version > known.version:
            self._fleet.plan = plan
            return plan
        return known
