"""Repeats the load test of the article that the queue is modelled on, on virtual time.

Each step runs 100,000 items, for which 8 workers need 25 minutes. The number of workers is fixed in
the first step. In the second step it doubles above a queue size. Then it follows the number of
waiting items per worker: first on one queue, then in each of several partitions. The last runs show
why Heatsink scales workers per partition, and not by whole instances of 32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from heatsink.bulk.scaling.laws import LittlesLaw, TimeDecay
from heatsink.bulk.scaling.load import Law, Load, Target, WorkerRules
from heatsink.testing import SkewedClock

from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all, simulated
from .world import ACTION, LabWorld, Saturating, WorkerFleet, world

ITEMS = 100_000
WORKERS = 8
FIXED_S = 25 * 60
QUEUE_SIZE = ITEMS // 10
PARTITIONS = 4
GROUPS = 40
INSTANCE = 32
POINTS = 300
NEVER = 10**9
MOST, NEVER_FULL = 8 * WORKERS, 10**6


class QueueSize:
    """Doubles the number of workers while more than `size` items wait: the article's first idea."""

    def __init__(self, rules: WorkerRules, size: int) -> None:
        self._base = rules.base
        self._size = size

    def target(self, load: Load) -> Target | None:
        is_long = load.runnable > self._size
        return Target(self._base * 2 if is_long else self._base, f"{load.runnable:,} items wait")


class Instances:
    """Rounds the workers that Little's law asks for up to whole instances of 32 workers."""

    def __init__(self, rules: WorkerRules) -> None:
        self._law = LittlesLaw(rules)

    def target(self, load: Load) -> Target | None:
        wanted = self._law.target(load)
        if wanted is None:
            return None
        return Target(-(-wanted.workers // INSTANCE) * INSTANCE, wanted.reason)


class Step(msgspec.Struct, frozen=True):
    """One step of the load test. `reported` is the duration that the article reports."""

    name: str
    law: str = ""
    partitions: int = 1
    base: int = WORKERS
    groups: int = 1
    reported: str = ""
    gap_s: float = 0.0


STEPS = (
    Step("8 fixed workers", reported="25 min"),
    Step("twice the workers above a queue size", "queue size", reported="14 min"),
    Step("depth per worker, one queue", "time decay"),
    Step(
        "depth per worker, 4 partitions",
        "time decay",
        PARTITIONS,
        WORKERS // PARTITIONS,
        GROUPS,
        "4 min",
    ),
    Step("Little's law, 4 partitions", "Little's law", PARTITIONS, WORKERS // PARTITIONS, GROUPS),
)
WAVES, GAP_S = 20, 15.0
STEADY_S = 60.0  # a batch may take a minute: workers follow the load, not each batch
INSTANCE_STEPS = (
    Step("whole instances of 32 workers", "instances", 1, INSTANCE, WAVES, gap_s=GAP_S),
    Step("workers per partition", "per partition", PARTITIONS, 2, WAVES, gap_s=GAP_S),
)
STORY = f"""\
A customer submits {ITEMS:,} items, and {WORKERS} workers need 25 minutes for them. The article
reports four steps. Twice the workers while the queue is long: 14 minutes. Then the number of
waiting items per worker, which says the same for any number of workers. Then {PARTITIONS}
partitions, each with workers of its own: 4 minutes, since each may grow to 8 times its base.

Every step runs the production code on virtual time. The items come as {GROUPS} batches where there
are partitions, and each batch stays in one partition, as in the article. The last row is Heatsink's
default, Little's law, with {MOST} workers at most for all partitions together: it gives them to the
partitions where items wait, while depth per worker lets each partition grow to 8 times its base."""


class StepMoment(msgspec.Struct, frozen=True):
    time_s: float
    workers: list[int]
    waiting: int


class StepRun(msgspec.Struct, frozen=True):
    step: Step
    took_s: float
    moments: list[StepMoment]

    @property
    def peak(self) -> int:
        return max(sum(moment.workers) for moment in self.moments)

    @property
    def worker_hours(self) -> float:
        return sum(sum(moment.workers) for moment in self.moments) / 3600


def law_of(step: Step, items: int) -> Callable[[WorkerRules], Law] | None:
    laws: dict[str, Callable[[WorkerRules], Law]] = {
        "queue size": partial(QueueSize, size=items // 10),
        "time decay": TimeDecay,
        "Little's law": LittlesLaw,
        "instances": Instances,
        "per partition": LittlesLaw,
    }
    return laws.get(step.law)


async def play(step: Step, items: int, seed: int) -> StepRun:
    clock, moments = SkewedClock(), list[StepMoment]()
    service = Saturating(clock, FIXED_S * WORKERS / items, NEVER)
    together = MOST if step.law == "Little's law" else NEVER_FULL
    drain_s = STEADY_S if step.gap_s else WorkerRules().drain_s
    rules = WorkerRules(base=step.base, fleet_max=together, drain_s=drain_s)
    fleet = WorkerFleet(step.partitions, step.base, "", rules, seed, law_of(step, items))

    async def look(at: LabWorld) -> None:
        loads = [await at.load(number) for number in range(step.partitions)]
        workers = [at.consumer.workers.get(number, 0) for number in range(step.partitions)]
        waiting = sum(load.runnable for load in loads)
        moments.append(StepMoment(at.now_s() - began_s, workers, waiting))

    async with world(fleet, service.call, clock) as lab:
        began_s = lab.now_s()
        async with lab.looking(look):
            groups = []
            for _ in range(step.groups):
                group = await lab.bulk.submit(ACTION, range(items // step.groups), spread=False)
                groups.append(group)
                await clock.sleep(step.gap_s)
            await asyncio.gather(*(lab.bulk.wait(group.id) for group in groups))
        return StepRun(step, lab.now_s() - began_s, moments)


def experiment(items: int = ITEMS, seed: int = 1) -> LabReport:
    runs: list[StepRun] = run_all(
        [simulated(play, step, items, seed) for step in (*STEPS, *INSTANCE_STEPS)]
    )
    steps, instances = runs[: len(STEPS)], runs[len(STEPS) :]
    fixed, described, ours = steps[0], steps[3], steps[4]
    return LabReport(
        name="steps",
        title=f"{items:,} items, from 25 minutes to 4",
        story=STORY,
        figures=[
            Figure("the article's last step", _minutes(described.took_s), "reported: 4 min"),
            Figure("Little's law", _minutes(ours.took_s), f"{ours.peak} workers at most"),
            Figure("8 fixed workers", _minutes(fixed.took_s), "reported: 25 min"),
        ],
        tables=[_table(steps)],
        charts=[
            Chart(
                "Before and after",
                "minutes",
                [
                    Series(
                        "measured",
                        [run.step.name for run in steps],
                        [round(run.took_s / 60, 1) for run in steps],
                    )
                ],
                x_title="",
                kind="bars",
            ),
            _partition_chart("Workers of each partition by depth per worker", described),
            _partition_chart("Workers of each partition by Little's law", ours),
            _sum_chart(
                "The same items in 20 batches, one every 15 s: all workers",
                instances,
                "Whole instances go in steps of 32. Partitions follow their own load by a few.",
            ),
            _sum_chart("All workers in each step", steps),
        ],
    )


def _table(runs: list[StepRun]) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            run.step.name,
            _minutes(run.took_s),
            run.step.reported,
            run.peak,
            round(run.worker_hours, 2),
        ]
        for run in runs
    ]
    return ReportTable("The steps", ["step", "time", "reported", "workers", "hours"], rows)


def _partition_chart(title: str, run: StepRun) -> Chart:
    some = _some(run)
    times = [round(moment.time_s, 1) for moment in some]
    lines = [
        Series(f"partition {number}", times, [m.workers[number] for m in some], "step", number)
        for number in range(run.step.partitions)
    ]
    return Chart(title, "workers", lines)


def _sum_chart(title: str, runs: list[StepRun], note: str = "") -> Chart:
    lines = [
        Series(
            run.step.name,
            [round(moment.time_s, 1) for moment in _some(run)],
            [sum(moment.workers) for moment in _some(run)],
            "step",
            number,
        )
        for number, run in enumerate(runs)
    ]
    return Chart(title, "workers", lines, note=note)


def _some(run: StepRun) -> list[StepMoment]:
    return run.moments[:: max(len(run.moments) // POINTS, 1)]


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
