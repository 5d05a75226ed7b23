"""Rate limits: when the items of a lane may start, by a declared rate or one found by probing.

A lane is one action of one tenant. Its starts are booked ahead in *grants* of equal size, one
`step` apart: a limit is a calendar, and nothing is counted afterwards. A start may be at most
`LATE_MS` late, and the step is longer than the rate says by that much. So no window of one period
ever holds more starts than the rate allows, however late each start is.

A limit that was not declared shows when the downstream service refuses. The first refusal starts a
*search*: the pace drops far, then grows by a factor each second. Once a level is found, the pace is
a cubic in the time since the last refusal (as in TCP CUBIC): it starts a little below the level,
stays near it for long, and then rises faster and faster. So the lane mostly runs near the limit,
and follows it when it is raised.
"""

from __future__ import annotations

from math import ceil, log

import msgspec

from .batch import RATE_MAX, Rate
from .store import Grants

LATE_MS = 20.0
GRANTS_PER_S_MAX = 100  # a faster lane gets several starts per grant
GRANTS_MAX = 1_000
TICKS_PER_MS = 4096  # a double holds the time of day in such ticks, so steps add up exactly
BOOKED_MS_MAX = 1_000.0  # how far ahead starts are booked

SLOWEST_PER_S = 0.1
SEARCH_DROP = 0.125
SEARCH_GROWTH = 1.4  # a second
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
AHEAD_MS_MAX = 100.0  # a refusal does not change starts that are booked already
IDLE_COST = 4.0  # the pace grows only while more than 3/4 of it is used


class Explored(msgspec.Struct, frozen=True):
    """What the last refusal, at `since_ms`, showed: the accepted level, once it is `found`.

    Until then it is the level from which the search goes up.
    """

    level: float
    since_ms: float
    found: bool


class Limit(msgspec.Struct, frozen=True):
    declared: Rate | None = None
    explored: Explored | None = None
    next_ms: float = 0.0


def pace(explored: Explored, now_ms: float) -> float:
    """The probed rate in items per second."""
    age_s = max(now_ms - explored.since_ms, 0.0) / 1000
    if not explored.found:
        growth = float(SEARCH_GROWTH ** min(age_s, SEARCH_S_MAX))
    else:
        growth = 1 + CURVE * (age_s - LINGER_S) ** 3
    return min(explored.level * growth, float(RATE_MAX))


def _mean_pace(explored: Explored, now_ms: float) -> float:
    """The mean pace since the last refusal: the refill rate of a token bucket, empty then."""
    age_s = max(now_ms - explored.since_ms, 1.0) / 1000
    if not explored.found:
        return (pace(explored, now_ms) - explored.level) / log(SEARCH_GROWTH) / age_s
    risen = (age_s - LINGER_S) ** 4 - LINGER_S**4
    return explored.level * (1 + CURVE / 4 * risen / age_s)


def refused(limit: Limit, now_ms: float, started_per_s: float, retry_after_ms: float) -> Limit:
    """Lower the limit after a downstream refusal; refusals within `GUARD_MS` count as one."""
    known = limit.explored
    if known is not None and now_ms - known.since_ms < GUARD_MS:
        return limit
    explored = _search(started_per_s, now_ms) if known is None else _lower(limit, known, now_ms)
    resume_ms = max(explored.since_ms, now_ms + retry_after_ms)
    return Limit(limit.declared, explored, max(limit.next_ms, resume_ms))


def _search(per_s: float, now_ms: float) -> Explored:
    """Start far below, after a pause in which running items come back."""
    return Explored(max(per_s * SEARCH_DROP, SLOWEST_PER_S), now_ms + PAUSE_MS, False)


def _lower(limit: Limit, known: Explored, now_ms: float) -> Explored:
    """The new level after a refusal.

    A limit by windows lies at the refused pace, one by a token bucket at the mean pace before it.
    The level is between the two: close to the mean, unless the pace came from far below.
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


def rate_of(limit: Limit, now_ms: float) -> float | None:
    """The lane's limit in items per second; None if it has no limit."""
    rates = []
    if limit.declared is not None:
        rates.append(limit.declared.per_s)
    if limit.explored is not None:
        rates.append(pace(limit.explored, now_ms))
    return min(rates, default=None)


def calendar(limit: Limit, now_ms: float) -> tuple[int, float]:
    """How many starts a grant holds, and the time between grants in milliseconds."""
    rate = rate_of(limit, now_ms)
    if rate is None:
        return GRANTS_MAX, 0.0
    size = _grant_size(rate)
    step_ms = 1000 * size / rate
    if limit.declared is not None:
        spared = _grant_size(limit.declared.per_s) - 1  # a window may begin within a step
        usable = limit.declared.count - spared
        step_ms = max(step_ms, (1000 * limit.declared.period_s + LATE_MS) * size / usable)
    return size, step_ms


def _grant_size(per_s: float) -> int:
    return max(1, int(per_s // GRANTS_PER_S_MAX))


def reserve(limit: Limit, now_ms: float, starts: int, ahead_ms: float) -> tuple[Limit, Grants]:
    """Book the next free starts; return the limit after that, and the grants."""
    limit = Limit(limit.declared, _without_idle(limit, now_ms), max(limit.next_ms, now_ms))
    size, step_ms = calendar(limit, now_ms)
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
    following = Limit(limit.declared, limit.explored, limit.next_ms + step_ms * wanted)
    return following, Grants(size, waits, now_ms, following.next_ms - now_ms)


def declared(limit: Limit, rate: Rate | None, now_ms: float) -> Limit:
    """Change the rate; it applies once the starts booked under the old rate are past."""
    next_ms = limit.next_ms
    if rate != limit.declared:
        next_ms = min(next_ms, now_ms + BOOKED_MS_MAX + LATE_MS)
    return Limit(rate, limit.explored, next_ms)


def moved_along(limit: Limit, now_ms: float, late_ms: float) -> Limit:
    """Move booked starts with a jump of the slot's time, so that they stay as far ahead."""
    booked_ms = min(limit.next_ms + late_ms, now_ms + BOOKED_MS_MAX + LATE_MS)
    return Limit(limit.declared, limit.explored, max(limit.next_ms, booked_ms))


def _without_idle(limit: Limit, now_ms: float) -> Explored | None:
    """Leave out idle time: a pace that the lane did not use was not tested."""
    known, idle_ms = limit.explored, now_ms - limit.next_ms
    if known is None or idle_ms <= 0:
        return known
    since_ms = min(known.since_ms + IDLE_COST * idle_ms, now_ms)
    return Explored(known.level, since_ms, known.found)
