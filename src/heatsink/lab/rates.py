"""Rate limits: three batches whose limits are declared, and one whose limit nobody declared."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec

from heatsink.bulk.actions import Context
from heatsink.bulk.batch import Batch
from heatsink.testing import SkewedClock

from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all, simulated
from .world import ACTION, LabWorld, StrictDownstream, WorkerFleet, world

TENANTS = ("red", "green", "blue")
JOBS = 15_000
PER_S = 10
REPORTED_S, REPORTED_IDEAL_S, REPORTED_THROTTLES = 720, 500, 1.45  # of a queue that requeues
PARTITIONS = 4

UNKNOWN_PER_S = 100
UNKNOWN_S = 900
CHANGES = ((0.0, 1.0), (1 / 3, 0.5), (2 / 3, 1.0))  # share of the run, share of the limit
EAGER = 64  # workers: the first surge is more than ten times the limit
WINDOW_S = 5


STORY = f"""\
Jobs in three batches, each limited to {PER_S}/s, on {PARTITIONS} partitions. Other queues let
workers run into the limit and requeue the refused jobs. Here starts are booked ahead, and a batch
that must wait costs nothing.

Then a service that refuses more than {UNKNOWN_PER_S} calls in any second, and more than half of
that in the middle third. Nobody declares this limit: the queue starts without one and finds it."""


class DeclaredRate(msgspec.Struct, frozen=True):
    took_s: float
    ideal_s: float
    throttles: float


class RatesSecond(msgspec.Struct, frozen=True):
    time_s: float
    limit: float
    pace: float
    calls: int
    refused: int


async def declared(jobs: int, seed: int) -> DeclaredRate:
    """Run three concurrent batches, each with its own declared rate.

    The service that a batch calls refuses calls above this rate.
    """
    clock = SkewedClock()
    services = {tenant: StrictDownstream(clock, PER_S) for tenant in TENANTS}

    async def handler(_: object, context: Context) -> None:
        await services[context.tenant].call()

    each = jobs // len(TENANTS)
    async with world(WorkerFleet(partitions=PARTITIONS, seed=seed), handler, clock) as lab:
        began_s = lab.now_s()
        batches = [await _submit(lab, tenant, each, f"{PER_S}/s") for tenant in TENANTS]
        for batch in batches:
            await lab.bulk.wait(batch.id)
        refused = sum(service.refused for service in services.values())
        return DeclaredRate(lab.now_s() - began_s, each / PER_S, refused / jobs)


async def _submit(lab: LabWorld, tenant: str, items: int, rate: str | None = None) -> Batch:
    return await lab.bulk.submit(ACTION, range(items), tenant=tenant, rate=rate)


async def unknown(seconds: float, seed: int) -> list[RatesSecond]:
    """Run a batch on a service with an unknown rate limit. The limit halves, and later doubles.

    Returns one record for each second.
    """
    clock, history = SkewedClock(), list[RatesSecond]()
    service = StrictDownstream(clock, UNKNOWN_PER_S)
    lane = f"{ACTION}/eager"

    async def look(at: LabWorld) -> None:
        pace = await at.server.limits.rate_of(lane) or 0.0
        now_s = at.now_s() - began_s
        history.append(RatesSecond(now_s, service.per_s, pace, service.calls, service.refused))

    async with world(WorkerFleet(workers=EAGER, seed=seed), service.call, clock) as lab:
        began_s = lab.now_s()
        await _submit(lab, "eager", int(UNKNOWN_PER_S * seconds * 2))
        async with lab.looking(look):
            for (share, factor), (until, _) in zip(CHANGES, (*CHANGES[1:], (1.0, 0)), strict=True):
                service.per_s = UNKNOWN_PER_S * factor
                await clock.sleep((until - share) * seconds)
    return history


def experiment(jobs: int = JOBS, seconds: float = UNKNOWN_S, seed: int = 1) -> LabReport:
    known, history = run_all([simulated(declared, jobs, seed), simulated(unknown, seconds, seed)])
    used = held(history)
    refused = history[-1].refused / history[-1].calls
    return LabReport(
        name="rates",
        title="Rates: declared, and discovered",
        story=STORY,
        figures=[
            Figure(
                "time, relative to the ideal",
                f"{known.took_s / known.ideal_s:.2f} ×",
                f"with requeuing: {REPORTED_S / REPORTED_IDEAL_S:.2f} ×",
            ),
            Figure(
                "refusals per job",
                f"{known.throttles:.2f}",
                f"with requeuing: {REPORTED_THROTTLES}",
            ),
            Figure("unknown limit: used", f"{used:.1%}", "of the whole run, changes included"),
            Figure(
                "unknown limit: refused",
                f"{refused:.2%}",
                "of all calls, including the first surge",
            ),
        ],
        tables=[_declared_table(known), _thirds_table(history)],
        charts=_charts(history),
    )


def _declared_table(known: DeclaredRate) -> ReportTable:
    rows: list[list[Cell]] = [
        ["here", round(known.took_s, 1), round(known.ideal_s), round(known.throttles, 3)],
        ["with requeuing, as reported elsewhere", REPORTED_S, REPORTED_IDEAL_S, REPORTED_THROTTLES],
    ]
    columns = ["queue", "time, s", "ideal, s", "refusals per job"]
    return ReportTable(f"Three batches at {PER_S}/s each", columns, rows)


def _thirds_table(history: list[RatesSecond]) -> ReportTable:
    """Return a table of the three thirds of the run. The limit changes between thirds.

    Each third has two rows: the time in which the queue discovers the limit (at most a minute), and
    the rest.
    """
    rows: list[list[Cell]] = []
    length_s = history[-1].time_s
    for (share, _), (until, _) in zip(CHANGES, (*CHANGES[1:], (1.0, 0)), strict=True):
        found_s = share * length_s + min(60.0, length_s / 9)
        for begin_s, end_s in ((share * length_s, found_s), (found_s, until * length_s)):
            span = [second for second in history if begin_s <= second.time_s < end_s]
            refused = span[-1].refused - span[0].refused
            calls = span[-1].calls - span[0].calls
            title = f"{begin_s:,.0f}–{end_s:,.0f} s, {span[-1].limit:g}/s allowed"
            rows.append([title, f"{held(span):.1%}", f"{refused / calls:.2%}"])
    return ReportTable(
        "An undeclared limit", ["time and limit", "of the limit used", "refused"], rows
    )


def held(span: list[RatesSecond]) -> float:
    """Return the completed calls as a share of the calls that the service would have accepted."""
    first, last = span[0], span[-1]
    done = last.calls - last.refused - first.calls + first.refused
    possible = sum(second.limit for second in span[1:]) * (last.time_s - first.time_s)
    return done / (possible / max(len(span) - 1, 1))


def _charts(history: list[RatesSecond]) -> list[Chart]:
    some = history[::WINDOW_S]
    times = [round(second.time_s, 1) for second in some]
    pairs = list(itertools.pairwise(some))
    shown = UNKNOWN_PER_S * 1.5
    done = [_rate(a, b, lambda s: s.calls - s.refused) for a, b in pairs]
    refused = [_rate(a, b, lambda s: s.refused) for a, b in pairs]
    return [
        Chart(
            "Calls started, and the service's limit",
            "calls per second",
            [
                Series("done", times[1:], done, "fill", 0),
                Series("limit", times, [second.limit for second in some], "step", 2),
                Series("pace", times, [min(s.pace, shown) for s in some], "dot", 3),
            ],
        ),
        Chart("Refused", "calls per second", [Series("refused", times[1:], refused, "fill", 1)]),
    ]


def _rate(a: RatesSecond, b: RatesSecond, count: Callable[[RatesSecond], int]) -> float:
    return round((count(b) - count(a)) / (b.time_s - a.time_s), 2)
