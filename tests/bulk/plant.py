"""What scaling policies steer, without a queue: partitions in front of a downstream that fills up.

Beyond `knee` in flight the service time grows in proportion, so that throughput stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from heatsink.bulk.scaling.load import PartitionReading, WorkerObservation, WorkerRules
from heatsink.bulk.scaling.policy import POLICIES, WorkerPolicy
from heatsink.bulk.store import PartitionLoad


@dataclass
class Plant:
    policy: WorkerPolicy
    knee: float = 64.0
    service_s: float = 0.38
    workers: dict[int, int] = field(default_factory=lambda: {0: 8})
    waiting: dict[int, float] = field(default_factory=dict)
    limited: int = 0
    done: dict[int, float] = field(default_factory=dict)
    time_s: float = 0.0
    late_s: int = 0
    used_s: float = 0.0
    chance: Random | None = None
    coming: list[tuple[float, int, int]] = field(default_factory=list)
    history: list[dict[int, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def submit(self, items: int, partition: int = 0) -> None:
        self.waiting[partition] = self.waiting.get(partition, 0.0) + items

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self._live_a_second()
            self._let_workers_come()
            for decision in self.policy.decide(self._observation()):
                assert decision.setting == "workers"
                assert decision.value is not None
                number = int(decision.subject.name)
                self.coming.append((self.time_s + self.late_s, number, decision.value))
                self.reasons.append(f"{self.time_s:g} s: {decision.value}: {decision.reason}")
            self._let_workers_come()
            self.history.append(dict(self.workers))

    def _let_workers_come(self) -> None:
        while self.coming and self.coming[0][0] <= self.time_s:
            _, partition, workers = self.coming.pop(0)
            self.workers[partition] = workers

    def drain(self, within_s: int = 10_000) -> float:
        """How long it takes until nothing is left."""
        began_s = self.time_s
        while any(self.waiting.values()):
            self.run(1)
            assert self.time_s - began_s < within_s
        return self.time_s - began_s

    def peak(self, partition: int = 0) -> int:
        return max(workers[partition] for workers in self.history)

    def seconds_above(self, workers: float, partition: int = 0) -> int:
        return sum(at[partition] > workers for at in self.history)

    def worker_seconds(self) -> int:
        return sum(sum(at.values()) for at in self.history)

    @property
    def _service_now_s(self) -> float:
        return self.service_s * max(sum(self.workers.values()) / self.knee, 1.0)

    def _live_a_second(self) -> None:
        self.time_s += 1
        for partition, workers in self.workers.items():
            left = self.waiting.get(partition, 0.0)
            done = min(workers / self._service_now_s, left)
            self.waiting[partition] = left - done
            self.done[partition] = self.done.get(partition, 0.0) + done
            self.used_s += done * self._service_now_s * (1 + self._noise(done))

    def _noise(self, items: float) -> float:
        """Of the mean of so many service times that vary by as much as they are long."""
        return self.chance.gauss(0, items**-0.5) if self.chance and items >= 1 else 0.0

    def _observation(self) -> WorkerObservation:
        return WorkerObservation(self.time_s, {p: self._reading(p) for p in self.workers})

    def _reading(self, partition: int) -> PartitionReading:
        left, workers = self.waiting.get(partition, 0.0), self.workers[partition]
        in_flight = min(workers, int(left))
        service_s = self._service_now_s * (1 + max(self._noise(19), -0.5))
        load = PartitionLoad(
            runnable=max(int(left) - in_flight, 0),
            limited=self.limited,
            in_flight=in_flight,
            service_us=service_s * 1e6 if left or self.limited else 0.0,
            used_us=int(self.used_s * 1e6),
            done=int(self.done.get(partition, 0.0)),
        )
        return PartitionReading(load, workers)


def plant(name: str, rules: WorkerRules | None = None, knee: float = 64.0) -> Plant:
    return Plant(POLICIES[name](rules or WorkerRules(growth_max=32)), knee)
