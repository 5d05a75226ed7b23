"""Our law: as many workers as the work needs, and no more than add throughput."""

from __future__ import annotations

from math import ceil, sqrt

from heatsink.control.damping import RecentPeak

from .knee import Knee
from .load import Load
from .rules import Target, WorkerRules

ARRIVAL_WEIGHT = 0.3
WORTH_SHRINKING = 0.9


class LittlesLaw:
    """W = (arrival + backlog / drain time) × service time, and a square-root margin.

    Only what could run now counts as backlog. Workers beyond a lane's rate × service time would
    only wait for its grants, so limited lanes count for that at most.
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
        """What arrives counts only as fast as it is done: the rest of it is in the backlog."""
        arrival_per_s = min(load.arrival_per_s, load.done_per_s)
        self._arrival_per_s += ARRIVAL_WEIGHT * (arrival_per_s - self._arrival_per_s)
        busy = self._arrival_per_s * load.service_s + load.work_s / self._rules.drain_s
        if load.limited:
            of_lanes = load.limited_per_s
            if of_lanes is None:
                of_lanes = load.done_per_s
            busy += min(of_lanes, load.limited / self._rules.drain_s) * load.service_s
        return self._rules.bounded(ceil(busy + self._rules.margin * sqrt(busy)))

    def _more(self, load: Load, needed: int) -> Target:
        allowed, why = self._knee.allow(load, needed)
        work = f"{load.runnable:,} runnable × {load.service_s:,.3g} s"
        reason = f"{work} in {self._rules.drain_s:g} s need {needed}; {why}"
        return Target(max(allowed, self._rules.base), reason)

    def _fewer(self, load: Load) -> Target | None:
        assert self._since_s is not None
        if load.time_s - self._since_s < self._rules.hold_s:
            return None
        peak = int(self._peak.at(load.time_s))
        if peak > load.workers * WORTH_SHRINKING:
            return None
        return Target(peak, f"at most {peak} needed for {self._rules.hold_s:g} s")
