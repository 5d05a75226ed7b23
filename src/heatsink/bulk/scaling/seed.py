"""The three laws of the post that this queue comes from: all go by runnable depth per worker."""

from __future__ import annotations

from .load import Load
from .rules import Target, WorkerRules

CALM = 0.1  # of the depth to grow at: from here on down there are too many workers


class Exponential:
    """Experiment 0: double when it is deep, halve when it is not. It swings."""

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
    """Experiment 1, after TCP: double up to a threshold, then add; halve, and remember where."""

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
    """Experiment 2, the seed's choice: double when it stays deep; shrink only with time."""

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
