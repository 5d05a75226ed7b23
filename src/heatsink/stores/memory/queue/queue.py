"""The queue in memory. It defines how every queue store must behave.

A part is a batch's items in one queue partition. `Rotation` decides which part is served next. A
claim hands out slices of a part's items under leases, and `settle` records their outcomes. If a
lease expires, its items run again as suspects. Only a few suspects run at a time, since one of them
may have killed the worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from heatsink.bulk.batch import Batch, Gap, PartEnd
from heatsink.bulk.controls import NO_CONTROLS, Controls
from heatsink.bulk.plan import PlaceClosed, PlaceMarks, spot_of
from heatsink.bulk.store import (
    BACK,
    DONE,
    FAILED,
    RESULTS_PAGE_BYTES,
    RETRY,
    RUNNING,
    Chores,
    Chunk,
    Claimed,
    ClaimRequest,
    FailedItem,
    Handover,
    KeptChunk,
    LaneDepth,
    LivePart,
    Outcome,
    Part,
    PartCounts,
    PartitionLoad,
    Setback,
    Slice,
    Verb,
)
from heatsink.primitives.clock import Clock
from heatsink.primitives.slot_time import SlotTime, Timed, moved_along

from .parts import PartShare, Place, Rotation

STALE_MS = 60_000
SUSPECT_PAUSE_MS = 20.0
QUANTUM_US = 20_000.0
EXPIRE_MAX = 50  # expired leases that one claim handles; if there are more, `wake_ms` is 0
WAKE_MAX = 500  # delayed parts that one claim wakes; if there are more, `wake_ms` is 0
INLINE_MAX = 1024  # bytes of a single that may be handed over
TALLY = ("claimed", "done", "failed", "retried", "fenced", "expired", "used_us")
NO_MARKS = PlaceMarks()


class Records(Protocol):
    """Batch records, as a partition sees them."""

    def conclude(self, end: PartEnd, now_ms: int) -> bool:
        """Record the end of a batch of one item. False if more must happen: see `concluded`."""


@dataclass
class ClaimLease:
    share: PartShare
    chunk: int
    start: int
    marks: str
    until_ms: float
    cost_us: float
    suspect: bool


@dataclass
class QueuePartition:
    time: SlotTime | None = None
    owner: str = ""
    owned_until_ms: float = 0.0
    workers: int = 0
    shares: dict[str, PartShare] = field(default_factory=dict)
    leases: dict[str, ClaimLease] = field(default_factory=dict)
    rotation: Rotation = field(default_factory=Rotation)
    sleeping: dict[str, float] = field(default_factory=dict)
    outbox: dict[str, PartEnd] = field(default_factory=dict)
    tally: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TALLY, 0))
    suspects_running: int = 0
    controls: Controls = NO_CONTROLS
    marks: PlaceMarks = NO_MARKS
    since: int = 0
    """The newest version of the plan with which somebody changed the partition here."""
    records: Records | None = None
    """The records of batches of one item; None if there are none at this place."""
    standing: ClaimRequest | None = None
    handed_over: str = ""  # the lease that a standing claim got last

    def check_open(self, partition: int) -> None:
        """Raise `PlaceClosed` if this place has given the partition away after the spot's plan."""
        if self.marks.moved >= spot_of(partition).since:
            raise PlaceClosed(partition, self.marks.moved, self.marks.to)

    def pass_time(self, time: SlotTime) -> None:
        """Set the slot's time.

        If the time jumped by `time.late_ms`, the ownership, the leases and the times at which parts
        were staged move by the jump. So none of them expires because of the jump.
        """
        self.time = time
        if not time.late_ms:
            return
        self.owned_until_ms = moved_along(self.owned_until_ms, time)
        for lease in self.leases.values():
            lease.until_ms = moved_along(lease.until_ms, time)
        for share in self.shares.values():
            share.staged_ms += time.late_ms

    # -- staging and steering --------------------------------------------------------------

    def stage(self, part: Part, chunks: Sequence[Chunk], now_ms: float) -> None:
        share = self.shares.setdefault(part.id, PartShare(part))
        if share.state == "staged":
            share.stamp = share.staged_ms = int(now_ms)
            for chunk in chunks:
                share.add(chunk)

    def accept(self, part: Part, chunk: Chunk, records: Records, now_ms: float) -> None:
        """Add the part of a batch of one item, and let workers run the item."""
        self.records = records
        share = self.shares[part.id] = PartShare(part, is_single=True)
        share.stamp = share.staged_ms = int(now_ms)
        share.add(chunk)
        share.steer("release", 0, 0)
        self._put(share, now_ms)

    def hand_over(self, part: Part, body: bytes, now_ms: float) -> Slice | None:
        """Let the standing claim take the single that was just accepted, if nothing else waits."""
        request = self.standing
        is_known = self.time is not None and self.time.told_ms > 0
        is_owner = request and request.owner == self.owner and now_ms < self.owned_until_ms
        if request is None or not (is_owner and is_known and self.rotation.has_only(part)):
            return None
        if len(body) > INLINE_MAX or part.result_bytes or part.keeps_items or part.keep_ms:
            return None
        self.standing = None
        self.rotation.next()
        slices: list[Slice] = []
        self._take(request, self.shares[part.id], 1, slices, now_ms, part.id)
        self.handed_over = slices[0].attempt
        return slices[0]

    def steer(
        self, part: str, verb: Verb, lap: int, since: int, record: Batch | str | None, now_ms: float
    ) -> bool:
        share = self.shares.get(part)
        if share is None:
            return False
        if record is not None:
            share.keep(record, since)
        if verb == "drop":
            if share.state == "staged" and since in (0, share.stamp):
                del self.shares[part]
            return True
        changed = self._limit(share) if verb == "limit" else share.steer(verb, lap, since)
        if changed:
            self._put(share, now_ms)
        return True

    def _limit(self, share: PartShare) -> bool:
        """Make the part wait for grants of its lane. Returns False if the part already does so."""
        if share.part.limited:
            return False
        self.rotation.remove(share.part)
        share.part = msgspec.structs.replace(share.part, limited=True)
        return True

    def control(self, controls: Controls, now_ms: float) -> None:
        """Follow these controls, unless the partition follows newer ones."""
        if not controls.replaces(self.controls):
            return
        self.controls, self.rotation.weights = controls, controls.weights
        for share in list(self.shares.values()):
            is_held = controls.pauses(share.part.tenant, share.part.action)
            if share.state == "ready" and share.waiting and bool(share.held) != is_held:
                self._put(share, now_ms)

    def _put(self, share: PartShare, now_ms: float) -> None:
        """Move a changed part to the list that fits its state.

        A part with due items goes to the rotation. A part with only delayed items sleeps. A part
        that has ended goes to the outbox. A paused part is in none of these lists.
        """
        self.rotation.remove(share.part)
        self.sleeping.pop(share.part.id, None)
        share.is_early, share.held = False, ""
        if share.ends():
            self._end(share, now_ms)
        elif share.state == "ready":
            self._line_up(share, now_ms)

    def _line_up(self, share: PartShare, now_ms: float) -> None:
        due_ms = share.due_ms(now_ms)
        if due_ms is None:
            return
        part, controls = share.part, self.controls
        if controls.version and controls.pauses(part.tenant, part.action):
            share.held = "tenant" if part.tenant in controls.tenants else "action"
        elif due_ms <= now_ms:
            self.rotation.add(share)
        else:
            self.sleeping[share.part.id] = due_ms
            share.is_early = share.part.start_ms > now_ms

    def _end(self, share: PartShare, now_ms: float) -> None:
        share.state = "finished"
        end, records = share.end(), self.records
        if share.is_single and records is not None and records.conclude(end, int(now_ms)):
            if not share.part.result_bytes:
                del self.shares[share.part.id]
            self.outbox.pop(share.part.id, None)  # of the lap before a retry
        else:
            self.outbox[share.part.id] = end

    # -- claims ----------------------------------------------------------------------------

    def claim(self, request: ClaimRequest, now_ms: float) -> Claimed:
        if self.owner != request.owner or now_ms >= self.owned_until_ms:
            return Claimed(False, [], [], False, None)
        self.standing = None
        for attempt in request.unanswered:
            self._take_back(attempt, now_ms)
        self._expire(now_ms)
        self._wake(now_ms)
        slices: list[Slice] = []
        known = request.controls  # version 0: nobody has changed anything
        is_lost = bool(known.version) and known.replaces(self.controls)
        if not is_lost and f"{request.attempt}:0" not in self.leases:  # else delivered twice
            for lane, allowed in request.grants.items():
                self._serve_lane(request, lane, allowed, slices, now_ms)
            self._serve_tenants(request, slices, now_ms)
        lanes = [LaneDepth(lane, self._lane_waiting(lane)) for lane in self.rotation.lanes]
        dues = [lease.until_ms for lease in self.leases.values()] + list(self.sleeping.values())
        wake_ms = max(int(min(dues) - now_ms), 0) if dues else None
        has_more, kept_ms = self.rotation.has_tenants, 0.0
        told_ms = self.time.told_ms if self.time else 0.0  # 0: its time is in doubt
        if request.bell and request.want and told_ms and not (slices or has_more or is_lost):
            self.standing, kept_ms = request, told_ms
        return Claimed(True, slices, lanes, has_more, wake_ms, not is_lost, kept_ms)

    def _take_back(self, attempt: str, now_ms: float) -> None:
        """Put the items of the claim `attempt` back into the queue.

        The reply to that claim was lost, so no worker runs these items.
        """
        number = 0
        while lease := self.leases.get(f"{attempt}:{number}"):
            marks = BACK * len(lease.marks)
            self._settle(Outcome(f"{attempt}:{number}", marks, 0), now_ms)
            number += 1
        if self.handed_over.startswith(f"{attempt}:"):
            self._settle(Outcome(self.handed_over, BACK, 0), now_ms)

    def _expire(self, now_ms: float) -> None:
        dues = [(lease.until_ms, attempt) for attempt, lease in self.leases.items()]
        for until_ms, attempt in sorted(dues)[:EXPIRE_MAX]:
            if until_ms <= now_ms:
                self._lose(attempt, self.leases[attempt], now_ms)

    def _lose(self, attempt: str, lease: ClaimLease, now_ms: float) -> None:
        """Handle an expired lease. Its worker is presumed dead, and unfinished items run again."""
        self._forget(attempt, lease)
        share = lease.share
        for offset, mark in enumerate(lease.marks):
            if mark == RUNNING:
                self.tally["expired"] += 1
                self.tally["failed"] += share.lose((lease.chunk, lease.start + offset))
        self._put(share, now_ms)

    def _forget(self, attempt: str, lease: ClaimLease) -> None:
        del self.leases[attempt]
        self.suspects_running -= lease.suspect

    def _wake(self, now_ms: float) -> None:
        dues = sorted((due_ms, part) for part, due_ms in self.sleeping.items())
        for due_ms, part in dues[:WAKE_MAX]:
            if due_ms <= now_ms:
                self._put(self.shares[part], now_ms)

    def _serve_lane(
        self,
        request: ClaimRequest,
        lane: str,
        allowed: int,
        slices: list[Slice],
        now_ms: float,
    ) -> None:
        while allowed > 0 and (part := self.rotation.first_of_lane(lane)):
            taken = self._take(request, self.shares[part], allowed, slices, now_ms)
            allowed -= taken

    def _serve_tenants(self, request: ClaimRequest, slices: list[Slice], now_ms: float) -> None:
        want = request.want
        while want > 0 and (part := self.rotation.next()):
            share = self.shares[part]
            quantum = max(1, int(QUANTUM_US / max(self.rotation.cost_us(share.part), 1.0)))
            want -= self._take(request, share, min(want, quantum), slices, now_ms)

    def _take(
        self,
        request: ClaimRequest,
        share: PartShare,
        most: int,
        slices: list[Slice],
        now_ms: float,
        name: str = "",
    ) -> int:
        """Lease up to `most` items of one chunk and add their slice to `slices`.

        The lease is named by the claim, and by `name` or a number. Returns the number of items.
        """
        found = share.take(min(most, request.each_max or most), self.suspects_running, now_ms)
        if found is None:
            self._put_aside(share, now_ms)
            return 0
        chunk, start, count, suspect = found
        cost_us = self.rotation.cost_us(share.part)
        attempt = f"{request.attempt}:{name or len(slices)}"
        until_ms = now_ms + request.lease_ms
        self.leases[attempt] = ClaimLease(
            share, chunk, start, RUNNING * count, until_ms, cost_us, suspect
        )
        self.suspects_running += suspect
        self.tally["claimed"] += count
        slices.append(share.slice(attempt, chunk, start, count))
        self.rotation.charge(share.part, cost_us * count)
        self._put(share, now_ms)
        return count

    def _put_aside(self, share: PartShare, now_ms: float) -> None:
        """Handle a part that has no item to hand out now.

        If the part has suspects, they must wait because too many other suspects run now: the part
        sleeps for a moment. Otherwise its last items were lost, and the part may have ended.
        """
        if not share.suspects:
            self._put(share, now_ms)
            return
        self.rotation.remove(share.part)
        self.sleeping[share.part.id] = now_ms + SUSPECT_PAUSE_MS

    def _lane_waiting(self, lane: str) -> int:
        return sum(self.shares[part].waiting for part in self.rotation.lanes[lane])

    # -- outcomes --------------------------------------------------------------------------

    def settle(
        self, outcomes: Sequence[Outcome], beats: Sequence[str], lease_ms: int, now_ms: float
    ) -> list[str]:
        lost = [o.attempt for o in outcomes if not self._settle(o, now_ms)]
        self.tally["fenced"] += len(lost)
        for attempt in beats:
            lease = self.leases.get(attempt)
            if lease is not None:
                lease.until_ms = now_ms + lease_ms
            elif attempt not in lost:
                lost.append(attempt)
        return lost

    def _settle(self, outcome: Outcome, now_ms: float) -> bool:
        lease = self.leases.get(outcome.attempt)
        if lease is None or len(outcome.marks) != len(lease.marks):
            return False
        setbacks = {setback.offset: setback for setback in outcome.setbacks}
        results = dict(outcome.results)
        settled = started = 0
        for offset, mark in enumerate(outcome.marks):
            if mark != RUNNING and lease.marks[offset] == RUNNING:
                settled += 1
                started += mark != BACK
                place = (lease.chunk, lease.start + offset)
                if mark == DONE:
                    lease.share.finish(place, results.get(offset))
                    self.tally["done"] += 1
                else:
                    self._mark(lease.share, place, mark, setbacks.get(offset), now_ms)
        lease.marks = "".join(
            new if old == RUNNING else old
            for old, new in zip(lease.marks, outcome.marks, strict=True)
        )
        self._correct(lease, outcome.used_us, settled, started)
        if RUNNING not in lease.marks:
            self._forget(outcome.attempt, lease)
        self._put(lease.share, now_ms)
        return True

    def _mark(
        self, share: PartShare, place: Place, mark: str, setback: Setback | None, now_ms: float
    ) -> None:
        why = setback or Setback(place[1])
        if mark == FAILED:
            share.fail(place, why.reason)
            self.tally["failed"] += 1
        elif mark in (RETRY, BACK):
            share.delay(place, now_ms + why.delay_ms, why.counted and mark == RETRY)
            self.tally["retried"] += mark == RETRY

    def _correct(self, lease: ClaimLease, used_us: int, settled: int, started: int) -> None:
        """Replace the estimated cost of `settled` items by the measured worker time `used_us`.

        The tenant was charged the estimate at the claim. The measured time also improves later
        estimates.
        """
        self.rotation.charge(lease.share.part, used_us - lease.cost_us * settled)
        self.tally["used_us"] += used_us
        if started:
            self.rotation.learn(lease.share.part, used_us / started)

    # -- chores and reads ------------------------------------------------------------------

    def chores(self, reported: Sequence[PartEnd], now_ms: float) -> Chores:
        for end in reported:
            if self.outbox.get(end.part) == end:
                del self.outbox[end.part]
        self.rotation.forget_all_savings()
        stale = [
            (share.part.id, share.part.batch, share.stamp)
            for share in self.shares.values()
            if share.state == "staged" and now_ms - share.staged_ms > STALE_MS
        ]
        return Chores(list(self.outbox.values()), stale)

    @property
    def is_idle(self) -> bool:
        has_parts = any(share.is_live or share.state == "staged" for share in self.shares.values())
        return not (has_parts or self.outbox or self.leases)

    def load(self, now_ms: float) -> PartitionLoad:
        ready = [s for s in self.shares.values() if s.counts_as_waiting]
        stamps = [max(s.stamp, s.part.start_ms) for s in ready if s.waiting]
        oldest_ms = min(stamps, default=0)
        weights = [(share.waiting, self.rotation.cost_us(share.part)) for share in ready]
        waiting = sum(count for count, _ in weights)
        cost_us = sum(count * cost for count, cost in weights)
        delayed = sum(share.delayed_after(now_ms) for share in ready)
        limited = sum(s.waiting - s.delayed_after(now_ms) for s in ready if s.part.limited)
        return PartitionLoad(
            runnable=waiting - delayed - limited,
            limited=limited,
            delayed=delayed,
            in_flight=sum(share.running for share in self.shares.values()),
            tenants=len({share.part.tenant for share in ready}),
            service_us=cost_us / waiting if waiting else 0.0,
            oldest_ms=max(int(now_ms - oldest_ms), 0) if oldest_ms else 0,
            workers=self.workers,
            **self.tally,
        )


Partitions = defaultdict[int, QueuePartition]


class MemoryQueue(Timed):
    """All partitions of a queue, as one process sees them."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.partitions: Partitions = defaultdict(QueuePartition)
        self.places: dict[str, Partitions] = {"": self.partitions}
        self.bells: list[Any] = []  # a `MemoryBell` of each process

    def held(self, partition: int) -> QueuePartition:
        """Return the partition at its spot, even if this place has given it away."""
        spot = spot_of(partition)
        return self.places.setdefault(spot.url, defaultdict(QueuePartition))[int(spot)]

    def at(self, partition: int) -> QueuePartition:
        """Return the partition at its spot. Raises `PlaceClosed` if this place gave it away."""
        queue = self.held(partition)
        queue.check_open(partition)
        return queue

    def seen_ms(self, partition: int) -> float:
        """Return the partition's slot time, for calls that only read. They do not store it."""
        return self._time(_slot(partition), self.at(partition).time).own_ms

    def now_ms(self, partition: int) -> float:
        """Advance the partition's slot time and return it."""
        queue = self.at(partition)
        queue.since = max(queue.since, spot_of(partition).since)
        queue.pass_time(self._time(_slot(partition), queue.time))
        return queue.time.own_ms if queue.time else 0.0

    def told_ms(self, partition: int) -> float:
        """Advance the partition's slot time and return it, so that the caller can remember it."""
        now_ms, known = self.now_ms(partition), self.at(partition).time
        self._witness.heard(_slot(partition), known.told_ms if known else 0.0)
        return now_ms

    async def stage(self, partition: int, part: Part, chunks: Sequence[Chunk]) -> PartitionLoad:
        queue, now_ms = self.at(partition), self.now_ms(partition)
        queue.stage(part, chunks, now_ms)
        return queue.load(now_ms)

    async def steer(
        self,
        partition: int,
        part: str,
        verb: Verb,
        lap: int = 0,
        since: int = 0,
        record: Batch | str | None = None,
    ) -> bool:
        queue = self.at(partition)
        found = queue.steer(part, verb, lap, since, record, self.now_ms(partition))
        if verb in ("release", "resume", "retry"):
            self.ring(partition)
        return found

    def ring(self, partition: int) -> None:
        """Wake all worker processes: the partition may have new items."""
        for bell in self.bells:
            bell.ring(partition)

    def hand_over(self, partition: int, bell: str, taken: Slice, now_ms: float) -> None:
        """Send a single to the process with this bell."""
        for each in self.bells:
            if each.address == bell:
                each.hand_over(Handover(int(partition), now_ms, taken))

    async def control(self, partition: int, controls: Controls) -> bool:
        self.at(partition).control(controls, self.now_ms(partition))
        return False

    async def claim(self, partition: int, request: ClaimRequest) -> Claimed:
        return self.at(partition).claim(request, self.told_ms(partition))

    async def settle(
        self, partition: int, outcomes: Sequence[Outcome], beats: Sequence[str], lease_ms: int
    ) -> list[str]:
        now_ms = self.now_ms(partition)
        return self.at(partition).settle(outcomes, beats, lease_ms, now_ms)

    async def chores(self, partition: int, reported: Sequence[PartEnd]) -> Chores:
        return self.at(partition).chores(reported, self.now_ms(partition))

    async def load(self, partition: int) -> PartitionLoad:
        return self.at(partition).load(self.seen_ms(partition))

    async def is_idle(self, partition: int) -> bool:
        return self.held(partition).is_idle

    async def part(self, partition: int, part: str) -> PartCounts | None:
        share = self.at(partition).shares.get(part)
        return share.counts(self.seen_ms(partition)) if share else None

    async def failures(self, partition: int, part: str, after: str, limit: int) -> list[FailedItem]:
        share = self.at(partition).shares.get(part)
        return share.failures_after(after, limit) if share else []

    async def results(
        self, partition: int, part: str, chunks: Sequence[tuple[int, int]], with_items: bool
    ) -> list[KeptChunk]:
        share = self.at(partition).shares.get(part)
        found: list[KeptChunk] = []
        size = 0
        if share is None:
            return found
        for number, count in chunks:
            kept = share.kept(number, count, with_items)
            found.append(kept)
            size += len(kept.body) + sum(len(body) for _, _, body in kept.results)
            if size >= RESULTS_PAGE_BYTES:
                break
        return found

    async def gaps(self, partition: int, part: str, chunks: int) -> list[Gap]:
        share = self.at(partition).shares.get(part)
        return share.gaps(chunks) if share else []

    async def live_parts(self, partition: int, after: str, limit: int) -> list[LivePart]:
        shares = self.at(partition).shares.values()
        live = sorted((share.part.id, share.part.batch) for share in shares if share.is_live)
        return [LivePart(*name) for name in live if name[0] > after][:limit]

    async def record_of(self, partition: int, part: str) -> Batch | None:
        shares = self.at(partition).shares
        share = shares.get(part)
        carrier = shares.get(share.carrier, share) if share else None
        return carrier.record if carrier else None


def _slot(partition: int) -> str:
    """Return the name of the partition's slot. At every place the slot has its own time."""
    return f"{partition:d}{spot_of(partition).url}"
