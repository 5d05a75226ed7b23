"""The parts of a queue partition: the states of their items, and which part is served next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Literal

from heatsink.bulk.batch import Batch, Gap, PartEnd, digest_of, digests_added
from heatsink.bulk.store import (
    Chunk,
    FailedItem,
    KeptChunk,
    Part,
    PartCounts,
    PartState,
    Slice,
    Verb,
)

LOSSES_MAX = 3
LOST = "the worker died {} times while the item ran"
SERVICE_US = 1_000.0  # assumed cost of an item until one has been measured
SERVICE_WEIGHT = 0.1
Place = tuple[int, int]  # chunk, offset in it
SUSPECTS_MAX = {1: 8}  # how many may run at once: 8 that lost one worker, otherwise 1


@dataclass
class PartShare:
    """A part and the states of its items: fresh, delayed, suspect, running or ended.

    A suspect is an item whose worker died while the item ran.
    """

    part: Part
    state: PartState = "staged"
    lap: int = 0
    since: int = 0
    stamp: int = 0
    staged_ms: float = 0.0
    chunks: dict[int, Chunk] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    next_chunk: int = 0
    next_offset: int = 0
    fresh: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0
    delayed: dict[Place, float] = field(default_factory=dict)
    suspects: list[Place] = field(default_factory=list)
    tries: dict[Place, int] = field(default_factory=dict)
    losses: dict[Place, int] = field(default_factory=dict)
    failures: dict[Place, str] = field(default_factory=dict)
    staged: int = 0
    digest: int = 0
    lost: int = 0
    missing: list[Gap] = field(default_factory=list)
    record: Batch | None = None
    carrier: str = ""
    """The part in this partition whose copy of the record this part shares; empty if it has one."""
    recorded: int = 0
    results: dict[Place, tuple[int, bytes]] = field(default_factory=dict)
    is_single: bool = False
    """Whether this is the part of a batch of one item, whose record is at the same place."""
    is_early: bool = False
    """Whether the part sleeps until its start time. Its items do not count as waiting."""
    held: Literal["", "tenant", "action"] = ""
    """Which of the two is paused, if the part is held back. Its items do not count as waiting."""

    @property
    def is_live(self) -> bool:
        """Whether the part was released and has not ended."""
        return self.state in ("ready", "paused", "cancelled")

    @property
    def waiting(self) -> int:
        return self.fresh + len(self.delayed) + len(self.suspects)

    @property
    def size(self) -> int:
        ended = self.done + self.failed + self.cancelled + self.lost
        return self.waiting + ended + self.running

    def may_run_suspect(self, running: int) -> bool:
        """Return whether one more suspect may start.

        `running` is the number of suspects of the partition that run now.
        """
        return bool(self.suspects) and running < SUSPECTS_MAX.get(self.losses[self.suspects[0]], 1)

    def add(self, chunk: Chunk) -> None:
        if chunk.number not in self.chunks:
            self.chunks[chunk.number] = chunk
            self.left[chunk.number] = chunk.count
            self.fresh += chunk.count
            self.staged += 1
            self.digest = digests_added(self.digest, digest_of(chunk.body))

    def keep(self, record: Batch | str, version: int) -> None:
        """Keep a copy of the batch's record, or the id of the part that has it, unless the copy is
        newer than this `version`.

        If the record itself is lost, it can be restored from this copy.
        """
        if version >= self.recorded:
            self.recorded = version
            self.record, self.carrier = (None, record) if isinstance(record, str) else (record, "")

    # -- operators' commands ---------------------------------------------------------------

    def steer(self, verb: Verb, lap: int, since: int) -> bool:
        """Apply an operator's command. Returns whether the part changed.

        A command that is older than the last one (`since`) is ignored.
        """
        if self.state == "staged" and verb in ("release", "pause", "cancel"):
            self.lap = lap
        if verb == "release":
            return self._release()
        if since < self.since:
            return False
        self.since = since
        if verb == "pause" and self.state in ("ready", "staged"):
            self.state = "paused"
        elif verb == "resume" and self.state == "paused":
            self.state = "ready"
        elif verb == "cancel" and self.state in ("ready", "paused", "staged"):
            self._cancel()
        elif verb == "retry" and self.lap < lap:
            self._retry(lap)
        else:
            return False
        return True

    def _release(self) -> bool:
        if self.state != "staged":
            return False
        self.state = "ready"
        return True

    def _cancel(self) -> None:
        self.state = "cancelled"
        self.cancelled += self.waiting
        self.fresh = 0
        untouched = self.next_chunk + (self.next_offset > 0)
        self.chunks = {n: chunk for n, chunk in self.chunks.items() if n < untouched}
        self.delayed.clear()
        self.suspects.clear()

    def _retry(self, lap: int) -> None:
        """Queue all failed items again, as if they had never run. `lap` numbers the retries."""
        self.lap = lap
        self.state = "ready"
        for place in self.failures:
            self.delayed[place] = 0.0
            self.tries.pop(place, None)
            self.losses.pop(place, None)
        self.failed = 0
        self.failures.clear()

    @property
    def counts_as_waiting(self) -> bool:
        """Whether items of this part that wait could run as soon as there is a worker for them."""
        return self.state == "ready" and not self.is_early and not self.held

    # -- claims ----------------------------------------------------------------------------

    def due_ms(self, now_ms: float) -> float | None:
        """Return the time from which the next item can be claimed. None if no item waits."""
        if self.part.start_ms > now_ms and self.waiting:
            return self.part.start_ms
        if self.fresh or self.suspects:
            return now_ms
        return min(self.delayed.values(), default=None)

    def take(
        self, most: int, suspects_running: int, now_ms: float
    ) -> tuple[int, int, int, bool] | None:
        """Take up to `most` items: delayed items that are due, or a suspect, or fresh items.

        Returns (chunk, offset of the first item, number of items, whether it is a suspect), or None
        if no item can run now. Items whose chunk is gone count as lost, so that they do not delay
        other items.
        """
        while (found := self._next(most, suspects_running, now_ms)) and found[0] not in self.chunks:
            chunk, start, count, _ = found
            self.running -= count
            self.lost += count
            self.missing.append((chunk, start, count))
        return found

    def _next(
        self, most: int, suspects_running: int, now_ms: float
    ) -> tuple[int, int, int, bool] | None:
        due = min(self.delayed, key=lambda place: (self.delayed[place], place), default=None)
        if due is not None and self.delayed[due] <= now_ms:
            return self._take_due(due, most, now_ms)
        if self.may_run_suspect(suspects_running):
            return self._run(self.suspects.pop(0), 1, suspect=True)
        self._skip_gaps()
        return self._take_fresh(most) if self.fresh else None

    def _skip_gaps(self) -> None:
        while self.fresh and self.next_chunk not in self.chunks:
            if self.next_chunk >= self.staged:  # no chunk is left: the remaining items are lost
                self.lost += self.fresh
                self.fresh = 0
                return
            self.missing.append((self.next_chunk, self.next_offset, -1))
            self.next_chunk, self.next_offset = self.next_chunk + 1, 0

    def _take_due(self, first: Place, most: int, now_ms: float) -> tuple[int, int, int, bool]:
        """Take the due item `first`, and the items after it that can share a slice with it."""
        chunk, start = first
        count = 1
        while count < most and self._rides_along(first, (chunk, start + count), now_ms):
            count += 1
        for offset in range(start, start + count):
            del self.delayed[chunk, offset]
        return self._run(first, count, suspect=False)

    def _rides_along(self, first: Place, place: Place, now_ms: float) -> bool:
        """Return whether the item at `place` can share a slice with the item `first`.

        Both items must be due and must have had the same number of attempts. An item whose worker
        died never shares a slice, since this item may have killed the worker.
        """
        return (
            self.delayed.get(place, inf) <= now_ms
            and self.tries.get(place, 0) == self.tries.get(first, 0)
            and first not in self.losses
            and place not in self.losses
        )

    def _take_fresh(self, most: int) -> tuple[int, int, int, bool]:
        chunk = self.chunks[self.next_chunk]
        count = min(most, chunk.count - self.next_offset)
        place = (self.next_chunk, self.next_offset)
        self.fresh -= count
        self.next_offset += count
        if self.next_offset == chunk.count:
            self.next_chunk, self.next_offset = self.next_chunk + 1, 0
        return self._run(place, count, suspect=False)

    def _run(self, place: Place, count: int, suspect: bool) -> tuple[int, int, int, bool]:
        self.running += count
        return *place, count, suspect

    def slice(self, attempt: str, chunk: int, start: int, count: int) -> Slice:
        part = self.part
        return Slice(
            attempt=attempt,
            part=part.id,
            batch=part.batch,
            tenant=part.tenant,
            action=part.action,
            lane=part.lane,
            limited=part.limited,
            submitted_ms=part.submitted_ms,
            start=start,
            count=count,
            tries=self.tries.get((chunk, start), 0),
            body=self.chunks[chunk].body,
            result_bytes=part.result_bytes,
        )

    # -- outcomes --------------------------------------------------------------------------

    def finish(self, place: Place, result: bytes | None = None) -> None:
        self.running -= 1
        self.done += 1
        if self.part.result_bytes and result is not None:
            self.results[place] = (self.lap, result)
        self._let_go(place)

    def _let_go(self, place: Place) -> None:
        self.tries.pop(place, None)
        self.losses.pop(place, None)
        self.left[place[0]] -= 1
        if not self.left[place[0]] and not self.part.keeps_items:
            self.chunks.pop(place[0], None)

    def fail(self, place: Place, reason: str) -> None:
        """Record that an item failed. Keep its chunk, so that people can see and retry the item."""
        self.running -= 1
        self.failed += 1
        self.tries[place] = self.tries.get(place, 0) + 1
        self.failures[place] = reason

    def delay(self, place: Place, due_ms: float, counted: bool) -> None:
        self.running -= 1
        if self.state == "cancelled":
            self.cancelled += 1
            return
        if counted:
            self.tries[place] = self.tries.get(place, 0) + 1
        self.delayed[place] = due_ms

    def lose(self, place: Place) -> bool:
        """Record that the worker of an item died. Returns whether the item failed for good."""
        losses = self.losses[place] = self.losses.get(place, 0) + 1
        if self.state == "cancelled":
            self.running -= 1
            self.cancelled += 1
        elif losses >= LOSSES_MAX:
            self.fail(place, LOST.format(losses))
            return True
        else:
            self.running -= 1
            self.suspects.append(place)
        return False

    # -- reads -----------------------------------------------------------------------------

    def ends(self) -> bool:
        return self.is_live and not self.waiting + self.running

    def end(self) -> PartEnd:
        """Return the final counts of the part.

        If items were cancelled, drop all chunks that contain no failed item.
        """
        part = self.part
        if self.cancelled:
            kept = {chunk for chunk, _ in self.failures}
            self.chunks = {n: chunk for n, chunk in self.chunks.items() if n in kept}
        return PartEnd(part.batch, part.id, self.lap, self.done, self.failed, self.cancelled)

    def counts(self, now_ms: float) -> PartCounts:
        return PartCounts(
            self.state,
            self.size,
            self.done,
            self.failed,
            self.cancelled,
            self.running,
            len(self.delayed),
            self.lost,
            self.lap,
            self.digest,
            self.staged,
            self.recorded,
            self.delayed_after(now_ms),
            max(ceil(max(self.delayed.values(), default=now_ms) - now_ms), 0),
            self.held,
        )

    def gaps(self, chunks: int) -> list[Gap]:
        """Return the ranges of missing items, for a part that was staged with `chunks` chunks."""
        ahead = (n for n in range(self.next_chunk, chunks) if n not in self.chunks)
        return self.missing + [(n, self.next_offset * (n == self.next_chunk), -1) for n in ahead]

    def kept(self, number: int, count: int, with_items: bool) -> KeptChunk:
        found = [
            (offset, *self.results[number, offset])
            for offset in range(count)
            if (number, offset) in self.results
        ]
        chunk = self.chunks.get(number) if with_items and found else None
        return KeptChunk(number, found, chunk.body if chunk else b"")

    def delayed_after(self, now_ms: float) -> int:
        return sum(due_ms > now_ms for due_ms in self.delayed.values())

    def failures_after(self, after: str, limit: int) -> list[FailedItem]:
        names = sorted(
            (f"{chunk:08d}:{offset:04d}", (chunk, offset)) for chunk, offset in self.failures
        )
        later = [(name, place) for name, place in names if name > after][:limit]
        return [
            FailedItem(
                name,
                place[1],
                self.tries.get(place, 0),
                self.failures[place],
                self.chunks[place[0]].body if place[0] in self.chunks else b"",
            )
            for name, place in later
        ]


@dataclass
class Rotation:
    """Decides which part is served next.

    A tenant's virtual time is the worker time that the tenant used, divided by its weight. The
    tenant with the least virtual time is served next. Of this tenant's parts, the part with the
    lowest score is served first: the score depends on priority, age and remaining work. The cost of
    an item is estimated per action, by a moving average of measured times.

    A tenant that returns after a pause starts at the virtual time of the tenant that was served
    last. So it gets no credit for the pause. Rate-limited parts wait in their lanes, and get served
    only by grants.
    """

    lanes: dict[str, dict[str, float]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights in place of those of the parts, by tenant."""
    _service_us: dict[str, float] = field(default_factory=dict)
    _tenants: dict[str, dict[str, float]] = field(default_factory=dict)
    _times: dict[str, float] = field(default_factory=dict)
    _now: float = 0.0

    @property
    def has_tenants(self) -> bool:
        return bool(self._tenants)

    def has_only(self, part: Part) -> bool:
        """Return whether this part waits, and no other one."""
        return list(self._tenants) == [part.tenant] and list(self._tenants[part.tenant]) == [
            part.id
        ]

    def cost_us(self, part: Part) -> float:
        return self._service_us.get(part.action, SERVICE_US)

    def learn(self, part: Part, each_us: float) -> None:
        known = self._service_us.get(part.action, each_us)
        self._service_us[part.action] = known + SERVICE_WEIGHT * (each_us - known)

    def learned(self) -> dict[str, float]:
        """Return the measured time of each action, for the place to which the partition moves."""
        return dict(self._service_us)

    def take_over(self, service_us: dict[str, float]) -> None:
        self._service_us |= service_us

    def _score(self, share: PartShare) -> float:
        """Return the part's score.

        Of a tenant's parts, the one with the lowest score is served first.

        It is the time of submission, or the later start time, plus the estimated remaining work, in
        seconds. A part with a higher priority comes before all parts with a lower one.
        """
        part, work_s = share.part, share.waiting * self.cost_us(share.part) / 1e6
        return max(part.submitted_ms, part.start_ms) / 1000 + work_s - part.priority * 1e9

    def add(self, share: PartShare) -> None:
        part, score = share.part, self._score(share)
        if part.limited:
            self.lanes.setdefault(part.lane, {})[part.id] = score
            return
        if part.tenant not in self._tenants:
            self._times[part.tenant] = max(self._times.get(part.tenant, 0.0), self._now)
        self._tenants.setdefault(part.tenant, {})[part.id] = score

    def remove(self, part: Part) -> None:
        lines, name = (self.lanes, part.lane) if part.limited else (self._tenants, part.tenant)
        line = lines.get(name, {})
        line.pop(part.id, None)
        if not line:
            lines.pop(name, None)
            self._forget_savings(part.tenant)

    def _forget_savings(self, tenant: str) -> None:
        if tenant not in self._tenants and self._times.get(tenant, 0.0) <= self._now:
            self._times.pop(tenant, None)

    def forget_all_savings(self) -> None:
        """Forget tenants without waiting parts whose virtual time is below the current one.

        If such a tenant returns, it starts at the current virtual time anyway, so nothing is lost.
        """
        for tenant in [name for name in self._times if name not in self._tenants]:
            self._forget_savings(tenant)

    def next(self) -> str | None:
        """Return the id of the part to serve next; None if no tenant waits.

        It is the part with the lowest score, of the tenant with the least virtual time.
        """
        if not self._tenants:
            return None
        tenant = min(self._tenants, key=lambda name: (self._times[name], name))
        self._now = max(self._now, self._times[tenant])
        return _first(self._tenants[tenant])

    def first_of_lane(self, lane: str) -> str | None:
        line = self.lanes.get(lane)
        return _first(line) if line else None

    def charge(self, part: Part, cost_us: float) -> None:
        paid = self._times.get(part.tenant, self._now)
        weight = self.weights.get(part.tenant, part.weight)
        self._times[part.tenant] = max(paid + cost_us / weight, 0.0)
        if part.limited and not self._tenants:  # no other tenant had to wait for this one
            self._now = max(self._now, self._times[part.tenant])


def _first(line: dict[str, float]) -> str:
    return min(line, key=lambda id: (line[id], id))
