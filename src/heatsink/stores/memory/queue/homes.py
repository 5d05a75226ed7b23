"""A queue's data outside its partitions, in memory: batch records, rate limits, the fleet, and
the bell.

A rate limit decides when the items of a lane may start. A lane is one action of one tenant. The
rate is declared, or found by probing. Workers book start times in advance, in *grants* of equal
size, one `step` apart. So a limit works like a calendar, and the queue need not count starts
afterwards. An item may start at most `LATE_MS` after its start time. So the grants of one period
are spread over the declared period plus `LATE_MS`. Then no window of one period ever holds more
starts than the rate allows, however late each start is. If a process does not know the limit's
clock exactly, its starts may be later than `LATE_MS`. The process states this delay when it books.
The grants of the following period are then spread further, by the same time.

Without a declared rate, the limit is found when the downstream service refuses calls. The first
refusal starts a *search*: the pace, that is, the rate at which items start, drops to an eighth, and
then grows by a factor each second. The pace at a later refusal gives the *level*, an estimate of
the limit. From then on the pace is a cubic in the time since the last refusal (as in TCP CUBIC):
the pace starts a little below the level, stays near the level for long, and then rises faster and
faster. So the lane mostly runs near the limit, and speeds up if the limit is raised.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log
from typing import Self

import msgspec
from msgspec.structs import replace

from heatsink.bulk import changes
from heatsink.bulk.actions import BUILT_IN
from heatsink.bulk.batch import KEEP_MS, RATE_MAX, Batch, PartEnd, PartPlace, Rate
from heatsink.bulk.limits import Offer
from heatsink.bulk.plan import PlaceMarks, QueuePlan
from heatsink.bulk.store import (
    ANNOUNCED_MS,
    BOOKED_MS_MAX,
    LATE_MS,
    Grants,
    Handover,
    PartCounts,
    Roll,
)
from heatsink.primitives.clock import Clock
from heatsink.primitives.slot_time import SlotTime, SlotWitness, Timed, moved_along

from .queue import MemoryQueue

GRANTS_PER_S_MAX = 100  # a faster lane gets several starts per grant
GRANTS_MAX = 1_000
TICKS_PER_MS = 4096  # times are multiples of such ticks, which a double adds without rounding

SLOWEST_PER_S = 0.1
SEARCH_DROP = 0.125
SEARCH_GROWTH = 1.4  # the factor per second
SEARCH_S_MAX = 60.0
PAUSE_MS = 1_000.0  # most limits count per second: wait for the next one

STEP_DOWN = 0.03
CURVE = 5e-5
LINGER_S: float = (STEP_DOWN / CURVE) ** (1 / 3)  # when the pace is back at the level
NEAR = 1.1
TRUST_NEAR, TRUST_FAR = 0.1, 0.75

GUARD_MS = 500.0
QUICK_MS = 2_000.0
QUICK_DROP = 0.85
AHEAD_MS_MAX = 100.0  # short, since a refusal does not change starts that are already booked
IDLE_COST = 4.0  # so the pace grows only while more than 3/4 of it is used


# -- rate limits -------------------------------------------------------------------------------


class Explored(msgspec.Struct, frozen=True):
    """The state of probing after the last refusal, which was at `since_ms`.

    With `found`, `level` is the estimated rate that the downstream service accepts. Without
    `found`, the search is still on, and `level` is the rate at which the search began.
    """

    level: float
    since_ms: float
    found: bool


class RateState(msgspec.Struct, frozen=True):
    """A rate limit.

    Until `wide_until_ms`, start times have larger distances: items may start `wide_ms` late, and
    late starts must not exceed the rate. Before the lane had a rate, workers got the permission to
    start items until `free_ms`.
    """

    declared: Rate | None = None
    explored: Explored | None = None
    next_ms: float = 0.0
    wide_ms: float = LATE_MS
    wide_until_ms: float = 0.0
    free_ms: float = 0.0


def pace(explored: Explored, now_ms: float) -> float:
    """Return the rate, in items per second, that probing allows now."""
    age_s = max(now_ms - explored.since_ms, 0.0) / 1000
    if not explored.found:
        growth = float(SEARCH_GROWTH ** min(age_s, SEARCH_S_MAX))
    else:
        growth = 1 + CURVE * (age_s - LINGER_S) ** 3
    return min(explored.level * growth, float(RATE_MAX))


def _mean_pace(explored: Explored, now_ms: float) -> float:
    """Return the mean of `pace` since the last refusal.

    If the downstream limit is a token bucket that was empty at that refusal, this mean is the
    bucket's refill rate.
    """
    age_s = max(now_ms - explored.since_ms, 1.0) / 1000
    if not explored.found:
        return (pace(explored, now_ms) - explored.level) / log(SEARCH_GROWTH) / age_s
    risen = (age_s - LINGER_S) ** 4 - LINGER_S**4
    return explored.level * (1 + CURVE / 4 * risen / age_s)


def refused(
    limit: RateState, now_ms: float, started_per_s: float, retry_after_ms: float
) -> RateState:
    """Return the lower limit after the downstream service refused a call.

    `started_per_s` is the rate at which the lane's items started. No item starts before
    `retry_after_ms` has passed. A refusal less than `GUARD_MS` after the last one changes nothing.
    """
    known = limit.explored
    if known is not None and now_ms - known.since_ms < GUARD_MS:
        return limit
    explored = _search(started_per_s, now_ms) if known is None else _lower(limit, known, now_ms)
    resume_ms = max(explored.since_ms, now_ms + retry_after_ms)
    return replace(limit, explored=explored, next_ms=max(limit.next_ms, resume_ms))


def _search(per_s: float, now_ms: float) -> Explored:
    """Start a search at an eighth of the refused rate `per_s`.

    The search begins after a pause, in which running items can end.
    """
    return Explored(max(per_s * SEARCH_DROP, SLOWEST_PER_S), now_ms + PAUSE_MS, False)


def _lower(limit: RateState, known: Explored, now_ms: float) -> Explored:
    """Return the state of probing with a lower level, after a refusal.

    The true limit is unknown. If the service counts calls per window, its limit is the pace that it
    refused. If it has a token bucket, its limit is the mean pace before the refusal. The new level
    is between these two paces. It is close to the mean, unless the pace had risen far above the old
    level. If the last refusal was less than `QUICK_MS` ago, an unfinished search starts anew, and a
    found level drops to `QUICK_DROP` of the refused pace.
    """
    rate = rate_of(limit, now_ms) or 0.0
    is_quick = now_ms - known.since_ms < QUICK_MS
    if is_quick and not known.found:
        return _search(rate, now_ms)
    mean = min(_mean_pace(known, now_ms), rate)
    is_near = known.found and rate < NEAR * known.level
    trust = TRUST_NEAR if is_near else TRUST_FAR
    level = rate * QUICK_DROP if is_quick else mean + trust * (rate - mean)
    return Explored(max(level, SLOWEST_PER_S), now_ms, True)


def rate_of(limit: RateState, now_ms: float) -> float | None:
    """Return the lane's limit in items per second. None if the lane has no limit."""
    rates = []
    if limit.declared is not None:
        rates.append(limit.declared.per_s)
    if limit.explored is not None:
        rates.append(pace(limit.explored, now_ms))
    return min(rates, default=None)


def calendar(limit: RateState, now_ms: float, late_ms: float = LATE_MS) -> tuple[int, float]:
    """Return how many items may start per grant, and the milliseconds between two grants.

    Items may start up to `late_ms` after their start time.
    """
    rate = rate_of(limit, now_ms)
    if rate is None:
        return GRANTS_MAX, 0.0
    size = _grant_size(rate)
    step_ms = 1000 * size / rate
    if limit.declared is not None:
        spared = _grant_size(limit.declared.per_s) - 1  # a window may begin inside a grant
        usable = limit.declared.count - spared
        step_ms = max(step_ms, (1000 * limit.declared.period_s + late_ms) * size / usable)
    return size, step_ms


def _grant_size(per_s: float) -> int:
    return max(1, int(per_s // GRANTS_PER_S_MAX))


def reserve(
    limit: RateState, now_ms: float, starts: int, ahead_ms: float, late_ms: float = LATE_MS
) -> tuple[RateState, Grants]:
    """Book start times for `starts` items, or for as many as may start within `ahead_ms`.

    The items start at most `late_ms` after these times. Returns the limit after the booking, and
    the grants.
    """
    first_ms = max(limit.next_ms, now_ms)
    limit = replace(limit, explored=_without_idle(limit, now_ms), next_ms=first_ms)
    wide_ms = max(limit.wide_ms if first_ms < limit.wide_until_ms else LATE_MS, late_ms)
    size, step_ms = calendar(limit, now_ms, wide_ms)
    if 0 < starts < size:
        size, step_ms = starts, step_ms * starts / size
    step_ms = ceil(step_ms * TICKS_PER_MS) / TICKS_PER_MS
    wanted = min(ceil(starts / size), GRANTS_MAX)
    if limit.explored is not None:
        ahead_ms = min(ahead_ms, AHEAD_MS_MAX)
    if step_ms > 0:
        left_ms = now_ms + ahead_ms - limit.next_ms
        wanted = min(wanted, int(left_ms // step_ms) + 1 if left_ms >= 0 else 0)
    waits = [limit.next_ms + step_ms * i - now_ms for i in range(wanted)]
    following = replace(limit, next_ms=limit.next_ms + step_ms * wanted)
    if limit.declared is not None and wanted and late_ms > LATE_MS:
        until_ms = following.next_ms + 1000 * limit.declared.period_s + late_ms
        until_ms = max(limit.wide_until_ms, until_ms)
        following = replace(following, wide_ms=wide_ms, wide_until_ms=until_ms)
    free_ms = 0.0
    if wanted and not step_ms:
        free_ms = BOOKED_MS_MAX
        until_ms = max(limit.free_ms, now_ms + BOOKED_MS_MAX + LATE_MS)
        following = replace(following, free_ms=until_ms)
    return following, Grants(size, waits, now_ms, following.next_ms - now_ms, free_ms)


def declared(limit: RateState, rate: Rate | None, now_ms: float) -> RateState:
    """Return the limit with the declared rate `rate`. None removes the declared rate.

    Start times that are already booked stay. The new rate applies to later bookings. If the lane
    had no rate before, some workers may still start items without start times for a while. The
    first start time comes after this.
    """
    next_ms = limit.next_ms
    if rate != limit.declared:
        next_ms = max(min(next_ms, now_ms + BOOKED_MS_MAX + LATE_MS), limit.free_ms)
    return replace(limit, declared=rate, next_ms=next_ms)


def postponed(limit: RateState, now_ms: float, late_ms: float) -> RateState:
    """Return the limit after the slot's time jumped ahead by `late_ms`.

    The next free start time moves by the jump, as booked start times do. So no item starts too
    early.
    """
    booked_ms = min(limit.next_ms + late_ms, now_ms + BOOKED_MS_MAX + LATE_MS)
    return replace(
        limit,
        next_ms=max(limit.next_ms, booked_ms),
        wide_until_ms=limit.wide_until_ms and limit.wide_until_ms + late_ms,
        free_ms=limit.free_ms and limit.free_ms + late_ms,
    )


def _without_idle(limit: RateState, now_ms: float) -> Explored | None:
    """Return the state of probing without credit for the time in which the lane was idle.

    The pace rises as long as no refusal comes. But while the lane is idle, the absence of refusals
    proves nothing about the pace.
    """
    known, idle_ms = limit.explored, now_ms - limit.next_ms
    if known is None or idle_ms <= 0:
        return known
    since_ms = min(known.since_ms + IDLE_COST * idle_ms, now_ms)
    return Explored(known.level, since_ms, known.found)


class MemoryLimits(Timed):
    """Rate limits. Each limit has its own slot time, which starts when the limit is first used."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._limits: dict[str, RateState] = {}
        self._times: dict[str, SlotTime] = {}

    def _read(self, lane: str) -> tuple[RateState, SlotTime]:
        limit, time = self._limits.get(lane, RateState()), self._time(lane, self._times.get(lane))
        if time.late_ms:
            limit = postponed(limit, time.own_ms, time.late_ms)
        return limit, time

    def _keep(self, lane: str, limit: RateState, time: SlotTime) -> None:
        self._limits[lane], self._times[lane] = limit, time

    async def declare(self, lane: str, rate: Rate | None) -> None:
        limit, time = self._read(lane)
        if rate is not None or lane in self._limits:
            self._keep(lane, declared(limit, rate, time.own_ms), time)

    def is_declared(self, lane: str, rate: Rate) -> bool:
        """Return whether the lane was submitted with this rate, and with no other rate later."""
        return lane in self._limits and self._limits[lane].declared == rate

    async def reserve(
        self, lane: str, starts: int, ahead_ms: int, late_ms: float = LATE_MS
    ) -> Grants:
        limit, time = self._read(lane)
        limit, grants = reserve(limit, time.own_ms, starts, ahead_ms, late_ms)
        self._keep(lane, limit, time)
        self._witness.heard(lane, time.told_ms)
        return grants

    async def refused(self, lane: str, started_per_s: float, retry_after_ms: int) -> None:
        limit, time = self._read(lane)
        lowered = refused(limit, time.own_ms, started_per_s, retry_after_ms)
        self._keep(lane, lowered, time)

    async def rate_of(self, lane: str) -> float | None:
        limit, time = self._read(lane)
        return rate_of(limit, time.own_ms)


# -- batch records -----------------------------------------------------------------------------


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

    def accept(self, batch: Batch) -> bool:
        """Store the record of a batch of one item, unless another record has its id."""
        self._drop_old()
        known = self._batches.get(batch.id)
        if known is None:
            known = self._keep(batch)
        return known.generation == batch.generation

    def conclude(self, end: PartEnd, now_ms: int) -> bool:
        known = self._batches.get(end.batch)
        ended = changes.concluded(known, end, now_ms) if known else None
        if ended is None:
            return False
        self._keep(ended.next())
        self._gone_s[end.batch] = self._clock.now_s() + ended.keep_single_ms / 1000
        return True

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


class MemoryBell:
    """Wakes one process when a queue partition may have new items to claim."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung: set[int] = set()
        self._offers: list[Offer] = []
        self._handovers: list[Handover] = []
        self._waiter: asyncio.Future[None] | None = None
        self.address = ""

    def ring(self, partition: int) -> None:
        self._rung.add(partition)
        self._wake()

    def offer(self, offer: Offer) -> None:
        self._offers.append(offer)
        self._wake()

    def hand_over(self, handover: Handover) -> None:
        self._handovers.append(handover)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def handovers(self) -> list[Handover]:
        handovers, self._handovers = self._handovers, []
        return handovers

    def offers(self) -> list[Offer]:
        offers, self._offers = self._offers, []
        return offers

    async def wait(self, timeout_s: float) -> set[int]:
        if not (self._rung or self._offers or self._handovers):
            self._waiter = asyncio.get_running_loop().create_future()
            pause = asyncio.ensure_future(self._clock.sleep(timeout_s))
            try:
                await asyncio.wait({self._waiter, pause}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
                self._waiter = None
        rung, self._rung = self._rung, set()
        return rung


class MemoryBarrier:
    """Reads parts and batches immediately. There is no wait, since memory has no durability."""

    def __init__(self, queue: MemoryQueue, batches: MemoryBatches, fleet: MemoryFleet) -> None:
        self._queue = queue
        self._batches = batches
        self._fleet = fleet

    async def parts(self, places: Sequence[PartPlace]) -> list[PartCounts | None]:
        return [await self._queue.part(place.partition, place.id) for place in places]

    async def batches(self, ids: Sequence[str]) -> list[Batch | None]:
        return [await self._batches.get(id) for id in ids]

    async def plan(self) -> QueuePlan | None:
        return self._fleet.stored

    async def place(self, partition: int, parts: Sequence[str] = ()) -> PlaceMarks:
        queue = self._queue.held(partition)
        there = sum(part in queue.shares for part in parts)
        return msgspec.structs.replace(queue.marks, parts=there)


# -- the fleet ---------------------------------------------------------------------------------


@dataclass
class _Fleet:
    members: dict[str, float] = field(default_factory=dict)
    offered_ms: dict[str, float] = field(default_factory=dict)
    plan: QueuePlan | None = None
    durable: int = -1
    time: SlotTime | None = None


class MemoryFleet(Timed):
    """The consumers of the queue, the actions that they offer, and the plan.

    The owner of a partition is stored in the partition, since every claim checks the owner.
    """

    def __init__(self, clock: Clock, queue: MemoryQueue) -> None:
        super().__init__(clock)
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

    async def join(self, consumer: str, actions: Sequence[str], ttl_ms: int) -> Roll:
        fleet, now_ms = self._fleet, self._now_ms()
        fleet.members[consumer] = now_ms + ttl_ms
        for action in actions:
            until_ms = fleet.offered_ms.get(action, 0.0)
            fleet.offered_ms[action] = max(until_ms, now_ms + ttl_ms)
        fleet.members = {n: until for n, until in fleet.members.items() if until > now_ms}
        self._witness.heard("fleet", fleet.time.told_ms if fleet.time else 0.0)
        return Roll(sorted(fleet.members), self._offered_since(now_ms))

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
        queue, now_ms = self._queue.at(partition), self._queue.told_ms(partition)
        if queue.owner not in ("", consumer) and now_ms < queue.owned_until_ms:
            return False
        queue.owner, queue.owned_until_ms = consumer, now_ms + ttl_ms
        queue.workers = workers
        return True

    async def disown(self, partition: int, consumer: str, mark: str = "") -> None:
        queue, now_ms = self._queue.at(partition), self._queue.now_ms(partition)
        if queue.owner == consumer:
            queue.owner, queue.workers = "", 0
        for attempt, lease in queue.leases.items() if mark else ():
            if attempt.startswith(mark):
                lease.until_ms = min(lease.until_ms, now_ms)

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

    @property
    def stored(self) -> QueuePlan | None:
        return self._fleet.plan

    async def durable(self) -> int:
        return self._fleet.durable

    async def made_durable(self, version: int) -> None:
        self._fleet.durable = version
