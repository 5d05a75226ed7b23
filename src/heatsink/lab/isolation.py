"""How a large batch delays small ones, on 1 to 32 partitions.

The large batch stays in one partition, or is spread over a quarter of them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from heatsink.testing import SkewedClock

from .fairness import SERVICE_S, SMALL, BatchTimes, time_small_batches
from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all, simulated
from .world import ACTION, Saturating, WorkerFleet, world

PARTITIONS = (1, 4, 8, 16, 32)
LARGE = 100_000
BATCHES = 12
WORKERS = 8


STORY = f"""\
{WORKERS} workers in each partition, {SERVICE_S} s per item. One tenant has a large batch, while
another one submits batches of {SMALL} items.

A simple design keeps each batch in one partition, to protect the other partitions. Here each
partition is fair, so a large batch can be spread over a quarter of them: it is done sooner, and
the small batches are hardly slower."""


class IsolationOutcome(msgspec.Struct, frozen=True):
    partitions: int
    spread: bool
    small: BatchTimes
    large_per_s: float
    used: int
    """Partitions that hold items of the large batch."""


async def beside_a_large_one(
    partitions: int, spread: bool, large: int, seed: int
) -> IsolationOutcome:
    clock = SkewedClock()
    handler = Saturating(clock, SERVICE_S, full=10**9).call
    fleet = WorkerFleet(partitions=partitions, workers=WORKERS, seed=seed)
    async with world(fleet, handler, clock) as lab:
        batch = await lab.bulk.submit(ACTION, range(large), tenant="large", spread=spread)
        began_s = lab.now_s()
        took_s = await time_small_batches(lab, seed, BATCHES)
        done = (await lab.bulk.status(batch.id)).done
        case = "spread" if spread else "in one"
        large_per_s = done / (lab.now_s() - began_s)
        return IsolationOutcome(
            partitions, spread, BatchTimes(case, took_s), large_per_s, len(batch.parts)
        )


def experiment(large: int = LARGE, seed: int = 1) -> LabReport:
    found = run_all(
        [
            simulated(beside_a_large_one, partitions, spread, large, seed)
            for spread in (False, True)
            for partitions in PARTITIONS
        ]
    )
    alone, most = found[len(PARTITIONS) - 1], found[-1]
    worst_s = max(outcome.small.seconds[-1] for outcome in found)
    return LabReport(
        name="isolation",
        title=f"Isolation: small batches beside {large:,} items",
        story=STORY,
        figures=[
            Figure("small batches, the slowest", f"{worst_s:.2f} s", "over all of these runs"),
            Figure(
                "the large batch, spread",
                f"{most.large_per_s:,.0f}/s",
                f"{alone.large_per_s:,.0f}/s in one of {alone.partitions} partitions",
            ),
        ],
        tables=[_table(found)],
        charts=[
            _chart(found, "Small batches, the slowest", "seconds", lambda o: o.small.seconds[-1]),
            _chart(found, "The large batch", "items a second", lambda o: o.large_per_s),
        ],
    )


def _table(found: list[IsolationOutcome]) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            outcome.partitions,
            outcome.small.case,
            outcome.used,
            round(outcome.small.share(0.5), 3),
            round(outcome.small.seconds[-1], 3),
            round(outcome.large_per_s),
        ]
        for outcome in sorted(found, key=lambda outcome: outcome.partitions)
    ]
    columns = ["partitions", "large batch", "it uses", "small median, s", "slowest, s", "large, /s"]
    return ReportTable("Small and large by number of partitions", columns, rows)


def _chart(
    found: list[IsolationOutcome], title: str, unit: str, value: Callable[[IsolationOutcome], float]
) -> Chart:
    return Chart(
        title,
        unit,
        [
            Series(
                "spread" if spread else "in one",
                [str(outcome.partitions) for outcome in found if outcome.spread == spread],
                [round(value(outcome), 3) for outcome in found if outcome.spread == spread],
                colour=0 if spread else 1,
            )
            for spread in (False, True)
        ],
        x_title="partitions",
        kind="bars",
    )
