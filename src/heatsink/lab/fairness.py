"""Small batches beside a giant one on one partition: how much longer do they take than alone?"""

from __future__ import annotations

from random import Random

import msgspec

from heatsink.primitives.words import duration
from heatsink.testing import SkewedClock

from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all, simulated
from .world import ACTION, LabWorld, Saturating, WorkerFleet, world

GIANT = 1_000_000
SMALL = 20
BATCHES = 30
SERVICE_S = 0.1
WORKERS = 8
GAP_S = (1.0, 5.0)
CASES = {
    "alone": "",
    "beside it, other tenant": "giant",
    "beside it, same tenant": "small",
}


STORY = f"""\
One partition, {WORKERS} workers, {SERVICE_S} s per item. While a giant batch runs, batches of
{SMALL} items arrive, each after a random pause.

In a single queue, a small batch would wait for everything before it. Here tenants get equal shares
of the workers' time, and within a tenant the batch with the least work left goes first."""


class BatchTimes(msgspec.Struct, frozen=True):
    """How many seconds each small batch took in one case, shortest first."""

    case: str
    seconds: list[float]

    def share(self, part: float) -> float:
        return self.seconds[min(int(len(self.seconds) * part), len(self.seconds) - 1)]


async def time_small_batches(lab: LabWorld, seed: int, batches: int) -> list[float]:
    """Submit `batches` small batches one after another, with random pauses between them.

    Returns how many seconds each batch took, shortest first.
    """
    chance, took_s = Random(seed), []
    for _ in range(batches):
        await lab.clock.sleep(chance.uniform(*GAP_S))
        began_s = lab.now_s()
        batch = await lab.bulk.submit(ACTION, range(SMALL), tenant="small")
        await lab.until_run(batch)
        took_s.append(lab.now_s() - began_s)
    return sorted(took_s)


async def small_batches(case: str, giant: int, seed: int, batches: int = BATCHES) -> BatchTimes:
    clock = SkewedClock()
    handler = Saturating(clock, SERVICE_S, full=10**9).call
    async with world(WorkerFleet(workers=WORKERS, seed=seed), handler, clock) as lab:
        if tenant := CASES[case]:
            await lab.bulk.submit(ACTION, range(giant), tenant=tenant)
            await clock.sleep(1.0)
        return BatchTimes(case, await time_small_batches(lab, seed, batches))


def experiment(giant: int = GIANT, seed: int = 1, batches: int = BATCHES) -> LabReport:
    alone, *beside = run_all(
        [simulated(small_batches, case, giant, seed, batches) for case in CASES]
    )
    in_line_s = giant * SERVICE_S / WORKERS
    other = beside[0]
    return LabReport(
        name="fairness",
        title=f"Fairness: {SMALL} items beside {giant:,}",
        story=STORY,
        figures=[
            Figure("alone", f"{alone.share(0.5):.2f} s", "the median"),
            Figure("beside the giant", f"{other.share(0.5):.2f} s", f"{_longest(other)} at most"),
            Figure("in a single queue", duration(in_line_s), "behind the giant"),
        ],
        tables=[_table(alone, beside, in_line_s)],
        charts=[
            Chart(
                "How long each small batch took",
                "seconds",
                [_line(times, colour) for colour, times in enumerate([alone, *beside])],
                x_title="small batches, the fastest first",
            )
        ],
    )


def _longest(times: BatchTimes) -> str:
    return f"{times.seconds[-1]:.2f} s"


def _table(alone: BatchTimes, beside: list[BatchTimes], in_line_s: float) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            times.case,
            round(times.share(0.5), 3),
            round(times.share(0.99), 3),
            f"{times.share(0.5) / alone.share(0.5):.2f} ×",
        ]
        for times in (alone, *beside)
    ]
    rows.append(["in a single queue, behind the giant", round(in_line_s), round(in_line_s), ""])
    columns = ["a small batch", "median, s", "p99, s", "relative to alone"]
    return ReportTable("From acceptance to the last item", columns, rows)


def _line(times: BatchTimes, colour: int) -> Series:
    places = [float(place) for place in range(1, len(times.seconds) + 1)]
    return Series(times.case, places, [round(s, 3) for s in times.seconds], colour=colour)
