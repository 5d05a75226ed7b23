"""Repeats, on virtual time, the load test of the article on which the queue is modelled.

Each step runs 100,000 items, for which 8 workers need 25 minutes. The number of workers is fixed in
the first step. In the second step it doubles while the queue is longer than a threshold. In the
next steps it follows the number of waiting items per worker: first on one queue, then in each of
several partitions. The last runs show why Heatsink scales workers per partition, and not by whole
instances of 32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from textwrap import wrap

import msgspec

from heatsink.bulk.scaling.laws import LittlesLaw, TimeDecay
from heatsink.bulk.scaling.load import Law, Load, Target, WorkerRules
from heatsink.primitives.words import counted
from heatsink.testing import SkewedClock

from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all, simulated
from .scaling import minutes
from .world import ACTION, LabWorld, Saturating, WorkerFleet, world

ITEMS = 100_000
WORKERS = 8
FIXED_S = 25 * 60
PARTITIONS = 4
GROUPS = 40
INSTANCE = 32
POINTS = 300
NEVER = 10**9
BUSY = "A busy time between two quiet ones"
WRAP = 12  # characters in a line below a bar
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
    """One step of the load test. `reported_min` is the duration that the article reports.

    The items come in batches, one every `gap_s`. `waves` are their sizes, relative to each other.
    """

    name: str
    law: str = ""
    partitions: int = 1
    base: int = WORKERS
    waves: tuple[int, ...] = (1,)
    reported_min: int | None = None
    gap_s: float = 0.0

    def sizes(self, items: int) -> list[int]:
        return [items * wave // sum(self.waves) for wave in self.waves]


EQUAL = (1,) * GROUPS
BASE = WORKERS // PARTITIONS
STEPS = (
    Step("8 fixed workers", reported_min=25),
    Step("16 for a long queue", "queue size", reported_min=14),
    Step("depth per worker", "time decay"),
    Step("depth, 4 partitions", "time decay", PARTITIONS, BASE, EQUAL, 4),
    Step("Little's law, 4 partitions", "Little's law", PARTITIONS, BASE, EQUAL),
)
WAVES, GAP_S = (*(1,) * 12, *(8,) * 6, *(1,) * 12), 15.0
STEADY_S = 60.0  # a batch may take a minute: workers follow the load, not each batch
INSTANCE_STEPS = (
    Step("as whole instances of 32", "instances", 1, INSTANCE, WAVES, gap_s=GAP_S),
    Step("one by one in each partition", "per partition", PARTITIONS, BASE, WAVES, gap_s=GAP_S),
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
            for size in step.sizes(items):
                groups.append(await lab.bulk.submit(ACTION, range(size), spread=False))
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
            Figure("the article's last step", minutes(described.took_s), "reported: 4 min"),
            Figure("Little's law", minutes(ours.took_s), f"{counted(ours.peak, 'worker')} at most"),
            Figure("8 fixed workers", minutes(fixed.took_s), "reported: 25 min"),
        ],
        tables=[_steps_table(steps), _busy_table(instances)],
        charts=[
            _times_chart(steps),
            _partition_chart(
                "Workers of each partition by depth per worker",
                described,
                "All partitions grow at the same moments, since each has the same load.",
            ),
            _partition_chart("Workers of each partition by Little's law", ours),
            _sum_chart(
                f"{BUSY}: all workers",
                instances,
                "Whole instances go in steps of 32. Partitions follow their own load by a few.",
            ),
            _partition_chart("The same busy time: workers of each partition", instances[1]),
            _sum_chart("All workers in each step", steps),
        ],
    )


def _times_chart(runs: list[StepRun]) -> Chart:
    reported = [run for run in runs if run.step.reported_min]
    bars = [
        Series(
            "measured",
            [_wrapped(run.step.name) for run in runs],
            [round(run.took_s / 60, 1) for run in runs],
        ),
        Series(
            "reported",
            [_wrapped(run.step.name) for run in reported],
            [run.step.reported_min or 0.0 for run in reported],
            colour=1,
        ),
    ]
    return Chart("Before and after", "minutes", bars, x_title="", kind="bars")


def _wrapped(name: str) -> str:
    """Break a name into short lines, so that it fits below its bar."""
    return "<br>".join(wrap(name, WRAP))


def _steps_table(runs: list[StepRun]) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            run.step.name,
            minutes(run.took_s),
            f"{run.step.reported_min} min" if run.step.reported_min else "",
            run.peak,
            round(run.worker_hours, 2),
        ]
        for run in runs
    ]
    return ReportTable("The steps", ["step", "time", "reported", "workers", "hours"], rows)


def _busy_table(runs: list[StepRun]) -> ReportTable:
    rows: list[list[Cell]] = [
        [run.step.name, minutes(run.took_s), run.peak, round(run.worker_hours, 2)] for run in runs
    ]
    note = (
        f"The same items in batches, one every {GAP_S:g} s. Six of {len(WAVES)} are 8 times as big."
    )
    return ReportTable(BUSY, ["workers are added", "time", "workers", "hours"], rows, note)


def _partition_chart(title: str, run: StepRun, note: str = "") -> Chart:
    some = _some(run)
    times = [round(moment.time_s, 1) for moment in some]
    lines = [
        Series(f"partition {number}", times, [m.workers[number] for m in some], "step", number)
        for number in range(run.step.partitions)
    ]
    return Chart(title, "workers", lines, note=note)


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
