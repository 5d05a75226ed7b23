"""The seed's load test: one spike on one partition, before and after, under each policy."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from os import cpu_count

import msgspec

from heatsink.bulk.scaling.policy import POLICIES
from heatsink.bulk.scaling.rules import WorkerRules
from heatsink.bulk.store import PartitionLoad
from heatsink.testing import SkewedClock, run_on_virtual_time

from .downstreams import Saturating
from .report import Cell, Chart, Figure, Report, Series, Table
from .world import ACTION, WORKERS_MAX, Fleet, World, world

ITEMS = 100_000
SERVICE_S = 0.38
FULL = 64
WORKERS = 8
FIXED = "8 fixed workers"
SEED_BEFORE_S, SEED_AFTER_S, SEED_WORKERS = 25 * 60, 4 * 60, 256
FEW_ITEMS = 20_000  # up to here another process would take longer to start
POINTS = 300
NAMES = {"littles_law": "Little's law", "time_decay": "time decay (the seed's)"}
COLOURS = {"littles_law": 0, "time_decay": 1, "congestion": 2, "exponential": 3, "": 4}


STORY = f"""\
Every item takes {SERVICE_S} s, and the service behind them is full at {FULL} calls at a time:
beyond that it only gets slower. The workers begin at {WORKERS} and may become {WORKERS_MAX}.

The seed's three policies go by the depth per worker and cannot see where the service is full.
Little's law goes by the work that waits, looks after each step whether it paid, and stays where
more workers add no throughput."""


class Moment(msgspec.Struct, frozen=True):
    time_s: float
    workers: int
    ready: int
    in_flight: int
    p95_s: float
    done: int

    @property
    def depth(self) -> float:
        return self.ready / max(self.workers, 1)


class Run(msgspec.Struct, frozen=True):
    policy: str
    took_s: float
    moments: list[Moment]

    @property
    def name(self) -> str:
        return NAMES.get(self.policy, self.policy) or FIXED

    @property
    def peak(self) -> int:
        return max(moment.workers for moment in self.moments)

    @property
    def worker_hours(self) -> float:
        return sum(moment.workers for moment in self.moments) / 3600


async def spike(policy: str, items: int, seed: int) -> Run:
    """One batch of so many items, from its acceptance to its end."""
    clock, moments = SkewedClock(), list[Moment]()
    downstream = Saturating(clock, SERVICE_S, FULL)
    rules = WorkerRules(base=WORKERS, workers_max=WORKERS_MAX, growth_max=WORKERS_MAX / WORKERS)
    fleet = Fleet(workers=WORKERS, policy=policy, rules=rules, seed=seed)

    async def look(at: World) -> None:
        moments.append(_moment(at, await at.load(), downstream))

    async with world(fleet, downstream.call, clock) as lab:
        began_s = lab.now_s()
        batch = await lab.bulk.submit(ACTION, range(items))
        async with lab.looking(look):
            await lab.bulk.wait(batch.id)
        shifted = [msgspec.structs.replace(m, time_s=m.time_s - began_s) for m in moments]
        return Run(policy, lab.now_s() - began_s, shifted)


def _moment(at: World, load: PartitionLoad, downstream: Saturating) -> Moment:
    return Moment(
        at.now_s(),
        at.consumer.workers.get(0, 0),
        load.runnable,
        load.in_flight,
        downstream.p95_s(),
        load.done,
    )


def run_one(policy: str, items: int, seed: int) -> Run:
    return run_on_virtual_time(spike(policy, items, seed))


def run_all(items: int, seed: int) -> list[Run]:
    names = ["", *POLICIES]
    if items <= FEW_ITEMS or (cpu_count() or 1) == 1:
        return [run_one(name, items, seed) for name in names]
    with ProcessPoolExecutor(min(len(names), cpu_count() or 1)) as processes:
        waiting = [processes.submit(run_one, name, items, seed) for name in names]
        return [each.result() for each in waiting]


def experiment(items: int = ITEMS, seed: int = 1) -> Report:
    fixed, *steered = run_all(items, seed)
    ours = next(run for run in steered if run.policy == "littles_law")
    theirs = next(run for run in steered if run.policy == "time_decay")
    less = 1 - ours.took_s / fixed.took_s
    seed_less = 1 - SEED_AFTER_S / SEED_BEFORE_S
    return Report(
        name="scaling",
        title=f"Scaling: {items:,} items on one partition",
        story=STORY,
        figures=[
            Figure("time against 8 fixed workers", f"−{less:.1%}", f"the seed: −{seed_less:.0%}"),
            Figure("it took", _minutes(ours.took_s), f"{_minutes(fixed.took_s)} with 8"),
            Figure("workers at most", str(ours.peak), f"{theirs.peak} by the seed's choice"),
            Figure(
                "worker hours",
                f"{ours.worker_hours:.1f}",
                f"{theirs.worker_hours:.1f} by the seed's choice",
            ),
        ],
        tables=[_table(fixed, steered)],
        charts=[*_policy_charts(fixed, steered), *_metric_charts(theirs, ours)],
    )


def _table(fixed: Run, steered: list[Run]) -> Table:
    rows: list[list[Cell]] = [
        [
            run.name,
            _minutes(run.took_s),
            f"−{1 - run.took_s / fixed.took_s:.1%}" if run is not fixed else "",
            run.peak,
            f"{run.peak / FULL:.2f} ×",
            round(run.worker_hours, 2),
        ]
        for run in (fixed, *steered)
    ]
    columns = ["policy", "time", "less than fixed", "workers at most", "of what is full", "hours"]
    note = f"Hours are worker hours. The seed's own test: 25 → 4 min with {SEED_WORKERS} workers."
    return Table("The same spike under each policy", columns, rows, note)


def _policy_charts(fixed: Run, steered: list[Run]) -> list[Chart]:
    every = [fixed, *steered]
    shown_s = max(run.took_s for run in steered)
    return [
        Chart(
            "Workers",
            "workers",
            [_line(run, "workers", shown_s, "step") for run in every] + [_full(shown_s)],
        ),
        Chart("Items that wait", "items", [_line(run, "ready", shown_s) for run in every]),
    ]


def _full(until_s: float) -> Series:
    return Series("the service is full", [0.0, until_s], [FULL, FULL], "dot", COLOURS[""])


def _metric_charts(theirs: Run, ours: Run) -> list[Chart]:
    """The seed's candidates for what to scale on, as they look from outside."""
    candidates = [
        ("Ready queue", "ready", "items", "Says how much there is, not whether workers are short."),
        ("In flight", "in_flight", "items", "Follows the workers: it says what was decided."),
        ("p95 of the execution time", "p95_s", "seconds", "Flat until it is too late."),
        ("Depth per worker", "depth", "items per worker", "The seed's choice; blind to the knee."),
    ]
    return [
        Chart(
            f"Candidate: {title}",
            unit,
            [_line(theirs, field, theirs.took_s), _line(ours, field, ours.took_s)],
            note=note,
        )
        for title, field, unit, note in candidates
    ]


def _line(run: Run, field: str, until_s: float, style: str = "plain") -> Series:
    shown = [moment for moment in run.moments if moment.time_s <= until_s]
    some = shown[:: max(len(shown) // POINTS, 1)]
    values = [round(float(getattr(moment, field)), 3) for moment in some]
    times = [round(moment.time_s, 1) for moment in some]
    return Series(run.name, times, values, style, COLOURS[run.policy])


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
