"""The scaling experiment on a real Redis, with real workers, beside its simulation.

The spike of `scaling` runs through the client that applications use. Only the clock differs: it
runs faster than real time by a factor, so that minutes of scaling take seconds. Redis and the
processor do not run faster. So the time that they need weighs more here than in production, by the
same factor.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from heatsink.bulk.actions import Actions
from heatsink.bulk.scaling.load import WorkerRules
from heatsink.bulk.scaling.policy import POLICIES
from heatsink.bulk.settings import BulkSettings
from heatsink.client.connect import connect
from heatsink.client.heatsink import Heatsink
from heatsink.errors import Unavailable
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.server.commands.progress import progress_bar
from heatsink.testing.redis import RedisServer

from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all
from .scaling import (
    COLOURS,
    FULL,
    SERVICE_S,
    WORKERS,
    Moment,
    ScalingRun,
    ScalingSetup,
    minutes,
    run_one,
)
from .world import ACTION, TURN_S, WORKERS_MAX, Saturating

ITEMS = 5_000
SPEED = 5.0
MADE = "Simulated on virtual time, and run on a real Redis. Made by"


class FastClock:
    """A clock that goes `speed` times as fast as the clock of this machine."""

    def __init__(self, speed: float, clock: Clock | None = None) -> None:
        self._speed = speed
        self._clock = clock or SystemClock()
        self._wall_s, self._began_s = self._clock.now_s(), self._clock.monotonic_s()

    def now_s(self) -> float:
        return self._wall_s + self._passed_s()

    def monotonic_s(self) -> float:
        return self._began_s + self._passed_s()

    def _passed_s(self) -> float:
        return (self._clock.monotonic_s() - self._began_s) * self._speed

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds / self._speed)


async def drive_live(policy: str, plan: ScalingSetup, url: str, speed: float) -> ScalingRun:
    """Run one batch under one scaling policy on the Redis at `url`, and return the result.

    If `policy` is empty, the number of workers is fixed. All times are those of the fast clock.
    """
    clock, actions = FastClock(speed), Actions()
    service = Saturating(clock, SERVICE_S, plan.full)
    actions.action(ACTION)(service.call)
    rules = WorkerRules(base=WORKERS, workers_max=WORKERS_MAX if policy else WORKERS)
    async with connect(
        "memory://",
        queue=url,
        scaling=policy or "littles_law",
        workers=rules,
        bulk=BulkSettings(partitions=1, durability="relaxed", stage=policy or "fixed"),
        clock=clock,
    ) as hs:
        worker = hs.worker(actions, workers=WORKERS, workers_max=WORKERS_MAX)
        running = asyncio.ensure_future(worker.run())
        began_s, moments = clock.monotonic_s(), list[Moment]()
        looking = asyncio.ensure_future(_look(hs, clock, service, moments))
        try:
            batch = await hs.bulk.submit(ACTION, range(plan.items))
            progress = await hs.bulk.wait(batch.id)
            took_s = clock.monotonic_s() - began_s
        finally:
            looking.cancel()
            worker.stop()
            await asyncio.gather(looking, running, return_exceptions=True)
    if progress.done != plan.items:
        raise Unavailable(f"{progress.failed:,} of {plan.items:,} items failed: run it again")
    shifted = [msgspec.structs.replace(m, time_s=m.time_s - began_s) for m in moments]
    return ScalingRun(policy, took_s, shifted, [took_s])


async def _look(hs: Heatsink, clock: Clock, service: Saturating, moments: list[Moment]) -> None:
    """Note once a second, by the fast clock, what the leader sees of the queue."""
    while True:
        seen = hs.queue_watch.latest if hs.queue_watch else None
        if seen is not None and 0 in seen.partitions:
            load = seen.partitions[0].load
            moments.append(
                Moment(
                    clock.monotonic_s(),
                    seen.partitions[0].workers,
                    load.runnable,
                    load.in_flight,
                    service.p95_s(),
                    load.done,
                )
            )
        await clock.sleep(TURN_S)


def experiment(items: int = ITEMS, seed: int = 1, speed: float = SPEED) -> LabReport:
    plan, names = ScalingSetup(items), ["", *POLICIES]
    simulated: list[ScalingRun] = run_all([partial(run_one, name, plan, seed) for name in names])
    live = []
    with RedisServer() as redis, progress_bar() as bar:
        task = bar.add_task("running on Redis", total=len(names))
        for name in names:
            live.append(asyncio.run(drive_live(name, plan, redis.url, speed)))
            bar.advance(task)
    pairs = list(zip(simulated, live, strict=True))
    ours, theirs = (pairs[names.index(name)] for name in ("littles_law", "time_decay"))
    return LabReport(
        name="scaling",
        title=f"Scaling, simulated and live: {items:,} items on one partition",
        story=_story(speed),
        figures=[_figure(ours), _figure(theirs), _item_figure(live[0], items)],
        tables=[_table(pairs)],
        charts=[_workers_chart(pair) for pair in pairs] + [_waiting_chart(ours)],
        made=MADE,
    )


def _story(speed: float) -> str:
    return f"""\
The same spike twice: simulated on virtual time, and live on a real Redis with real workers. Every
item takes {SERVICE_S} s, and the service behind them saturates at {FULL} concurrent calls. There
are {WORKERS} workers at first and {WORKERS_MAX} at most.

The live clock goes {speed:g} times as fast as time. All times are those of this clock. Redis and
this machine do not go faster, so a millisecond of theirs counts as {speed:g}: a live run is a bit
slower than a simulated one, and on a busy machine more than a bit. How long an item takes with 8
workers shows how much of the difference is the machine's."""


def _figure(pair: tuple[ScalingRun, ScalingRun]) -> Figure:
    simulated, live = pair
    beside = f"simulated: {minutes(simulated.took_s)} ({_difference(pair)})"
    return Figure(f"{live.name}, live", minutes(live.took_s), beside)


def _item_figure(fixed: ScalingRun, items: int) -> Figure:
    """Say how long an item took in the live run with fixed workers: that is the machine's share."""
    item_s = fixed.took_s * WORKERS / items
    return Figure("an item with 8 workers, live", f"{item_s:.2f} s", f"simulated: {SERVICE_S} s")


def _difference(pair: tuple[ScalingRun, ScalingRun]) -> str:
    simulated, live = pair
    return f"{live.took_s / simulated.took_s - 1:+.1%}".replace("-", "−")


def _table(pairs: list[tuple[ScalingRun, ScalingRun]]) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            live.name,
            minutes(simulated.took_s),
            minutes(live.took_s),
            _difference((simulated, live)),
            f"{simulated.peak} / {live.peak}",
            f"{simulated.worker_hours:.1f} / {live.worker_hours:.1f}",
        ]
        for simulated, live in pairs
    ]
    columns = ["policy", "simulated", "live", "difference", "workers", "hours"]
    note = "Workers (the maximum at a time) and worker hours: simulated / live."
    return ReportTable("Simulated and live", columns, rows, note)


def _workers_chart(pair: tuple[ScalingRun, ScalingRun]) -> Chart:
    return Chart(f"Workers: {pair[1].name}", "workers", _lines(pair, "workers", "step"))


def _waiting_chart(pair: tuple[ScalingRun, ScalingRun]) -> Chart:
    return Chart(f"Waiting items: {pair[1].name}", "items", _lines(pair, "ready", "plain"))


def _lines(pair: tuple[ScalingRun, ScalingRun], field: str, style: str) -> list[Series]:
    return [
        Series(
            name,
            [round(moment.time_s, 1) for moment in run.moments],
            [float(getattr(moment, field)) for moment in run.moments],
            style,
            COLOURS["littles_law"] if name == "live" else COLOURS["time_decay"],
        )
        for name, run in zip(("simulated", "live"), pair, strict=True)
    ]
