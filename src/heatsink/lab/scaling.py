"""One load spike on one queue partition, with fixed workers and with each scaling policy."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise

import msgspec

from heatsink.bulk.scaling.load import WorkerRules
from heatsink.bulk.scaling.policy import POLICIES
from heatsink.bulk.store import PartitionLoad
from heatsink.testing import SkewedClock, run_on_virtual_time

from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all
from .world import ACTION, WORKERS_MAX, LabWorld, Saturating, WorkerFleet, world

ITEMS = 100_000
SERVICE_S = 0.38
FULL = 64
WORKERS = 8
FIXED = "8 fixed workers"
REPORTED_BEFORE_S, REPORTED_AFTER_S, REPORTED_GROWTH = 25 * 60, 4 * 60, 8  # time decay
POINTS = 300
NAMES = {"littles_law": "Little's law", "time_decay": "time decay"}
COLOURS = {"littles_law": 0, "time_decay": 1, "congestion": 2, "exponential": 3, "": 4}


STORY = f"""\
Every item takes {SERVICE_S} s, and the service behind them saturates at {FULL} concurrent calls:
beyond that it only gets slower. There are {WORKERS} workers at first and {WORKERS_MAX} at most.

Time decay, congestion and exponential scale by the queue depth per worker and cannot see where the
service saturates. Time decay stops at 8 times the {WORKERS} workers, which happens to be that point
here. Little's law scales by the waiting work: it doubles the workers until items take longer, goes
back to where they did not, and from there on checks after each small step whether throughput
rose."""


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


class ScalingSetup(msgspec.Struct, frozen=True):
    """The load: `batches` batches of `items` items, one every `gap_s` seconds.

    Each item calls a service that saturates at `full` concurrent calls.
    """

    items: int
    batches: int = 1
    gap_s: float = 0.0
    full: int = FULL


class ScalingRun(msgspec.Struct, frozen=True):
    """The result of a run under one policy. `batches_s` says how many seconds each batch took."""

    policy: str
    took_s: float
    moments: list[Moment]
    batches_s: list[float]

    @property
    def name(self) -> str:
        return NAMES.get(self.policy, self.policy) or FIXED

    @property
    def peak(self) -> int:
        return max(moment.workers for moment in self.moments)

    @property
    def worker_hours(self) -> float:
        """Each moment counts until the next one, the last one until the end."""
        ends = [*(moment.time_s for moment in self.moments[1:]), self.took_s]
        spans = zip(self.moments, ends, strict=True)
        return sum(moment.workers * (end_s - moment.time_s) for moment, end_s in spans) / 3600

    @property
    def changes(self) -> int:
        return sum(a.workers != b.workers for a, b in pairwise(self.moments))


async def drive(policy: str, plan: ScalingSetup, seed: int) -> ScalingRun:
    """Run all batches under one scaling policy, and return the result.

    The run lasts from the submission of the first batch to the end of the last.
    """
    clock, moments = SkewedClock(), list[Moment]()
    downstream = Saturating(clock, SERVICE_S, plan.full)
    rules = WorkerRules(base=WORKERS, workers_max=WORKERS_MAX)
    fleet = WorkerFleet(workers=WORKERS, policy=policy, rules=rules, seed=seed)

    async def look(at: LabWorld) -> None:
        moments.append(_moment(at, await at.load(), downstream))

    async def submit_and_wait(lab: LabWorld, number: int) -> float:
        await clock.sleep(number * plan.gap_s)
        began_s = lab.now_s()
        batch = await lab.bulk.submit(ACTION, range(plan.items))
        await lab.bulk.wait(batch.id)
        return lab.now_s() - began_s

    async with world(fleet, downstream.call, clock) as lab:
        began_s = lab.now_s()
        async with lab.looking(look):
            waits = (submit_and_wait(lab, number) for number in range(plan.batches))
            batches_s = await asyncio.gather(*waits)
        shifted = [msgspec.structs.replace(m, time_s=m.time_s - began_s) for m in moments]
        return ScalingRun(policy, lab.now_s() - began_s, shifted, batches_s)


def _moment(at: LabWorld, load: PartitionLoad, downstream: Saturating) -> Moment:
    return Moment(
        at.now_s(),
        at.consumer.workers.get(0, 0),
        load.runnable,
        load.in_flight,
        downstream.p95_s(),
        load.done,
    )


def run_one(policy: str, plan: ScalingSetup, seed: int) -> ScalingRun:
    return run_on_virtual_time(drive(policy, plan, seed))


def experiment(items: int = ITEMS, seed: int = 1) -> LabReport:
    spike = ScalingSetup(items)
    requests = ScalingSetup(items // 25, batches=6, gap_s=120.0, full=10**9)
    names = list(POLICIES)
    wanted = [("", spike)] + [(name, plan) for plan in (spike, requests) for name in names]
    fixed, *runs = run_all([partial(run_one, policy, plan, seed) for policy, plan in wanted])
    steered, follow_up = runs[: len(names)], runs[len(names) :]
    ours, theirs = steered[names.index("littles_law")], steered[names.index("time_decay")]
    return LabReport(
        name="scaling",
        title=f"Scaling: {items:,} items on one partition",
        story=STORY,
        figures=_figures(fixed, ours, theirs),
        tables=[_spike_table(fixed, steered), _requests_table(requests, follow_up)],
        charts=[
            *_policy_charts(fixed, steered),
            *_request_charts(follow_up),
            *_metric_charts(theirs, ours),
        ],
    )


def _figures(fixed: ScalingRun, ours: ScalingRun, theirs: ScalingRun) -> list[Figure]:
    less, reported = 1 - ours.took_s / fixed.took_s, 1 - REPORTED_AFTER_S / REPORTED_BEFORE_S
    hours, their_hours = f"{ours.worker_hours:.1f}", f"{theirs.worker_hours:.1f}"
    return [
        Figure(
            "time compared with 8 fixed workers",
            f"−{less:.1%}",
            f"reported for time decay: −{reported:.0%}",
        ),
        Figure("time", minutes(ours.took_s), f"{minutes(fixed.took_s)} with 8"),
        Figure("workers at most", str(ours.peak), f"{theirs.peak} with time decay"),
        Figure("worker hours", hours, f"{their_hours} with time decay"),
    ]


def _requests_table(plan: ScalingSetup, runs: list[ScalingRun]) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            run.name,
            round(run.batches_s[0]),
            round(sum(run.batches_s[1:]) / len(run.batches_s[1:])),
            run.changes,
            run.peak,
            round(run.worker_hours, 2),
        ]
        for run in runs
    ]
    columns = ["policy", "first, s", "others, s", "changes", "workers", "hours"]
    note = (
        f"{plan.batches} batches of {plan.items:,} items, one every {plan.gap_s:g} s, on a service "
        "that never saturates: which policy oscillates, and which is slow the second time?"
    )
    return ReportTable("Repeated batches", columns, rows, note)


def _spike_table(fixed: ScalingRun, steered: list[ScalingRun]) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            run.name,
            minutes(run.took_s),
            f"−{1 - run.took_s / fixed.took_s:.1%}" if run is not fixed else "",
            run.peak,
            f"{run.peak / FULL:.2f} ×",
            round(run.worker_hours, 2),
        ]
        for run in (fixed, *steered)
    ]
    columns = ["policy", "time", "less", "workers", "of saturation", "hours"]
    note = (
        "Workers are the maximum at a time, hours are worker hours. "
        f"Reported for time decay elsewhere: 25 → 4 min with {REPORTED_GROWTH} × the workers."
    )
    return ReportTable("The same spike under each policy", columns, rows, note)


def _policy_charts(fixed: ScalingRun, steered: list[ScalingRun]) -> list[Chart]:
    every = [fixed, *steered]
    shown_s = max(run.took_s for run in steered)
    return [
        Chart(
            "Workers",
            "workers",
            [_line(run, "workers", shown_s, "step") for run in every] + [_full(shown_s)],
        ),
        Chart("Waiting items", "items", [_line(run, "ready", shown_s) for run in every]),
    ]


def _request_charts(runs: list[ScalingRun]) -> list[Chart]:
    until_s = max(run.took_s for run in runs)
    return [
        Chart(
            "Repeated batches: workers",
            "workers",
            [_line(run, "workers", until_s, "step") for run in runs],
        ),
        Chart(
            "Repeated batches: waiting items",
            "items",
            [_line(run, "ready", until_s) for run in runs],
        ),
    ]


def _full(until_s: float) -> Series:
    return Series("the service saturates", [0.0, until_s], [FULL, FULL], "dot", COLOURS[""])


def _metric_charts(theirs: ScalingRun, ours: ScalingRun) -> list[Chart]:
    """Return a chart of both runs for each of four metrics by which workers could be scaled."""
    candidates = [
        (
            "Ready queue",
            "ready",
            "items",
            "Shows how much work there is, not whether more workers would help.",
        ),
        ("In flight", "in_flight", "items", "Follows the number of workers, not the work."),
        ("p95 of the execution time", "p95_s", "seconds", "Stays flat until it is too late."),
        (
            "Depth per worker",
            "depth",
            "items per worker",
            "Used by time decay; does not show saturation.",
        ),
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


def _line(run: ScalingRun, field: str, until_s: float, style: str = "plain") -> Series:
    shown = [moment for moment in run.moments if moment.time_s <= until_s]
    some = shown[:: max(len(shown) // POINTS, 1)]
    values = [round(float(getattr(moment, field)), 3) for moment in some]
    times = [round(moment.time_s, 1) for moment in some]
    return Series(run.name, times, values, style, COLOURS[run.policy])


def minutes(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
