"""The time of a slot: its own, since the clock of its server may step.

A slot is what a queue keeps in one place: a partition, the home of a rate limit, the fleet. All
times in a slot (leases, owners, delays, booked starts) are on a clock that is data of the slot, so
it moves with the slot to another server, into the AOF and to a replica. Each call advances it by
the *difference* of the server's clock since the last call, and doubts differences that are odd:

    difference     the slot's time
    below 0        stands still for this call and goes on with the next
    up to STEP_MS  advances by as much
    more           a *gap*: nobody called for a while, or the server's clock was set. It advances by
                   as much if the caller agrees. Else it stands still, and the gap is refused or
                   doubted

Who agrees? A caller that was told the slot's time before knows what it is now: what it was told,
plus the time since then by its own monotonic clock, which nobody sets. If that leaves no room for
the gap, the gap is refused for good. A caller that was never told brings its wall clock: it agrees
if its clock and the last caller's are apart by as much as the gap. If the caller has run for less
time than that, its clock may have been set together with the server's, so those who know better
get `STEP_MS` to refuse first. A gap is doubted until somebody agrees or refuses, the server's clock
steps back, or `BELIEVE_MS` have passed. While a slot doubts, nobody is told its time: so whoever
remembers one was told before the gap. A gap that is believed after a doubt is *late*: what was
promised meanwhile (leases, owners, members, booked starts) moves along with it.

Why this is right:
- Time never runs backwards, and never further than the server's clock says: no caller can push it.
- A step costs the time since the slot's last call, in either direction. Workers call the slots that
  they hold something in several times a second, and they were told its time, so they refuse a step
  forward at once. A slot that nobody was told of has no live holder: there a gap costs `BELIEVE_MS`
  at most, for what was waiting before it.
- A call that lands late brings an old memory, so the time since the last call may be refused
  wrongly: what waits then waits that much longer. Time in which the server stood still does not
  count either, and no lease is lost by it.
- Windows of slot time never hold more starts than the rate (`rates.py`). Slot time gains on true
  time only by a step up to `STEP_MS`, or by a gap that was believed and was none. At that moment
  only starts that are booked already, at most `rates.BOOKED_MS_MAX` ahead, can run beside what is
  booked next: so any window of true time holds at most one second's starts and one grant more
  than the rate for each such step. After a doubt it is one grant, since what is booked moves along.
"""

from __future__ import annotations

from copy import copy
from math import floor

import msgspec

from heatsink.primitives.clock import Clock, now_ms
from heatsink.registry.closed_time import SteadyTime

STEP_MS = 2_000.0  # no lease or owner is lost by so little: they are renewed well before
AGREE_MS = 5_000.0  # two wall clocks may differ by so much
BELIEVE_MS = 10_000.0
SLOTS_MAX = 10_000  # that a process remembers


class SlotEvidence(msgspec.Struct, frozen=True):
    """What a caller knows: its wall clock, how long it runs, and the slot's time as it has it.

    `due_ms` is 0 if it never heard of it.
    """

    wall_ms: float
    up_ms: float
    due_ms: float = 0.0


class SlotTime(msgspec.Struct, frozen=True):
    """A slot's time at its last call. There is a doubt while `gap_ms` is not 0.

    `server_ms` and `wall_ms` are the clocks of the server and of the caller then, `before_ms` is
    the wall clock of the last caller before the gap, `waited_ms` how long the gap is doubted. A gap
    that is believed after a doubt is `late_ms`: what was promised meanwhile has to move along.
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
        """What callers may remember: 0 if nothing."""
        return 0.0 if self.gap_ms else self.own_ms

    def passed(self, server_ms: float, evidence: SlotEvidence) -> SlotTime:
        """The time at the next call."""
        step_ms = server_ms - self.server_ms
        is_small = 0 <= step_ms <= STEP_MS
        own_ms = self.own_ms + (step_ms if is_small else 0.0)
        gap_ms = self.gap_ms + (0.0 if is_small else step_ms)
        wall_ms = evidence.wall_ms
        if gap_ms <= STEP_MS:  # none, or the clock went back where it was
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
            late_ms = gap_ms if self.gap_ms else 0.0  # all of it, also if it grew just now
            return SlotTime(server_ms, own_ms + gap_ms, wall_ms, late_ms=late_ms)
        return SlotTime(server_ms, own_ms, wall_ms, gap_ms, waited_ms, before_ms)


def time_after(known: SlotTime | None, server_ms: float, evidence: SlotEvidence) -> SlotTime:
    """A new slot begins with the time of its server."""
    if known is None:
        return SlotTime(server_ms, server_ms, evidence.wall_ms)
    return known.passed(server_ms, evidence)


def moved_along(due_ms: float, time: SlotTime) -> float:
    """When something is due that was promised before the time went on by a gap believed late."""
    return due_ms + time.late_ms if due_ms > time.own_ms - time.late_ms else due_ms


class SlotWitness:
    """What one process knows of the time in slots."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._wall = SteadyTime()
        self._heard: dict[str, tuple[float, float]] = {}
        self._asked: tuple[float, float] | None = None

    def evidence(self, slot: str) -> SlotEvidence:
        """For a call that is about to be sent."""
        wall_ms, now_s = self._asked or self._now()
        up_ms, due_ms = (now_s - self._began_s) * 1000, 0.0
        if slot in self._heard:
            own_ms, heard_s = self._heard[slot]
            due_ms = float(floor(own_ms + max(now_s - heard_s, 0.0) * 1000))
        return SlotEvidence(wall_ms, up_ms, due_ms)

    def heard(self, slot: str, own_ms: float) -> None:
        """A slot's time, as an answer has it that came just now; 0 if it did not say."""
        if not own_ms:
            return
        self._heard.pop(slot, None)
        self._heard[slot] = own_ms, self._clock.monotonic_s()
        if len(self._heard) > SLOTS_MAX:
            del self._heard[next(iter(self._heard))]

    def as_of_now(self) -> SlotWitness:
        """The same, for one call that may land later."""
        asked = copy(self)
        asked._asked = self._now()
        return asked

    def _now(self) -> tuple[float, float]:
        now_s = self._clock.monotonic_s()
        return float(self._wall.read(now_ms(self._clock), now_s)), now_s
