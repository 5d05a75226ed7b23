"""When a rate-limited lane may start items: booked ahead, exact, and explored when unknown.

A lane's starts come in *grants* of one size, one `step` apart, so that a limit is a calendar
and nothing needs to be counted afterwards. A start may be up to `LATE_MS` late, no more, and the
step is that little longer than the rate says: so no window of one period ever holds more starts
than the rate allows, however late each of them is.
"""

from __future__ import annotations

from math import ceil

import msgspec

from .batch import RATE_MAX, Rate
from .store import Grants

LATE_MS = 20.0
GRANTS_PER_S_MAX = 100  # a faster lane gets several starts at a time
GRANTS_MAX = 1_000

HOLD_S = 1.0
CLIMB_S = 10.0
PROBE_S = 20.0
NEAR = 0.98
DROP = 0.94
SEARCH_DROP = 0.5
SEARCH_GROWTH_PER_S = 0.25
PROBE_GROWTH_PER_S = 0.01
GUARD_MS = 500.0
SLOWEST_PER_S = 0.1
GROWTH_S_MAX = 1_000.0  # no power of it overflows, and by then the rate is as good as none


class Explored(msgspec.Struct, frozen=True):
    """What refusals taught: the rate fell to `floor` at `since_ms`; it was refused at `ceiling`.

    A ceiling of 0 means that it is still being searched for.
    """

    floor: float
    ceiling: float
    since_ms: float


class Limit(msgspec.Struct, frozen=True):
    declared: Rate | None = None
    explored: Explored | None = None
    next_ms: float = 0.0


def pace(explored: Explored, now_ms: float) -> float:
    """Items a second, by how long ago the last refusal was."""
    age_s = max(now_ms - explored.since_ms, 0.0) / 1000
    past_s = age_s - HOLD_S
    if past_s <= 0:
        return explored.floor
    if not explored.ceiling:
        return _grown(explored.floor, SEARCH_GROWTH_PER_S, past_s)
    near = explored.ceiling * NEAR
    if past_s < CLIMB_S:
        return explored.floor + (near - explored.floor) * past_s / CLIMB_S
    return _grown(near, PROBE_GROWTH_PER_S, max(past_s - PROBE_S, 0.0))


def _grown(rate: float, growth_per_s: float, seconds: float) -> float:
    grown = rate * float((1 + growth_per_s) ** min(seconds, GROWTH_S_MAX))
    return min(grown, float(RATE_MAX))


def refused(limit: Limit, now_ms: float, started_per_s: float, retry_after_ms: float) -> Limit:
    """What to do after somebody downstream said "too many". Answers to one surge count once."""
    known = limit.explored
    if known is not None and now_ms - known.since_ms < GUARD_MS:
        return limit
    if known is None:
        floor = max(started_per_s * SEARCH_DROP, SLOWEST_PER_S)
        found = Explored(floor, 0.0, now_ms)
    else:
        found = _lower(known, now_ms)
    later_ms = now_ms + retry_after_ms
    return Limit(limit.declared, found, max(limit.next_ms, later_ms))


def _lower(known: Explored, now_ms: float) -> Explored:
    rate = pace(known, now_ms)
    searching = not known.ceiling and rate <= known.floor
    drop = SEARCH_DROP if searching else DROP
    ceiling = 0.0 if searching else rate
    return Explored(max(rate * drop, SLOWEST_PER_S), ceiling, now_ms)


def rate_of(limit: Limit, now_ms: float) -> float | None:
    """Items a second, or None if nothing limits the lane."""
    rates = []
    if limit.declared is not None:
        rates.append(limit.declared.per_s)
    if limit.explored is not None:
        rates.append(pace(limit.explored, now_ms))
    return min(rates, default=None)


def calendar(limit: Limit, now_ms: float) -> tuple[int, float]:
    """How many starts a grant holds, and how far apart grants are."""
    rate = rate_of(limit, now_ms)
    if rate is None:
        return GRANTS_MAX, 0.0
    size = max(1, int(rate // GRANTS_PER_S_MAX))
    step_ms = 1000 * size / rate
    if limit.declared is not None:
        grants = max(limit.declared.count // size, 1)
        step_ms = max(step_ms, (1000 * limit.declared.period_s + LATE_MS) / grants)
    return size, step_ms


def reserve(limit: Limit, now_ms: float, starts: int, ahead_ms: float) -> tuple[Limit, Grants]:
    """The next starts that are free, and the limit without them."""
    size, step_ms = calendar(limit, now_ms)
    wanted = min(ceil(starts / size), GRANTS_MAX)
    first_ms = max(limit.next_ms, now_ms)
    if step_ms > 0:
        in_time = int(max(now_ms + ahead_ms - first_ms, 0.0) // step_ms) + 1
        wanted = min(wanted, in_time)
    waits = [first_ms + step_ms * i - now_ms for i in range(wanted)]
    following = Limit(limit.declared, limit.explored, first_ms + step_ms * wanted)
    return following, Grants(size, waits)
