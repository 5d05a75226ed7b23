"""How many workers each partition should have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from heatsink.registry.decision import Decision

from .filling import water_fill
from .littles_law import LittlesLaw
from .load import Load, Meter, Observation
from .rules import Law, Target, WorkerRules
from .seed import Congestion, Exponential, TimeDecay

WORKERS = "workers"
PATIENCE = 3  # turns that a decision gets to take effect before what is there counts
LAWS: dict[str, Callable[[WorkerRules], Law]] = {
    "littles_law": LittlesLaw,
    "time_decay": TimeDecay,
    "congestion": Congestion,
    "exponential": Exponential,
}


@dataclass
class _Partition:
    law: Law
    meter: Meter = field(default_factory=Meter)
    target: int | None = None
    waited: int = 0

    def next_target(self, load: Load) -> Target:
        """Nothing is concluded from workers that have not come or gone yet."""
        settled = Target(load.workers if self.target is None else self.target, "as before")
        if load.workers != settled.workers and self.waited < PATIENCE:
            self.waited += 1
            return settled
        self.waited = 0
        return self.law.target(load) or settled


class WorkerPolicy:
    """One law per partition, and one cap for all."""

    def __init__(self, law: Callable[[WorkerRules], Law], rules: WorkerRules) -> None:
        self._law = law
        self._rules = rules
        self._partitions: dict[int, _Partition] = {}

    def decide(self, observation: Observation) -> list[Decision]:
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
        given = water_fill(wanted, work, self._rules.fleet_max)
        shared = f"of {self._rules.fleet_max} for all"
        return {
            number: target
            if given[number] == target.workers
            else Target(given[number], f"{given[number]} {shared}; {target.reason}")
            for number, target in targets.items()
        }

    def _news(self, loads: dict[int, Load], targets: dict[int, Target]) -> list[Decision]:
        decisions = []
        for number, target in targets.items():
            partition = self._partitions[number]
            in_force = loads[number].workers if partition.target is None else partition.target
            partition.target = target.workers
            if target.workers != in_force:
                decisions.append(
                    Decision(f"partition:{number}", WORKERS, target.workers, target.reason)
                )
        return decisions


POLICIES: dict[str, Callable[[WorkerRules], WorkerPolicy]] = {
    name: partial(WorkerPolicy, law) for name, law in LAWS.items()
}
