"""Scaling laws: how many workers a partition needs for its load.

`LittlesLaw` is the default: it computes how many workers the work needs, and stops when more
workers add no throughput. `Exponential`, `Congestion` and `TimeDecay` look only at the number of
runnable items per worker. This queue is modelled on an article, and these laws are the article's
three experiments. They are kept for comparison.
"""

from __future__ import annotations

from math import ceil, sqrt

import msgspec

from heatsink.primitives.damping import RecentPeak
from heatsink.primitives.words import counted

from .load import Load, Target, WorkerRules

STEP = 1.2
SAMPLE_ITEMS = 10
SLOWER = 0.15  # service times may grow by this share, beyond what chance explains
GAIN_MIN = 0.7  # share of the throughput that a step adds if every new worker counts in full
LOOK_ITEMS, LOOK_S = 100, 10.0
LONG_LOOK_ITEMS, LONG_LOOK_S = 1_000, 20.0
FIRST_PROBE_S = 30.0  # doubles each time the knee is found at the same place
ARRIVAL_WEIGHT = 0.3
WORTH_SHRINKING = 0.9
CALM = 0.1  # share of `depth` below which there are too many workers


class LittlesLaw:
    """Workers = (arrival rate + backlog / drain time) × service time, plus a margin for arrivals.

    The margin is a multiple of the square root of the workers that arrivals need. Only runnable
    items count as backlog. Of rate-limited items, only as many count as finish now, since further
    workers would only wait for the rate limit.
    """

    def __init__(self, rules: WorkerRules) -> None:
        self._rules = rules
        self._knee = Knee(rules.probe_again_s)
        self._last: Load | None = None
        self._peak = RecentPeak(rules.hold_s)
        self._since_s: float | None = None
        self._arrival_per_s = 0.0

    def target(self, load: Load) -> Target | None:
        if self._since_s is None:
            self._since_s = load.time_s
        last, self._last = self._last, load
        if not load.service_s:
            return None
        needed = self._needed(load)
        self._peak.add(load.time_s, needed)
        if needed > load.workers or (needed == load.workers and self._knee.is_untested(needed)):
            return self._more(load, last, needed)
        self._knee.rest()
        return self._fewer(load)

    def _needed(self, load: Load) -> int:
        """Return the number of workers that the load needs.

        Arrivals count at most at the rate at which items finish, since items that arrive faster are
        already in the backlog. This law does not know the rates of rate limits, so rate-limited
        items, too, count at most at the rate at which items finish now.
        """
        arrival_per_s = min(load.arrival_per_s, load.done_per_s)
        self._arrival_per_s += ARRIVAL_WEIGHT * (arrival_per_s - self._arrival_per_s)
        arrivals = self._arrival_per_s * load.service_s
        if load.limited:
            arrivals += min(load.done_per_s, load.limited / self._rules.drain_s) * load.service_s
        backlog = load.work_s / self._rules.drain_s
        return self._rules.bounded(ceil(arrivals + backlog + self._rules.margin * sqrt(arrivals)))

    def _more(self, load: Load, last: Load | None, needed: int) -> Target:
        allowed, why = self._knee.allow(load, last, needed)
        work = f"{counted(load.runnable, 'item')} can start, {_duration(load.service_s)} each"
        aim = f"{counted(needed, 'worker')} for an empty queue in {self._rules.drain_s:g} s"
        reason = f"{work}: {aim}; {why}"
        return Target(max(allowed, self._rules.base), reason)

    def _fewer(self, load: Load) -> Target | None:
        assert self._since_s is not None
        if load.time_s - self._since_s < self._rules.hold_s:
            return None
        peak = int(self._peak.at(load.time_s))
        if peak > load.workers * WORTH_SHRINKING:
            return None
        return Target(
            peak, f"at most {counted(peak, 'worker')} needed in the last {self._rules.hold_s:g} s"
        )


def _duration(seconds: float) -> str:
    return f"{seconds:,.3g} s" if seconds >= 1 else f"{1_000 * seconds:,.3g} ms"


class SlowStart:
    """Decides after each doubling of the workers whether they may double again (slow start in TCP).

    `judge` compares the service time after the doubling with the service time before. Service times
    vary, so the items in a small sample may be slow by chance. Therefore `judge` tolerates a larger
    difference if the sample is small.
    """

    def __init__(self) -> None:
        self._items = 0
        self._used_s = 0.0
        self._first: Load | None = None
        self.knee: int | None = None

    def rest(self) -> None:
        self._first = None

    def judge(self, load: Load, last: Load | None) -> bool | None:
        """Return True if items take no longer than before the workers doubled.

        Return False and set `knee` if items take longer. Return None until enough items have been
        measured.
        """
        if self._first is None or self._first.workers != load.workers:
            self._first = last if last is not None and last.workers == load.workers else load
        items = load.settled - self._first.settled
        used_s = load.used_s - self._first.used_s
        elapsed_s = load.time_s - self._first.time_s
        is_over = elapsed_s >= LOOK_S + 2 * load.service_s
        if used_s <= 0 or elapsed_s < load.service_s or (items < SAMPLE_ITEMS and not is_over):
            return None
        slower = used_s / items / (self._used_s / self._items) if self._items else 1.0
        chance = 2 * sqrt(1 / items + 1 / self._items) if self._items else 0.0
        if slower > 1 + max(SLOWER, chance):
            self.knee = max(int(load.workers / slower), load.workers // 4)
            return False
        self._items += items
        self._used_s += used_s
        self._first = None
        return True


class Knee:
    """Finds the point where more workers no longer add throughput.

    By Little's law, throughput is the number of items in flight divided by the service time. So if
    a downstream service is at its limit, service times grow with the number of workers. First the
    law doubles the number of workers until service times grow. So for one or two turns of the
    coordinator there may be twice as many workers as at the knee. After that, the law adds few
    workers at a time, and measures the effect before it adds more. Service times vary. So if a step
    seems to add no throughput, the throughput before and after the step is measured longer.
    """

    def __init__(self, probe_again_s: float) -> None:
        self._wait_s_max = probe_again_s
        self._wait_s = 0.0
        self._place = 0
        self._proven = 0
        self._found_s: float | None = None
        self._start = SlowStart()
        self.rest()

    def rest(self) -> None:
        """Drop the current measurement, for example because the partition has enough workers."""
        self._look: Look | None = None
        self._before: Point | None = None
        self._above: Point | None = None
        self._is_doubtful = False
        self._start.rest()

    def is_untested(self, workers: int) -> bool:
        """Return whether the workers doubled to `workers` and the effect is not measured yet."""
        return self._start.knee is None and 0 < self._proven < workers

    def allow(self, load: Load, last: Load | None, wanted: int) -> tuple[int, str]:
        """Return how many of the `wanted` workers to allow, and the reason."""
        if self._found_s is None and load.workers >= self._proven:
            is_first = self._start.knee is None
            return self._double(load, last, wanted) if is_first else self._climb(load, wanted)
        if self._found_s is not None and load.time_s - self._found_s >= self._wait_s:
            self._step_back()
        self.rest()
        known = f"up to {counted(self._proven, 'worker')} added throughput"
        if self._found_s is not None:
            known = f"more than {counted(self._proven, 'worker')} added no throughput"
        return min(load.workers * 2, self._proven, wanted), known

    def _step_back(self) -> None:
        """Allow fewer workers, one step down, and measure every step up again.

        The knee may have moved.
        """
        self.rest()
        self._found_s = None
        self._proven = max(int(self._proven / STEP), 1)

    def _double(self, load: Load, last: Load | None, wanted: int) -> tuple[int, str]:
        is_faster = self._start.judge(load, last)
        if is_faster is None:
            return load.workers, f"measuring {counted(load.workers, 'worker')}"
        if is_faster:
            self._proven = load.workers
            known = f"{counted(load.workers, 'worker')} did not slow items down"
            return min(load.workers * 2, wanted), known
        assert self._start.knee is not None
        self._proven = self._start.knee
        slower = f"items take longer with {counted(load.workers, 'worker')}"
        return min(self._proven, wanted), slower

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
            return min(
                self._before.workers, wanted
            ), f"comparing with {counted(here.workers, 'worker')}"
        self._is_doubtful = True
        return min(load.workers, wanted), "measuring longer whether the last step added throughput"

    def _step_up(self, here: Point, wanted: int) -> tuple[int, str]:
        self.rest()
        self._proven, self._before = here.workers, here
        step = min(ceil(here.workers * STEP), wanted)
        return step, f"{here.per_s:,.0f}/s with {counted(here.workers, 'worker')}"

    def _judge(self, below: Point, above: Point, load: Load, wanted: int) -> tuple[int, str]:
        if _gain(below, above) >= GAIN_MIN:
            return self._step_up(above, wanted)
        self.rest()
        self._proven, self._found_s = _knee(below, above), load.time_s
        is_known = self._place / STEP <= self._proven <= self._place * STEP
        self._wait_s = min(self._wait_s * 2 if is_known else FIRST_PROBE_S, self._wait_s_max)
        self._place = self._proven
        return min(wanted, self._proven), f"{counted(above.workers, 'worker')} added no throughput"


class Look:
    """Measures the throughput with the present number of workers.

    The measurement begins one service time after the number changed, so that the change has taken
    effect.
    """

    def __init__(self, load: Load) -> None:
        self.workers = load.workers
        self._from_s = load.time_s + load.service_s
        self._first: Load | None = None
        self._busy: list[int] = []

    def at(self, load: Load, is_long: bool) -> Point | None:
        """Return the throughput; None until enough items have been measured.

        With `is_long`, more items are needed.
        """
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
    """Experiment 0: double the workers if there are more than `depth` runnable items per worker.

    Below a tenth of `depth`, halve the workers. Under this law the number of workers oscillates.
    """

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
    """Experiment 1, like TCP: double the workers up to a threshold, then add a few at a time.

    When the load falls, this law halves the workers and sets the threshold to the halved number.
    """

    def __init__(self, rules: WorkerRules) -> None:
        self._rules = rules
        self._threshold = float(rules.workers_max)

    def target(self, load: Load) -> Target | None:
        rules, workers = self._rules, load.workers
        if load.depth > rules.depth:
            starting = workers < self._threshold
            wanted = min(workers * 2, self._threshold) if starting else workers + rules.base
            linear = f"{rules.base} more at a time from {self._threshold:.0f} workers on"
            why = "slow start, doubled" if starting else linear
            return Target(rules.bounded(wanted), f"{_deep(load)}: {why}")
        if load.depth < rules.depth * CALM and workers > rules.base:
            self._threshold = max(workers / 2, rules.base)
            return Target(rules.bounded(self._threshold), _calm(load))
        return None


class TimeDecay:
    """Experiment 2, which the article chose: double the workers after several turns above `depth`.

    `depth` is a number of runnable items per worker. This law removes workers only after the load
    has stayed below `depth` for a time.
    """

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
        return Target(rules.bounded(load.workers // 2), f"{_calm(load)}: halved after a calm time")

    def _grown(self, load: Load) -> Target:
        self._deep_cycles = 0
        cap = self._rules.base * self._rules.growth_max
        wanted = self._rules.bounded(min(load.workers * 2, cap))
        return Target(wanted, f"{_deep(load)}, {self._rules.cycles} turns in a row")


def _deep(load: Load) -> str:
    return f"{load.depth:,.1f} items per worker can run now"


def _calm(load: Load) -> str:
    return f"only {load.depth:,.1f} items per worker can run now"
