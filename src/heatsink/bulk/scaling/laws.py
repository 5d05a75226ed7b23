"""Scaling laws: how many workers a partition needs for its load.

`LittlesLaw` is the default: it computes the workers that the work needs, and stops adding workers
that do not add throughput. `Exponential`, `Congestion` and `TimeDecay` look only at the number of
runnable items per worker. They are the three experiments of the article that this queue is modelled
on, kept for comparison.
"""

from __future__ import annotations

from math import ceil, sqrt

import msgspec

from heatsink.primitives.damping import RecentPeak

from .load import Load, Target, WorkerRules

STEP = 1.2
GAIN_MIN = 0.7  # share of the throughput that a step adds if every new worker counts in full
LOOK_ITEMS, LOOK_S = 100, 10.0
LONG_LOOK_ITEMS, LONG_LOOK_S = 1_000, 20.0
FIRST_PROBE_S = 30.0  # doubles each time the knee is found at the same place
ARRIVAL_WEIGHT = 0.3
WORTH_SHRINKING = 0.9
CALM = 0.1  # share of `depth` below which there are too many workers


class LittlesLaw:
    """Workers = (arrival rate + backlog / drain time) × service time, plus a square-root margin.

    Only runnable items count as backlog. A rate-limited lane counts for at most its rate × service
    time, since further workers would only wait for the rate limit.
    """

    def __init__(self, rules: WorkerRules) -> None:
        self._rules = rules
        self._knee = Knee(rules.probe_again_s)
        self._peak = RecentPeak(rules.hold_s)
        self._since_s: float | None = None
        self._arrival_per_s = 0.0

    def target(self, load: Load) -> Target | None:
        if self._since_s is None:
            self._since_s = load.time_s
        if not load.service_s:
            return None
        needed = self._needed(load)
        self._peak.add(load.time_s, needed)
        if needed > load.workers:
            return self._more(load, needed)
        self._knee.rest()
        return self._fewer(load)

    def _needed(self, load: Load) -> int:
        """Workers needed. Arrivals count at most at the rate they finish: the rest is backlog.

        What rate limits allow is not known here, so limited items count for what they use already.
        """
        arrival_per_s = min(load.arrival_per_s, load.done_per_s)
        self._arrival_per_s += ARRIVAL_WEIGHT * (arrival_per_s - self._arrival_per_s)
        busy = self._arrival_per_s * load.service_s + load.work_s / self._rules.drain_s
        if load.limited:
            busy += min(load.done_per_s, load.limited / self._rules.drain_s) * load.service_s
        return self._rules.bounded(ceil(busy + self._rules.margin * sqrt(busy)))

    def _more(self, load: Load, needed: int) -> Target:
        allowed, why = self._knee.allow(load, needed)
        work = f"{load.runnable:,} runnable items × {load.service_s:,.3g} s"
        reason = f"{work} in {self._rules.drain_s:g} s need {needed} workers; {why}"
        return Target(max(allowed, self._rules.base), reason)

    def _fewer(self, load: Load) -> Target | None:
        assert self._since_s is not None
        if load.time_s - self._since_s < self._rules.hold_s:
            return None
        peak = int(self._peak.at(load.time_s))
        if peak > load.workers * WORTH_SHRINKING:
            return None
        return Target(peak, f"at most {peak} workers needed in the last {self._rules.hold_s:g} s")


class Knee:
    """Finds the point where more workers no longer add throughput.

    Every step up is measured before the next. By Little's law, throughput is the number of items in
    flight divided by the service time. So a downstream service at its limit shows as service times
    that grow with the workers. Service times vary, so a step that seems to add no throughput is
    measured longer, both before and after it.
    """

    def __init__(self, probe_again_s: float) -> None:
        self._wait_s_max = probe_again_s
        self._wait_s = 0.0
        self._place = 0
        self._proven = 0
        self._found_s: float | None = None
        self.rest()

    def rest(self) -> None:
        """Stop measuring: the partition has enough workers, and no step up to judge."""
        self._look: Look | None = None
        self._before: Point | None = None
        self._above: Point | None = None
        self._is_doubtful = False

    def allow(self, load: Load, wanted: int) -> tuple[int, str]:
        """How many of the wanted workers to allow, and the reason."""
        if self._found_s is None and load.workers >= self._proven:
            return self._climb(load, wanted)
        if self._found_s is not None and load.time_s - self._found_s >= self._wait_s:
            self._step_back()
        self.rest()
        known = f"up to {self._proven} workers added throughput"
        if self._found_s is not None:
            known = f"more than {self._proven} workers added no throughput"
        return min(load.workers * 2, self._proven, wanted), known

    def _step_back(self) -> None:
        """The knee may have moved: go one step back, and measure again on the way up."""
        self.rest()
        self._found_s = None
        self._proven = max(int(self._proven / STEP), 1)

    def _climb(self, load: Load, wanted: int) -> tuple[int, str]:
        if self._look is None or self._look.workers != load.workers:
            self._look = Look(load)
        here = self._look.at(load, self._is_doubtful)
        if here is None:
            return min(load.workers, wanted), "measuring whether the last step added throughput"
        if self._above is not None:
            return self._judge(here, self._above, load, wanted)
        if self._before is None or _gain(self._before, here) >= GAIN_MIN:
            return self._step_up(here, wanted)
        if self._is_doubtful:
            self._above, self._look = here, None
            return min(self._before.workers, wanted), f"comparing with {here.workers} workers"
        self._is_doubtful = True
        return min(load.workers, wanted), "measuring longer whether the last step added throughput"

    def _step_up(self, here: Point, wanted: int) -> tuple[int, str]:
        self.rest()
        self._proven, self._before = here.workers, here
        step = min(ceil(here.workers * STEP), wanted)
        return step, f"{here.workers} workers finish {here.per_s:,.0f}/s"

    def _judge(self, below: Point, above: Point, load: Load, wanted: int) -> tuple[int, str]:
        if _gain(below, above) >= GAIN_MIN:
            return self._step_up(above, wanted)
        self.rest()
        self._proven, self._found_s = _knee(below, above), load.time_s
        is_known = self._place / STEP <= self._proven <= self._place * STEP
        self._wait_s = min(self._wait_s * 2 if is_known else FIRST_PROBE_S, self._wait_s_max)
        self._place = self._proven
        return min(wanted, self._proven), f"{above.workers} workers added no throughput"


class Look:
    """Measures the throughput of a number of workers, once a change has taken effect."""

    def __init__(self, load: Load) -> None:
        self.workers = load.workers
        self._from_s = load.time_s + load.service_s
        self._first: Load | None = None
        self._busy: list[int] = []

    def at(self, load: Load, is_long: bool) -> Point | None:
        """The throughput, once enough items were seen; until then None."""
        if load.time_s < self._from_s:
            return None
        if self._first is None:
            self._first = load
            return None
        self._busy.append(min(load.in_flight, load.workers))
        items, used_s = load.settled - self._first.settled, load.used_s - self._first.used_s
        enough, longest_s = (LONG_LOOK_ITEMS, LONG_LOOK_S) if is_long else (LOOK_ITEMS, LOOK_S)
        is_over = load.time_s - self._from_s >= longest_s + 2 * load.service_s
        if used_s <= 0 or (items < enough and not is_over):
            return None
        return Point(self.workers, sum(self._busy) / len(self._busy) * items / used_s)


class Point(msgspec.Struct, frozen=True):
    workers: int
    per_s: float


def _gain(below: Point, above: Point) -> float:
    more = above.workers / below.workers - 1
    return (above.per_s / below.per_s - 1) / more if below.per_s and more > 0 else 1.0


def _knee(below: Point, above: Point) -> int:
    full = int(below.workers * above.per_s / below.per_s)
    return min(max(full, below.workers), above.workers)


class Exponential:
    """Experiment 0: double above the depth, halve below a tenth of it. This law oscillates."""

    def __init__(self, rules: WorkerRules) -> None:
        self._rules = rules

    def target(self, load: Load) -> Target | None:
        rules = self._rules
        if load.depth > rules.depth:
            return Target(rules.bounded(load.workers * 2), _deep(load))
        if load.depth < rules.depth * CALM:
            return Target(rules.bounded(load.workers // 2), _calm(load))
        return None


class Congestion:
    """Experiment 1, like TCP: double up to a threshold, then add; halve and lower the threshold."""

    def __init__(self, rules: WorkerRules) -> None:
        self._rules = rules
        self._threshold = float(rules.workers_max)

    def target(self, load: Load) -> Target | None:
        rules, workers = self._rules, load.workers
        if load.depth > rules.depth:
            starting = workers < self._threshold
            wanted = min(workers * 2, self._threshold) if starting else workers + rules.base
            why = "slow start" if starting else f"linear from {self._threshold:.0f} on"
            return Target(rules.bounded(wanted), f"{_deep(load)}: {why}")
        if load.depth < rules.depth * CALM and workers > rules.base:
            self._threshold = max(workers / 2, rules.base)
            return Target(rules.bounded(self._threshold), _calm(load))
        return None


class TimeDecay:
    """Experiment 2, which the article chose: double when depth persists; shrink only with time."""

    def __init__(self, rules: WorkerRules) -> None:
        self._rules = rules
        self._deep_cycles = 0
        self._shrink_s: float | None = None

    def target(self, load: Load) -> Target | None:
        rules = self._rules
        if load.depth > rules.depth:
            self._deep_cycles += 1
            self._shrink_s = load.time_s + rules.decay_after_s
            return self._grown(load) if self._deep_cycles >= rules.cycles else None
        self._deep_cycles = 0
        if self._shrink_s is None:
            self._shrink_s = load.time_s + rules.decay_after_s
        if load.time_s < self._shrink_s:
            return None
        self._shrink_s = load.time_s + rules.decay_s
        return Target(rules.bounded(load.workers // 2), f"{_calm(load)}: decays with time")

    def _grown(self, load: Load) -> Target:
        self._deep_cycles = 0
        cap = self._rules.base * self._rules.growth_max
        wanted = self._rules.bounded(min(load.workers * 2, cap))
        return Target(wanted, f"{_deep(load)} for {self._rules.cycles} cycles")


def _deep(load: Load) -> str:
    return f"depth per worker {load.depth:,.1f}"


def _calm(load: Load) -> str:
    return f"depth per worker down to {load.depth:,.1f}"
