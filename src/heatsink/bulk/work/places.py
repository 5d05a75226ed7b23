"""The places at limits of one queue partition in this process.

A limit allows a number of running items for each of its keys. An item that runs occupies a *place*.
The limit's *home* in the queue's Redis grants places under a lease. A `Seat` counts the partition's
places at one key of one limit: those of running items, and *fresh* ones, which are not used yet.
Every call reports the whole state of a seat to the home, so a lost call does no harm. A lane gets a
*permit* when there is a fresh place at each limit that its items need.

This module asks the limits in the order of their names. If a limit refuses, the module immediately
returns the places of the other limits, and the lane waits in the line of the limit that refused. So
no lane keeps a place while it waits, and two lanes never wait for each other.

When an item has ended and no other partition waits for the key, the next item here gets the place
without a call. If others wait, the place changes hands. While it does, it is idle for several calls
to Redis. So a partition keeps granted places for its next items, for `KEEP` times the present
duration of a call. On an idle machine this is a few hundredths of a second; where calls take long,
it is up to `KEEP_S_MAX`.

Every answer makes the seat's places valid for one lease from the moment of the request. Shortly
before the lease ends without a renewal, the pump cancels the handlers of these items. So no place
is used longer than the home reserves it. A handler in a thread cannot be cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Protocol
from zoneinfo import ZoneInfo

from heatsink.bulk.limits import (
    Ask,
    HoldAnswer,
    HoldRequest,
    Limit,
    LimitBook,
    Need,
    Needs,
    PlaceStore,
    Rule,
    hold_places,
)
from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import Clock

logger = logging.getLogger("heatsink")
NEVER = float("inf")
RENEW = 1 / 3  # of a lease: when seats are renewed
SOON = RENEW / 2  # of a lease: seats that are due so soon share the call of those that are due now
STOP = 0.9  # of a lease: when handlers are cancelled if no renewal has succeeded
PAUSE_S = (0.25, 2.0)  # bounds of the pause after a failed call
AGAIN_S = 0.001
SURE_S = 1.0  # how long "nobody else waits" is believed
KEEP = 60  # calls: a place changes hands in about three, so it is idle for 5 % of its time at most
KEEP_S_MAX = 3.0
ANSWER_WEIGHT = 0.25
WAITING_ASKS = 500  # keys in one call
WAIT_MS_MIN = 20.0


class PlaceLane(Protocol):
    """What `LimitPlaces` needs to know of a lane: its needs, its work, and its permits."""

    needs: Needs
    permits: int

    @property
    def work(self) -> int:
        """How many items wait here or in the store."""


def rule_of(limit: Limit, now_s: float, version: tuple[str, int] = ("", 0)) -> Rule:
    """Return what the limit allows now, according to this version of the registry's settings."""
    windows = (
        (f"{w.period_s:g} {w.zone}", w.count, w.period_s * 1000, midnights(w.zone, now_s))
        for w in limit.windows
    )
    return Rule(limit.running, tuple(windows), *version)


def midnights(zone: str, now_s: float) -> tuple[float, ...]:
    """Return four midnights in a zone, from yesterday's on, in ms since 1970; none without one.

    The home of the limit uses its own clock to find the midnight with which today began.
    """
    if not zone:
        return ()
    known = ZoneInfo(zone)
    today = datetime.fromtimestamp(now_s, known).date()
    days = (today + timedelta(days=ahead) for ahead in (-1, 0, 1, 2))
    return tuple(datetime(d.year, d.month, d.day, tzinfo=known).timestamp() * 1000 for d in days)


@dataclass
class Seat:
    """The places of one queue partition at one key of one limit.

    `running` places have running items. `fresh` places are granted, but their items have not
    started. `started` counts starts since the last call to the limit's home. `want` places were
    requested but not granted yet. Places are valid until `valid_s`, and `renew_s` is the time to
    renew them. Until `blocked_s` the home grants nothing more. Until `sure_s` it is certain that
    nobody else waits for the key. Until `keep_s` the places stay here although others wait.
    """

    running: int = 0
    fresh: int = 0
    started: int = 0
    want: int = 0
    valid_s: float = 0.0
    renew_s: float = 0.0
    blocked_s: float = 0.0
    sure_s: float = 0.0
    keep_s: float = 0.0
    is_changed: bool = False
    is_cut: bool = True

    @property
    def is_idle(self) -> bool:
        return not (self.running or self.fresh or self.started or self.want or self.is_changed)


Seats = dict[str, Seat]
NO_SEAT = Seat()


class LimitPlaces:
    """The places at limits that one queue partition has in this process.

    There is a `Seat` for each key of each limit in use. The pump calls `turn` whenever `due_s` says
    so. A turn requests places from the limits' homes, and returns those that are not needed.
    """

    def __init__(
        self,
        store: PlaceStore,
        book: LimitBook,
        owner: str,
        bell: int,
        lease_s: float,
        clock: Clock,
        rng: Random,
        notify: Callable[[], None],
    ) -> None:
        self._store = store
        self.book = book
        self._owner = owner
        self._holder = ""
        self._bell = bell
        self._lease_s = lease_s
        self._clock = clock
        self._rng = rng
        self._notify = notify
        self._seats: dict[str, Seats] = {}
        self._turn = 0
        self._failures = 0
        self._retry_s = 0.0
        self._next = 0
        self._again = False
        self._answer_s = 0.0

    # -- what the lanes do -----------------------------------------------------------------

    def is_valid(self, needs: Needs) -> bool:
        """Return whether the places of these needs are still leased."""
        now_s = self._clock.monotonic_s()
        return all(now_s < self._stop_s(self._look(need)) for need in needs)

    def started(self, needs: Needs, count: int) -> None:
        """Note that `count` items with permits have started."""
        for need in needs:
            seat = self._seat(need)
            seat.fresh, seat.running = max(seat.fresh - count, 0), seat.running + count
            if self._has_rates(need):
                seat.started += count
                seat.is_changed = True
                self._notify()

    def ended(self, needs: Needs, lane: PlaceLane | None) -> bool:
        """Note that an item has ended. Returns whether its lane keeps the places for its next item.

        Then the lane has one more permit. Without `lane`, the places go back to the limits.
        """
        may_keep = lane is not None and lane.work > lane.permits and self.is_valid(needs)
        may_keep = may_keep and all(map(self._is_ours, needs))
        for need in needs:
            seat = self._seat(need)
            seat.running -= 1
            if may_keep:
                seat.fresh += 1
            else:
                seat.is_changed = True
        if not may_keep:
            self._notify()
        return may_keep

    def _is_ours(self, need: Need) -> bool:
        seat = self._look(need)
        until_s = max(seat.sure_s, seat.keep_s)
        return self._clock.monotonic_s() < until_s and not self._has_rates(need)

    def _has_rates(self, need: Need) -> bool:
        return bool(self.book.limit(need.limit).rates)

    def _seat(self, need: Need) -> Seat:
        return self._seats.setdefault(need.limit, {}).setdefault(need.key, Seat())

    def _look(self, need: Need) -> Seat:
        """Return the seat of a key; make none, since most lanes have no places and ask for none."""
        return self._seats.get(need.limit, {}).get(need.key, NO_SEAT)

    def offered(self, limit: str, key: str) -> None:
        """Ask again for a key: the home offers a place."""
        seat = self._seats.get(limit, {}).get(key)
        if seat is not None and seat.want:
            seat.blocked_s = 0.0
            self._notify()

    def ask_again(self) -> None:
        """Ask all limits again: an operator has changed one."""
        for seats in self._seats.values():
            for seat in seats.values():
                seat.blocked_s, seat.sure_s, seat.is_changed = 0.0, 0.0, True
        self._notify()

    def cut_off(self) -> set[Need]:
        """Return the keys of limits at which the partition's lease is about to end.

        The pump cancels the items that run there. Each key is returned once.
        """
        now_s, cut = self._clock.monotonic_s(), set()
        for limit, seats in self._seats.items():
            for key, seat in seats.items():
                if not seat.is_cut and now_s >= self._stop_s(seat):
                    seat.is_cut = True
                    if seat.running:
                        cut.add(Need(limit, key))
        return cut

    # -- asking ----------------------------------------------------------------------------

    def due_s(self, lanes: Iterable[PlaceLane], room: int) -> float:
        """Return the time at which to call `turn` next, if no item starts or ends before.

        `room` is the number of items that free workers can run.
        """
        lanes = list(lanes)
        left = room - sum(lane.permits for lane in lanes)
        if self._again or (left > 0 and any(self._open(lanes))):
            return max(self._retry_s, self._clock.monotonic_s() + AGAIN_S)
        dues = [
            0.0 if seat.is_changed else seat.renew_s
            for seats in self._seats.values()
            for seat in seats.values()
            if not seat.is_idle
        ]
        dues += [
            seat.blocked_s
            for seats in self._seats.values()
            for seat in seats.values()
            if seat.want and left > 0
        ]
        return max(min(dues, default=NEVER), self._retry_s)

    @property
    def stop_s(self) -> float:
        """The time at which the next lease is about to end.

        Its items must then stop, unless the lease is renewed.
        """
        seats = (seat for seats in self._seats.values() for seat in seats.values())
        return min((self._stop_s(seat) for seat in seats if not seat.is_cut), default=NEVER)

    def _stop_s(self, seat: Seat) -> float:
        return seat.valid_s - (1 - STOP) * self._lease_s

    def _open(self, lanes: list[PlaceLane]) -> list[int]:
        """Return for each lane how many more permits it may get now.

        While a lane waits at a limit, it may only use places there that are already granted and
        unused.
        """
        now_s, spare = self._clock.monotonic_s(), self._spare(lanes)
        found = []
        for lane in lanes:
            most = lane.work - lane.permits
            for need in lane.needs:
                if self._look(need).blocked_s > now_s:
                    most = min(most, spare[need])
            found.append(max(most, 0))
        return found

    def _spare(self, lanes: list[PlaceLane]) -> dict[Need, int]:
        """Return the fresh places that are not part of a lane's permits, by need."""
        spare = {need: self._look(need).fresh for lane in lanes for need in lane.needs}
        for lane in lanes:
            for need in lane.needs:
                spare[need] -= lane.permits
        return spare

    async def turn(self, found: Iterable[PlaceLane], room: int) -> bool:
        """Request the places that lanes lack, return those that they do not need, and renew the
        rest.

        Lanes get permits for at most `room` more items. Returns whether any lane got a permit.
        """
        if self._clock.monotonic_s() < self._retry_s:
            return False
        self._again = False
        lanes = [lane for lane in found if lane.needs]
        self._forfeit(lanes)
        wants = self._wanted(lanes, room)
        for at, lane in enumerate(lanes):
            for need in lane.needs if wants[at] else ():
                self._seat(need)
        try:
            for limit in sorted(self._seats):
                await self._ask(limit, lanes, wants)
        except HeatsinkError as error:
            pause_s = min(PAUSE_S[0] * 2**self._failures, PAUSE_S[1])
            self._failures += 1
            self._retry_s = self._clock.monotonic_s() + pause_s * self._rng.uniform(0.5, 1.0)
            logger.info("asking for places at limits failed: %s", error)
            return False
        self._failures = 0
        for at, lane in enumerate(lanes):
            lane.permits += wants[at]
        self._give_back(lanes)
        for limit, seats in list(self._seats.items()):
            self._seats[limit] = {key: seat for key, seat in seats.items() if not seat.is_idle}
            if not self._seats[limit]:
                del self._seats[limit]
        return any(wants)

    def _forfeit(self, lanes: list[PlaceLane]) -> None:
        """Drop permits and fresh places whose lease is about to end."""
        now_s = self._clock.monotonic_s()
        for lane in lanes:
            if lane.permits and not self.is_valid(lane.needs):
                lane.permits = 0
        for seat in (seat for seats in self._seats.values() for seat in seats.values()):
            if seat.fresh and now_s >= self._stop_s(seat):
                seat.fresh, seat.is_changed = 0, True

    def _wanted(self, lanes: list[PlaceLane], room: int) -> list[int]:
        """Return for each lane how many more permits to request.

        All permits together are for at most `room` items. Lanes that may get more share the rest of
        the room evenly. A lane that waits at a limit gets nothing.
        """
        wants, most = [0] * len(lanes), self._open(lanes)
        left = room - sum(lane.permits for lane in lanes)
        asking = [at for at, count in enumerate(most) if count]
        self._next += 1
        if asking:
            turn = self._next % len(asking)
            asking = asking[turn:] + asking[:turn]
        while asking and left > 0:
            for at in list(asking):
                if left <= 0:
                    break
                wants[at] += 1
                left -= 1
                if wants[at] >= most[at]:
                    asking.remove(at)
        return wants

    async def _ask(self, limit: str, lanes: list[PlaceLane], wants: list[int]) -> None:
        """Request places at one limit.

        Lower `wants`, the permits that lanes want, to what is granted.
        """
        known, now_s = self.book.limit(limit), self._clock.monotonic_s()
        seats, users = self._seats[limit], self._users(limit, lanes)
        soon_s = now_s + SOON * self._lease_s
        asks = []
        for key, seat in seats.items():
            permits = sum(lanes[at].permits for at in users.get(key, ()))
            lacking = sum(wants[at] for at in users.get(key, ()))
            want = max(permits + lacking - seat.fresh, 0)
            if seat.want and seat.blocked_s > now_s:  # its lanes stay in the line
                work = sum(lanes[at].work - lanes[at].permits for at in users.get(key, ()))
                want = max(want, min(seat.want, work - lacking))
            is_due = seat.is_changed or soon_s >= seat.renew_s or seat.fresh > permits + lacking
            is_due = is_due or want != seat.want or (want > 0 and seat.blocked_s <= now_s)
            if is_due and not (seat.is_idle and not want):
                seat.fresh = min(seat.fresh, permits + lacking)
                asks.append(Ask(key, seat.running, seat.fresh, seat.started, want))
        for first in range(0, len(asks), WAITING_ASKS):
            page = asks[first : first + WAITING_ASKS]
            for ask in page:  # until the answer comes, the home may have either state
                seats[ask.key].is_changed = True
            answer = await self._hold(limit, known, page)
            self._learn(seats, page, answer, now_s)
        for key, using in users.items():
            seat = seats.get(key, Seat())
            for at in using:  # fewer places than permits: the lease had ended
                lanes[at].permits = min(lanes[at].permits, seat.fresh)
            left = seat.fresh - sum(lanes[at].permits for at in using)
            for at in using:
                wants[at] = max(min(wants[at], left), 0)
                left -= wants[at]

    def _users(self, limit: str, lanes: list[PlaceLane]) -> dict[str, list[int]]:
        users: dict[str, list[int]] = {}
        for at, lane in enumerate(lanes):
            for need in lane.needs:
                if need.limit == limit:
                    users.setdefault(need.key, []).append(at)
        return users

    async def _hold(self, limit: str, known: Limit, asks: list[Ask]) -> HoldAnswer:
        self._turn += 1
        if not self._holder:  # it begins with the process, so that its parent can free its places
            self._holder = f"{self._owner}/{self._bell:d}/{self._rng.getrandbits(48):012x}"
        rule = rule_of(known, self._clock.now_s(), self.book.version)
        lease_ms = int(self._lease_s * 1000)
        server = self.book.servers.get(limit, "")
        request = HoldRequest(
            limit, rule, self._holder, self._turn, lease_ms, asks, self._bell, server
        )
        asked_s = self._clock.monotonic_s()
        answer = await hold_places(self._store, request)
        took_s = self._clock.monotonic_s() - asked_s
        self._answer_s += ANSWER_WEIGHT * (took_s - self._answer_s)
        self.book.servers[limit] = answer.server
        return answer

    def _learn(self, seats: Seats, asks: list[Ask], answer: HoldAnswer, asked_s: float) -> None:
        now_s = self._clock.monotonic_s()
        for ask, granted in zip(asks, answer.granted, strict=True):
            seat = seats[ask.key]
            held = ask.running + ask.fresh != seat.running + seat.fresh
            seat.is_changed = held or seat.started != ask.started
            seat.started -= ask.started
            seat.fresh = max(seat.fresh + granted.places, 0)
            seat.want = max(ask.want - max(granted.places, 0), 0)
            seat.valid_s, seat.is_cut = asked_s + self._lease_s, False
            seat.renew_s = asked_s + self._lease_s * RENEW
            seat.sure_s = 0.0 if granted.others else now_s + SURE_S
            if granted.places > 0 and now_s >= seat.keep_s:
                seat.keep_s = now_s + min(KEEP * self._answer_s, KEEP_S_MAX)
            wait_s = max(granted.wait_ms, answer.quiet_ms, WAIT_MS_MIN) / 1000 + AGAIN_S
            seat.blocked_s = now_s + wait_s if seat.want else 0.0

    def _give_back(self, lanes: list[PlaceLane]) -> None:
        """Mark seats with more unused places than permits.

        The next turn follows at once and returns them.
        """
        for limit, seats in self._seats.items():
            users = self._users(limit, lanes)
            for key, seat in seats.items():
                if seat.fresh > sum(lanes[at].permits for at in users.get(key, ())):
                    seat.is_changed = self._again = True

    async def leave(self) -> None:
        """Return all places, when this process gives the partition up."""
        for seats in self._seats.values():
            for seat in seats.values():
                seat.fresh = seat.want = 0
                seat.is_changed = True
        self._retry_s = 0.0
        await self.turn([], 0)
