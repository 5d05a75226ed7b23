"""The claimed items of one partition in this process: slices under lease, and rate-limited lanes.

The `Ledger` holds the slices, and the outcomes that this process has not yet sent to the store.

A rate-limited item waits in a lane for its start time. This process reserves start times in the
Redis slot that keeps the rate limit's state. It claims items and reserves times slightly in
advance, with one call for all lanes, so that a fast lane does not need a call per start. An item
begins when its start time has come and a worker is free. A start time that is not used within
`LATE_MS` expires, and its item waits for another start time. So delays in this process never break
the rate limit. If this process knows the slot's clock only roughly, it tells the slot with each
booking how late its starts may be.

A lane whose items only need places at limits has no rate. For such a lane, the slot says for how
long items may start without start times (a `Pass`). So an item that has its places starts without
another call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import ceil
from typing import Any, NamedTuple

import msgspec

from heatsink.bulk.batch import unpacked
from heatsink.bulk.limits import Need, Needs, lane_and_needs
from heatsink.bulk.store import (
    BACK,
    BOOKED_MS_MAX,
    FAILED,
    LATE_MS,
    RUNNING,
    Grants,
    LaneDepth,
    LimitStore,
    Outcome,
    Setback,
    Slice,
)
from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import Clock

from .home_clock import HomeClock
from .places import LimitPlaces

logger = logging.getLogger("heatsink")
UNREADABLE = "the item's chunk cannot be read: the queue's data is damaged"
AHEAD_MS = int(BOOKED_MS_MAX)
LEAD_S = 0.05  # how long before they are needed items are claimed and starts booked, and more if
ANSWERS_AHEAD = 2  # the store answers slowly: a call may have to wait until another is answered
ANSWER_S_MAX = 0.1
READY_S = 0.1  # a claim takes the items that start within this time
RETRY_S = 0.25
ASK_AGAIN_S = (0.01, 2.0)  # bounds of the pause when no start is free: the rate may be raised
ENDING_MIN = 0.01
NEWS_BYTES = 4 << 20  # results per call to the store; larger calls would hold up other calls
NEVER = float("inf")
_RUNNING, _BACK, _FAILED = ord(RUNNING), ord(BACK), ord(FAILED)
_encoded = msgspec.msgpack.Encoder().encode
_decoded = msgspec.msgpack.Decoder(Setback).decode


# -- slices under lease ------------------------------------------------------------------------


class Held:
    """One claimed slice of items, and its lease.

    If the items need places at limits, `lanes` has the lane of each item.
    """

    __slots__ = (
        *("_marks", "indexes", "items", "lanes", "lost", "open", "results", "sent", "setbacks"),
        *("slice", "used_s"),
    )

    def __init__(self, claimed: Slice) -> None:
        self.slice = claimed
        self.indexes: Sequence[int] = ()
        self.items: list[Any] = []
        self.lanes: list[str] = []
        self.open = claimed.count
        self.lost = False
        self.used_s = 0.0
        self.setbacks: list[Setback] = []
        self.results: dict[int, bytes] = {}  # that the store has not confirmed
        self.sent: Outcome | None = None
        self._marks = bytearray(RUNNING * claimed.count, "ascii")

    def unpack(self) -> None:
        """Decode the items.

        If the chunk cannot be read, its items fail, so that the batch can go on.
        """
        claimed = self.slice
        try:
            indexes, items = unpacked(claimed.body)
            self.indexes = indexes[claimed.start : claimed.start + claimed.count]
            self.items = items[claimed.start : claimed.start + claimed.count]
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            logger.error("a chunk of batch %r cannot be read: %s", claimed.batch, error)
        for offset in range(len(self.items), claimed.count):
            self.mark(offset, _FAILED, 0.0, Setback(offset, UNREADABLE))

    def keep(self, offset: int, result: bytes) -> None:
        """Keep the result of an item that is going to be marked as done."""
        if self._marks[offset] == _RUNNING:
            self.results[offset] = result

    def mark(self, offset: int, mark: int, used_s: float, setback: Setback | None = None) -> bool:
        """Set the outcome of the item at `offset`.

        Returns False if the item has an outcome already, so that no item counts twice.
        """
        if self._marks[offset] != _RUNNING:
            return False
        self._marks[offset] = mark
        self.open -= 1
        self.used_s += used_s
        if setback is not None:
            self.setbacks.append(setback)
        return True

    def mend(self) -> None:
        """Replace setbacks that cannot be encoded, so that all other setbacks can be sent."""
        self.setbacks = [_sound(setback) for setback in self.setbacks]

    def outcome(self) -> Outcome:
        return Outcome(
            self.slice.attempt,
            self._marks.decode(),
            int(self.used_s * 1e6),
            list(self.setbacks),
            list(self.results.items()),
        )


Place = tuple[Held, int]
"""A slice, and the offset of an item in it."""


def _sound(setback: Setback) -> Setback:
    try:
        return _decoded(_encoded(setback))
    except (ValueError, TypeError, OverflowError):
        return Setback(setback.offset, "the failure's reason cannot be stored", 0, setback.counted)


class Ledger:
    """All slices that this process holds; `take_news` returns the outcomes to send to the store."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._changed: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def attempts(self) -> list[str]:
        return list(self._held)

    @property
    def has_news(self) -> bool:
        return bool(self._changed)

    def take(self, slices: Iterable[Slice]) -> list[Held]:
        """Add claimed slices. Returns the slices that have items to run."""
        taken = [Held(claimed) for claimed in slices]
        for held in taken:
            held.unpack()
            self._held[held.slice.attempt] = held
            if held.open < held.slice.count:
                self.changed(held)
        return [held for held in taken if held.open]

    def changed(self, held: Held) -> None:
        self._changed[held.slice.attempt] = held

    def give_back(self, held: Held, offset: int) -> None:
        """Mark an item as not started, so that another worker may run it immediately."""
        if held.mark(offset, _BACK, 0.0):
            self.changed(held)

    def take_news(self) -> list[tuple[Held, Outcome]]:
        """Return the outcomes to send next, with about `NEWS_BYTES` of results at most."""
        news, size = [], 0
        while self._changed and size < NEWS_BYTES:
            held = self._changed.pop(next(iter(self._changed)))
            size += sum(map(len, held.results.values()))
            news.append((held, held.outcome()))
            held.used_s = 0.0
        return news

    def put_back(self, news: Iterable[tuple[Held, Outcome]]) -> None:
        """Keep outcomes that the store did not acknowledge, to send them again.

        Sending an outcome twice is safe, since the store counts each item once.
        """
        for held, outcome in news:
            held.used_s += outcome.used_us / 1e6
            self._changed.setdefault(held.slice.attempt, held)

    def sent(self, news: Iterable[tuple[Held, Outcome]]) -> None:
        """Remember that the store has these outcomes, and drop the slices that have ended."""
        for held, outcome in news:
            held.sent = outcome
            for offset, _ in outcome.results:
                held.results.pop(offset, None)
            if RUNNING not in outcome.marks:
                self._held.pop(held.slice.attempt, None)

    def lose(self, attempts: Iterable[str]) -> int:
        """Drop slices whose lease was lost. Returns how many of them had items without outcome."""
        lost = [self._held.pop(attempt, None) for attempt in attempts]
        for held in lost:
            if held is not None:
                held.lost = True
                self._changed.pop(held.slice.attempt, None)
        return sum(held is not None and held.open > 0 for held in lost)


# -- lanes with a rate -------------------------------------------------------------------------


class Start(NamedTuple):
    from_s: float
    by_s: float
    size: int


@dataclass
class Pass:
    """Until `by_s`, items of these lanes may start without start times: the lanes have no rate."""

    by_s: float = 0.0


@dataclass
class Lane:
    """A rate-limited lane: each of its items needs a start time, booked in advance in `starts`.

    `waiting` is the number of items that are not claimed yet. `items` holds the claimed items that
    have not started. The last booking took `took_s`. The largest grant so far was for `grant`
    items. If the items need places at limits (`needs`), `permits` is the number of items for which
    the lane already has all places, and `running` items have started. `ahead` items are claimed for
    places that will soon be free. Start times are booked under `base`, the lane's name without the
    needs. All lanes of a `base` share the `free` pass, which is in force if the lane `is_free`.
    """

    starts: deque[Start] = field(default_factory=deque)
    items: deque[Place] = field(default_factory=deque)
    waiting: int = 0
    retry_s: float = 0.0
    took_s: float = 0.0
    grant: int = 1
    clock: HomeClock = field(default_factory=HomeClock)
    base: str = ""
    needs: Needs = ()
    permits: int = 0
    running: int = 0
    ahead: int = 0
    free: Pass = field(default_factory=Pass)
    is_free: bool = False

    @property
    def work(self) -> int:
        """How many items wait here or in the store."""
        return self.waiting + len(self.items)

    def forfeit(self, now_s: float) -> None:
        self.is_free = now_s < self.free.by_s
        while self.starts and self.starts[0].by_s <= now_s:
            self.starts.popleft()

    @property
    def startable(self) -> int:
        """How many items wait for nothing but a start time: they have places at all limits."""
        return min(self.work, self.permits) if self.needs else self.work

    @property
    def lead_s(self) -> float:
        """How early to claim items and to book starts, before workers need them."""
        return LEAD_S + ANSWERS_AHEAD * min(self.took_s, ANSWER_S_MAX)

    @property
    def start_s(self) -> float:
        """When the next claimed item may start; `NEVER` without item, start time or permit."""
        if self.needs and not self.permits:
            return NEVER
        if not self.items:
            return NEVER
        if self.is_free:
            return 0.0
        return self.starts[0].from_s if self.starts else NEVER

    def after(self, now_s: float) -> float:
        """Return the first booked start time after `now_s`; `NEVER` if there is none."""
        return next((start.from_s for start in self.starts if start.from_s > now_s), NEVER)

    def booked(self, until_s: float) -> int:
        """Return how many items may start by `until_s` at the start times booked so far."""
        if self.is_free:
            return self.startable
        due = takewhile(lambda start: start.from_s <= until_s, self.starts)
        return sum(start.size for start in due)

    @property
    def claim_s(self) -> float:
        """The time at which to claim more items: shortly before a start time that has no item yet.

        `NEVER` if all booked start times have claimed items, or if no item is left to claim.
        """
        if not self.waiting:
            return NEVER
        if self.is_free:
            return 0.0 if self.lacks(0.0) else NEVER
        spare = len(self.items)
        for start in self.starts:
            spare -= start.size
            if spare < 0:
                return start.from_s - self.lead_s
        return NEVER

    def lacks(self, until_s: float) -> int:
        """Return how many more items to claim for the booked start times up to `until_s`."""
        ahead = self.ahead if self.is_free else 0
        return min(max(self.booked(until_s) + ahead - len(self.items), 0), self.waiting)

    @property
    def unbooked(self) -> int:
        return self.startable - self.booked(NEVER)

    @property
    def book_s(self) -> float:
        """The time at which to book more start times: shortly before the last booked start time.

        `NEVER` if all items have start times. A pass is renewed while items start.
        """
        if self.is_free and (self.startable or (self.running and self.work)):
            return max(self.retry_s, self.free.by_s - self.lead_s)
        if self.unbooked <= 0:
            return NEVER
        return max(self.retry_s, self.starts[-1].from_s - self.lead_s if self.starts else 0.0)

    def lasts(self, now_s: float) -> bool:
        """Return whether the last booked start is later than the answer to a booking begun now."""
        return bool(self.starts) and self.starts[-1].from_s > now_s + self.took_s

    def take(self, now_s: float, most: int) -> list[Place]:
        """Remove and return up to `most` items that may start now."""
        taken: list[Place] = []
        if self.needs:
            most = min(most, self.permits)
        if self.is_free:
            taken += [self.items.popleft() for _ in range(min(most, len(self.items)))]
        while self.start_s <= now_s and len(taken) < most:
            start = self.starts.popleft()
            count = min(start.size, most - len(taken), len(self.items))
            taken += [self.items.popleft() for _ in range(count)]
            if count < start.size:
                self.starts.appendleft(start._replace(size=start.size - count))
        if self.needs:
            self.permits -= len(taken)
            self.running += len(taken)
        return taken


class Lanes:
    """All rate-limited lanes of one partition."""

    def __init__(self, limits: LimitStore, clock: Clock, places: LimitPlaces | None = None) -> None:
        self._limits = limits
        self._places = places
        self._clock = clock
        self._lanes: dict[str, Lane] = {}
        self._passes: dict[str, Pass] = {}
        self.ending = 0.0
        """The share of the running items that will have ended when the store answers a claim."""
        self.idle_until_s = NEVER

    # -- starts ----------------------------------------------------------------------------

    def learn(self, depths: Iterable[LaneDepth]) -> None:
        """Update how many items of each lane wait in the store to be claimed."""
        known = {depth.lane: depth.waiting for depth in depths}
        names = {**known, **{n: 0 for n, lane in self._lanes.items() if lane.items}}
        self._lanes = {name: self._lanes.get(name) or self._new_lane(name) for name in names}
        for name, lane in self._lanes.items():
            lane.waiting = known.get(name, 0)
        bases = {lane.base for lane in self._lanes.values()}
        self._passes = {base: each for base, each in self._passes.items() if base in bases}

    def _new_lane(self, name: str) -> Lane:
        base = lane_and_needs(name)[0] if self._places else name
        needs = self._places.book.needs(name) if self._places else ()
        return Lane(base=base, needs=needs, free=self._passes.setdefault(base, Pass()))

    async def book(self, room: int, run: int) -> None:
        """Book start times for the lanes that will soon have none.

        `room` is the number of items that free workers can run. More start times than that would
        expire unused, although other partitions could have used them. A lane books for at most
        `run` items at a time, so that all partitions get start times. The exception is a lane whose
        booked start times would be used up before the store answers: this lane books for more than
        `run` items.
        """
        now_s = self._clock.monotonic_s()
        soon = sum(lane.booked(now_s + READY_S) for lane in self._lanes.values())
        most = max(room - soon, 1)
        self._forfeit()
        needy = self._needy(now_s)
        counts = [
            min(most, run) if lane.lasts(now_s) else max(most, lane.grant) for _, lane in needy
        ]
        calls = (self._reserve(*each, count) for each, count in zip(needy, counts, strict=True))
        await asyncio.gather(*calls)

    def _needy(self, now_s: float) -> list[tuple[str, Lane]]:
        """Return the lanes that need start times. Of lanes that share a pass, one renews it."""
        needy = [each for each in self._lanes.items() if each[1].book_s <= now_s]
        renewing = {lane.base: (name, lane) for name, lane in needy if lane.is_free}
        return [*renewing.values(), *(each for each in needy if not each[1].is_free)]

    @property
    def book_s(self) -> float:
        """When to call `book` the next time."""
        return min((lane.book_s for lane in self._lanes.values()), default=NEVER)

    async def _reserve(self, name: str, lane: Lane, most: int) -> None:
        asked_s = self._clock.monotonic_s()
        try:
            starts = max(min(lane.unbooked, most), 1)
            grants = await self._booked(lane.base or name, starts, lane.clock)
        except HeatsinkError as error:
            logger.info("booking start times for a rate-limited lane failed: %s", error)
            lane.retry_s = self._clock.monotonic_s() + RETRY_S
            return
        lane.took_s = self._clock.monotonic_s() - asked_s
        lane.free.by_s = asked_s + grants.free_ms / 1000 if grants.free_ms else 0.0
        if grants.free_ms:
            self.idle_until_s = 0.0
            return
        lane.grant = max(lane.grant, grants.size)
        if not grants.wait_ms:
            pause_s = min(max(grants.then_ms / 2000, ASK_AGAIN_S[0]), ASK_AGAIN_S[1])
            lane.retry_s = self._clock.monotonic_s() + pause_s
        for wait_ms in grants.wait_ms:
            window = lane.clock.window((grants.now_ms + wait_ms) / 1000)
            lane.starts.append(Start(*window, grants.size))
        self.idle_until_s = 0.0

    async def _booked(self, name: str, starts: int, clock: HomeClock) -> Grants:
        """Book start times. If the clock of the limit's home slot is unknown, ask for it first.

        If the slot's clock was set since the last answer, this booking may have understated how
        late its starts may be. So they expire unused, and the call books again.
        """
        while True:
            wanted = starts if clock.is_known else 0
            asked_s = self._clock.monotonic_s()
            late_ms = clock.late_s(asked_s) * 1000 if wanted else LATE_MS
            grants = await self._limits.reserve(name, wanted, AHEAD_MS, late_ms)
            agrees = clock.learn(grants.now_ms / 1000, asked_s, self._clock.monotonic_s())
            if agrees and wanted:
                return grants

    # -- items -----------------------------------------------------------------------------

    @property
    def claim_s(self) -> float:
        """The time at which to claim the next items: the earliest `claim_s` of all lanes."""
        self._forfeit()
        return min((lane.claim_s for lane in self._lanes.values()), default=NEVER)

    def _forfeit(self, lanes: Iterable[Lane] | None = None) -> float:
        now_s = self._clock.monotonic_s()
        for lane in self._lanes.values() if lanes is None else lanes:
            lane.forfeit(now_s)
            lane.ahead = ceil(lane.running * self.ending) if self.ending > ENDING_MIN else 0
        return now_s

    def lacking(self, room: int) -> dict[str, int]:
        """Return how many items to claim now, by lane.

        The sum is at most `room`. Lanes with the earliest `claim_s` come first.
        """
        now_s = self._forfeit()
        due = sorted((lane.claim_s, name) for name, lane in self._lanes.items())
        if not due or due[0][0] > now_s:
            return {}
        lacks: dict[str, int] = {}
        for _, name in due:
            lane = self._lanes[name]
            count = min(lane.lacks(now_s + lane.lead_s + LEAD_S), room)
            if count > 0:
                lacks[name] = count
                room -= count
        return lacks

    def put(self, held: Held) -> None:
        for offset in range(len(held.items)):
            name = held.lanes[offset] if held.lanes else held.slice.lane
            if name not in self._lanes:
                self._lanes[name] = self._new_lane(name)
            self._lanes[name].items.append((held, offset))
        self.idle_until_s = 0.0

    @property
    def held(self) -> int:
        return sum(len(lane.items) for lane in self._lanes.values())

    @property
    def startable(self) -> int:
        """How many claimed items could get a worker, since they wait for no place at a limit.

        If items that wait for places counted, they would use up the pump's room for claimed items.
        Then the pump could not claim items of lanes that have places, and all would wait for ever.
        """
        lanes = self._lanes.values()
        return sum(min(len(each.items), each.startable) for each in lanes)

    # -- starting --------------------------------------------------------------------------

    def take(self, together: Callable[[str], int]) -> list[Place]:
        """Remove and return the items that one free worker runs now, all of one lane.

        `together(action)` is the most items that the handler takes. Empty: no item may start.
        """
        if self._clock.monotonic_s() < self.idle_until_s:
            return []
        ready = [lane for lane in self._lanes.values() if lane.items]  # few of many lanes
        now_s = self._forfeit(ready)
        self.idle_until_s = min((lane.start_s for lane in ready), default=NEVER)
        if now_s < self.idle_until_s:
            return []
        lane = min(ready, key=lambda lane: lane.start_s)
        if lane.needs and self._places is not None:
            if not self._places.is_valid(lane.needs):
                lane.permits, self.idle_until_s = 0, 0.0
                return []
            taken = lane.take(now_s, together(lane.items[0][0].slice.action))
            self._places.started(lane.needs, len(taken))
            return taken
        return lane.take(now_s, together(lane.items[0][0].slice.action))

    # -- places at limits ------------------------------------------------------------------

    @property
    def placed(self) -> list[Lane]:
        """The lanes whose items need places at limits."""
        return [lane for lane in self._lanes.values() if lane.needs]

    def needs_of(self, places: Iterable[Place]) -> set[Need]:
        """Return the places at limits that these items need."""
        if self._places is None:
            return set()
        names = {held.lanes[offset] for held, offset in places if held.lanes}
        return {need for name in names for need in self._places.book.needs(name)}

    def ended(self, places: Iterable[Place], is_elsewhere: bool = False) -> None:
        """Return the places of ended items; a lane may keep them, except if `is_elsewhere`."""
        for held, offset in places:
            if not held.lanes or self._places is None:
                continue
            name = held.lanes[offset]
            lane = self._lanes.get(name)
            if lane is not None:
                lane.running = max(lane.running - 1, 0)
            lane = None if is_elsewhere else lane
            needs = self._places.book.needs(name)
            if needs and self._places.ended(needs, lane) and lane is not None:
                lane.permits += 1
                self.idle_until_s = 0.0

    def due(self) -> tuple[int, float]:
        """Return how many items may start now, and the next start time after now."""
        ready = [lane for lane in self._lanes.values() if lane.items]
        now_s = self._forfeit(ready)
        counts = (min(lane.booked(now_s), len(lane.items)) for lane in ready)
        most = (lane.permits if lane.needs else len(lane.items) for lane in ready)
        count = sum(map(min, counts, most))
        return count, min((lane.after(now_s) for lane in ready), default=NEVER)

    def clear(self, which: Callable[[Slice], bool] | None = None) -> list[Place]:
        """Remove and return items that have not started: all, or those of some slices."""
        places = [place for lane in self._lanes.values() for place in lane.items]
        if which is None:
            self._lanes.clear()
            return places
        for lane in self._lanes.values():
            lane.items = deque(place for place in lane.items if not which(place[0].slice))
        return [place for place in places if which(place[0].slice)]
