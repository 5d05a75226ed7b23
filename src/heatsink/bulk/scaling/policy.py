"""The scaling policy: one law per partition, and a maximum for the workers of all partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Decision

from .laws import Congestion, Exponential, LittlesLaw, TimeDecay
from .load import Law, Load, LoadMeter, Target, WorkerObservation, WorkerRules

WORKERS = "workers"
SHARE_SLACK = 0.1
PATIENCE = 3  # turns that a decision gets to take effect
LAWS: dict[str, Callable[[WorkerRules], Law]] = {
    "littles_law": LittlesLaw,
    "time_decay": TimeDecay,
    "congestion": Congestion,
    "exponential": Exponential,
}


@dataclass
class _Partition:
    law: Law
    meter: LoadMeter = field(default_factory=LoadMeter)
    target: int | None = None
    waited: int = 0

    def next_target(self, load: Load) -> Target:
        """Return the number of workers that the partition should have next.

        While the partition does not have as many workers as its last target, the last target stays,
        for at most `PATIENCE` turns. After that the scaling law decides.
        """
        settled = Target(load.workers if self.target is None else self.target, "as before")
        if load.workers != settled.workers and self.waited < PATIENCE:
            self.waited += 1
            return settled
        self.waited = 0
        return self.law.target(load) or settled


class WorkerPolicy:
    """Decides the number of workers of each partition: one law per partition, one total maximum."""

    def __init__(self, law: Callable[[WorkerRules], Law], rules: WorkerRules) -> None:
        self._law = law
        self._rules = rules
        self._partitions: dict[int, _Partition] = {}

    def adopt(self, law: str, rules: WorkerRules) -> None:
        """Use this law and these rules from now on. After a change, all measurements start anew."""
        if (LAWS[law], rules) != (self._law, self._rules):
            self._law, self._rules = LAWS[law], rules
            for partition in self._partitions.values():
                partition.law = self._law(rules)

    def decide(self, observation: WorkerObservation) -> list[Decision]:
        self._partitions = {
            number: self._partitions.get(number) or _Partition(self._law(self._rules))
            for number in observation.partitions
        }
        loads = {
            number: self._partitions[number].meter.read(reading, observation.time_s)
            for number, reading in observation.partitions.items()
        }
        targets = {
            number: self._partitions[number].next_target(load) for number, load in loads.items()
        }
        return self._news(loads, self._within_cap(loads, targets))

    def _within_cap(self, loads: dict[int, Load], targets: dict[int, Target]) -> dict[int, Target]:
        wanted = {number: target.workers for number, target in targets.items()}
        work = {number: load.work_s for number, load in loads.items()}
        given = self._settled(wanted, water_fill(wanted, work, self._rules.fleet_max))
        shared = f"of the {self._rules.fleet_max} workers for all partitions"
        return {
            number: target
            if given[number] == target.workers
            else Target(given[number], f"{given[number]} {shared}; {target.reason}")
            for number, target in targets.items()
        }

    def _settled(self, wanted: dict[int, int], given: dict[int, int]) -> dict[int, int]:
        """Return each partition's workers: `given`, or the present targets if they are near it.

        `wanted` is what the scaling laws want, by partition. `given` divides the fleet's maximum
        number of workers among the partitions. Waiting work changes every second, and workers
        should not move for small changes. So the present targets stay if each is within a tenth of
        `given` and none is above `wanted`. Two cases are excepted: `given` is all that is wanted,
        or the targets exceed the maximum.
        """
        in_force = {number: self._partitions[number].target or 0 for number in given}
        if given == wanted or sum(in_force.values()) > self._rules.fleet_max:
            return given
        is_near = all(
            in_force[number] <= wanted[number]
            and abs(in_force[number] - share) <= max(1, SHARE_SLACK * share)
            for number, share in given.items()
        )
        return in_force if is_near else given

    def _news(self, loads: dict[int, Load], targets: dict[int, Target]) -> list[Decision]:
        decisions = []
        for number, target in targets.items():
            partition = self._partitions[number]
            in_force = loads[number].workers if partition.target is None else partition.target
            partition.target = target.workers
            if target.workers != in_force:
                decisions.append(
                    Decision(
                        Subject(Kind.WORKERS, str(number)), WORKERS, target.workers, target.reason
                    )
                )
        return decisions


POLICIES: dict[str, Callable[[WorkerRules], WorkerPolicy]] = {
    name: partial(WorkerPolicy, law) for name, law in LAWS.items()
}


def water_fill(wanted: Mapping[int, int], weights: Mapping[int, float], cap: int) -> dict[int, int]:
    """Return how many workers each partition gets if `cap` workers are divided by weight.

    Workers that one partition does not want go to other partitions.

    Every partition gets at least one worker, even beyond the cap: without a worker, its items would
    wait.
    """
    if sum(wanted.values()) <= cap:
        return dict(wanted)
    given = {name: min(want, 1) for name, want in wanted.items()}
    left = cap - sum(given.values())
    open_names = sorted(name for name in wanted if wanted[name] > given[name])
    while left > 0 and open_names:
        total = sum(_weight(weights, name) for name in open_names)
        per_weight = left / total
        for name in open_names:
            more = int(per_weight * _weight(weights, name))
            more = min(more, wanted[name] - given[name], left)
            given[name] += more
            left -= more
        still = [name for name in open_names if wanted[name] > given[name]]
        if still == open_names:
            return _with_rest(given, wanted, weights, left)
        open_names = still
    return given


def _with_rest(
    given: dict[int, int], wanted: Mapping[int, int], weights: Mapping[int, float], left: int
) -> dict[int, int]:
    """Add `left` workers to `given`, one by one: each to the partition with fewest for its weight.

    No partition gets more than it wants.
    """
    for _ in range(left):
        behind = [name for name in given if given[name] < wanted[name]]
        if not behind:
            break
        given[min(behind, key=lambda name: (given[name] / _weight(weights, name), name))] += 1
    return given


def _weight(weights: Mapping[int, float], name: int) -> float:
    return max(weights.get(name, 0.0), 1e-9)
