"""The clock of a slot: it is stored in the slot, because the clock of its server may step.

A slot is what a queue keeps in one place: a partition, the home of a rate limit, the fleet. All
times in a slot (leases, owners, delays, booked starts) are on a clock that is stored in the slot.
So the slot's clock moves with the slot to another server, into the AOF and to a replica. Each call
advances the slot's clock by the *difference* of the server's clock since the last call:

    difference     the slot's time
    below 0        stands still for this call and goes on with the next
    up to STEP_MS  advances by as much
    more           a *gap*: no call came for a while, or the server's clock was set. It advances by
                   as much if the caller agrees. If not, it stands still, and the gap is refused or
                   doubted

A caller that got the slot's time in an earlier answer knows the slot's time now: it adds the time
that has passed on its own monotonic clock, which nobody sets. If less time has passed than the gap
claims, the caller refuses the gap for good. A caller without an earlier answer sends the time of
its wall clock. It agrees with the gap if this time and the wall-clock time of the last caller
before the gap differ by as much as the gap. If the caller has run for less time than the gap, its
clock may have been set together with the server's clock. In that case, callers with an earlier
answer get `STEP_MS` to refuse first.

A gap is doubted until a caller agrees or refuses, the server's clock steps back, or `BELIEVE_MS`
have passed. During a doubt no answer carries the slot's time: so every time that a caller remembers
is from before the gap. A gap that is accepted after a doubt is *late*: leases, owners, members and
booked starts that have not expired are moved by the gap.

Why this is safe:
- The slot's time never runs backwards, nor ahead of the server's clock: no caller can push it
  forward.
- If the server's clock steps, in either direction, the slot's time loses the time since the slot's
  last call, and no more. Workers call the slots in which they hold something several times a
  second. So they know the slot's time and immediately refuse a step forward. If no caller knows the
  time of a slot, no live worker holds anything in it. In such a slot, a gap delays whatever was
  waiting before the gap by `BELIEVE_MS` at most.
- A call that arrives late brings an old time, so it may wrongly refuse the time since the last
  call. Then items that wait in the slot wait that much longer. If the server stands still for a
  while, the slot's time does not count that time either, so no lease expires because of it.
- A window of slot time never holds more starts than the rate allows (`LimitStore`). Slot time
  advances faster than true time only by a step up to `STEP_MS`, or by an accepted gap that was in
  fact a step. Starts that are booked at that moment, at most `BOOKED_MS_MAX` ahead, can then run
  at the same time as starts that are booked next. So for each such step, a window of true time may
  hold more starts than the rate allows: at most the starts of one second and one grant more. After
  a doubt, it is at most one grant more, since the booked starts are moved by the gap.
"""

from __future__ import annotations

from copy import copy
from math import floor
from typing import Self

import msgspec

from heatsink.primitives.clock import Clock, SteadyTime, now_ms

STEP_MS = 2_000.0  # leases and ownership outlast such a step: they are renewed well before
AGREE_MS = 5_000.0  # how much two wall clocks may differ
BELIEVE_MS = 10_000.0
SLOTS_MAX = 10_000  # slots whose time a process remembers


class SlotEvidence(msgspec.Struct, frozen=True):
    """What a caller knows about the time: its wall clock, its uptime, and the slot's time.

    `due_ms` is what the slot's time should be now, computed from the last answer that carried it.
    It is 0 if no answer has carried the slot's time yet.
    """

    wall_ms: float
    up_ms: float
    due_ms: float = 0.0


class SlotTime(msgspec.Struct, frozen=True):
    """A slot's time `own_ms` at the last call to the slot.

    `server_ms` and `wall_ms` are the times of the server's clock and of the caller's wall clock at
    that call. A gap is an advance of the server's clock by more than `STEP_MS` between two calls.
    While `gap_ms` is not 0, a gap is in doubt: it has not been accepted or refused yet. `before_ms`
    is the wall-clock time of the last caller before the gap. `waited_ms` is how long the gap has
    been in doubt. `late_ms` is a gap that was accepted after a doubt: leases, owners and booked
    start times are moved by it.
    """

    server_ms: float
    own_ms: float
    wall_ms: float
    gap_ms: float = 0.0
    waited_ms: float = 0.0
    before_ms: float = 0.0
    late_ms: float = 0.0

    @property
    def told_ms(self) -> float:
        """The slot's time that an answer to the caller carries; 0 while a gap is in doubt."""
        return 0.0 if self.gap_ms else self.own_ms

    def passed(self, server_ms: float, evidence: SlotEvidence) -> SlotTime:
        """Compute the slot's time at the next call from the server's clock and the evidence."""
        step_ms = server_ms - self.server_ms
        is_small = 0 <= step_ms <= STEP_MS
        own_ms = self.own_ms + (step_ms if is_small else 0.0)
        gap_ms = self.gap_ms + (0.0 if is_small else step_ms)
        wall_ms = evidence.wall_ms
        if gap_ms <= STEP_MS:  # no gap, or the clock stepped back
            return SlotTime(server_ms, own_ms, wall_ms)
        waited_ms, before_ms = 0.0, self.wall_ms
        if self.gap_ms:
            waited_ms = self.waited_ms + min(max(step_ms, 0.0), STEP_MS)
            before_ms = self.before_ms
        if evidence.due_ms:
            is_true = own_ms + gap_ms <= evidence.due_ms + STEP_MS
            if not is_true:
                return SlotTime(server_ms, own_ms, wall_ms)
        else:
            apart_ms = wall_ms - before_ms - gap_ms - waited_ms
            knows = evidence.up_ms >= gap_ms or waited_ms >= STEP_MS
            is_true = (knows and abs(apart_ms) <= AGREE_MS) or waited_ms >= BELIEVE_MS
        if is_true:
            late_ms = gap_ms if self.gap_ms else 0.0  # the whole gap, even if it just grew
            return SlotTime(server_ms, own_ms + gap_ms, wall_ms, late_ms=late_ms)
        return SlotTime(server_ms, own_ms, wall_ms, gap_ms, waited_ms, before_ms)


def time_after(known: SlotTime | None, server_ms: float, evidence: SlotEvidence) -> SlotTime:
    """Return the slot's time at this call. A new slot starts with its server's time."""
    if known is None:
        return SlotTime(server_ms, server_ms, evidence.wall_ms)
    return known.passed(server_ms, evidence)


def moved_along(due_ms: float, time: SlotTime) -> float:
    """Return the due time `due_ms`, after a gap in the slot's time was accepted.

    If the due time was not yet reached at that moment, it moves by the gap, `time.late_ms`.
    """
    return due_ms + time.late_ms if due_ms > time.own_ms - time.late_ms else due_ms


class SlotWitness:
    """For each slot, the latest slot time that this process got in an answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._wall = SteadyTime()
        self._heard: dict[str, tuple[float, float]] = {}
        self._asked: tuple[float, float] | None = None

    def evidence(self, slot: str) -> SlotEvidence:
        """Return the evidence for a call to the slot that is about to be sent."""
        wall_ms, now_s = self._asked or self._now()
        up_ms, due_ms = (now_s - self._began_s) * 1000, 0.0
        if slot in self._heard:
            own_ms, heard_s = self._heard[slot]
            due_ms = float(floor(own_ms + max(now_s - heard_s, 0.0) * 1000))
        return SlotEvidence(wall_ms, up_ms, due_ms)

    def heard(self, slot: str, own_ms: float) -> None:
        """Remember the slot's time `own_ms` from an answer that just arrived.

        `own_ms` is 0 if the answer carried no time: then the answer is ignored.
        """
        if not own_ms:
            return
        self._heard.pop(slot, None)
        self._heard[slot] = own_ms, self._clock.monotonic_s()
        if len(self._heard) > SLOTS_MAX:
            del self._heard[next(iter(self._heard))]

    def as_of_now(self) -> SlotWitness:
        """Return a copy whose evidence has the clock readings of now, even if it is used later."""
        asked = copy(self)
        asked._asked = self._now()
        return asked

    def _now(self) -> tuple[float, float]:
        now_s = self._clock.monotonic_s()
        return float(self._wall.read(now_ms(self._clock), now_s)), now_s


class Timed:
    """A store in which each slot has its own clock.

    Each process works on a shallow copy of the store, with its own `SlotWitness` (what it knows of
    the slots' times). The copies share all other objects. So methods must change these in place: a
    field that is rebound would change in one copy only.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._witness = SlotWitness(clock)

    def seen_by(self, witness: SlotWitness) -> Self:
        view = copy(self)
        view._witness = witness
        return view

    def as_of_now(self) -> Self:
        """Return a view of this store for one call that is sent now.

        The call's evidence has the clock readings of now, even if it arrives later.
        """
        return self.seen_by(self._witness.as_of_now())

    def _time(self, slot: str, known: SlotTime | None) -> SlotTime:
        return time_after(known, self._clock.now_s() * 1000, self._witness.evidence(slot))
