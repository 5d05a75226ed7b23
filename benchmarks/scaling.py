"""Heatsink's scaling against the rule of the article that the queue is modelled on, live.

Real Redis, real workers, one partition, the same items: Little's law (the default) and time decay
(8 workers, doubling after three deep turns, at most 8 ×) take turns. Four loads: a spike; a
staircase of three batches; a service that saturates at 32 calls; a spike of items whose service
times vary as much as they are long. Worker seconds count from the submission to the end of the last
item. A rule also keeps its workers for some time after that, which is not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from time import monotonic

import msgspec

import heatsink
from heatsink.bulk import Actions, BulkSettings, Context
from heatsink.testing.redis import RedisServer

from .harness import Bench, Samples, Scale, Target, interleave, ratio_at_most

OURS, THEIRS = "littles_law", "time_decay"
POLL_S = 0.05


class SpikeLoad(msgspec.Struct, frozen=True):
    """Batches of `items` every `gap_s`; an item takes `service_s`, longer beyond `knee` at once."""

    name: str
    items: int
    service_s: float
    batches: int = 1
    gap_s: float = 0.0
    knee: int = 1_000_000
    is_random: bool = False


LOADS = (
    SpikeLoad("a spike of 4,000 × 0.2 s", 4_000, 0.2),
    SpikeLoad("a staircase of 3 × 1,500", 1_500, 0.2, batches=3, gap_s=6.0),
    SpikeLoad("a service with a knee at 32", 2_000, 0.2, knee=32),
    SpikeLoad("service times with CV 1", 4_000, 0.2, is_random=True),
)


class Downstream:
    """The service that items call."""

    def __init__(self, load: SpikeLoad, seed: int) -> None:
        self._load = load
        self._chance = Random(seed)
        self._calls = 0

    async def call(self, _item: int, _context: Context) -> None:
        load = self._load
        self._calls += 1
        try:
            mean_s = load.service_s * max(self._calls / load.knee, 1.0)
            await asyncio.sleep(self._chance.expovariate(1 / mean_s) if load.is_random else mean_s)
        finally:
            self._calls -= 1


class Contender:
    """One rule under one load: the time it takes, and its worker seconds beside that."""

    def __init__(self, rule: str, load: SpikeLoad, url: str) -> None:
        self._rule = rule
        self._load = load
        self._url = url
        self.worker_seconds: Samples = []
        self._round = 0

    async def __call__(self) -> float:
        self._round += 1
        actions = Actions()
        actions.action("call")(Downstream(self._load, self._round).call)
        stage = f"{self._rule}-{LOADS.index(self._load)}-{self._round}"
        bulk = BulkSettings(partitions=1, durability="relaxed", stage=stage)
        async with heatsink.connect(
            "memory://", queue=self._url, scaling=self._rule, bulk=bulk
        ) as hs:
            worker = hs.worker(actions)
            running = asyncio.create_task(worker.run())
            took_s, workers_s = await _watched(
                self._drain(hs), lambda: sum(worker.workers.values())
            )
            worker.stop()
            await running
        self.worker_seconds.append(workers_s)
        return took_s

    async def _drain(self, hs: heatsink.Heatsink) -> None:
        async with asyncio.TaskGroup() as batches:
            for number in range(self._load.batches):
                batches.create_task(self._batch(hs, number * self._load.gap_s))

    async def _batch(self, hs: heatsink.Heatsink, after_s: float) -> None:
        await asyncio.sleep(after_s)
        batch = await hs.bulk.submit("call", range(self._load.items))
        progress = await hs.bulk.wait(batch.id)
        if progress.done != self._load.items:
            raise RuntimeError(f"{progress.failed:,} items failed: nothing was measured")


async def _watched(work: Awaitable[None], workers: Callable[[], int]) -> tuple[float, float]:
    """How long the work takes, and the worker seconds in that time."""
    ending = asyncio.ensure_future(work)
    began_s = last_s = monotonic()
    workers_s = 0.0
    while not ending.done():
        before = workers()
        await asyncio.wait([ending], timeout=POLL_S)
        now_s = monotonic()
        workers_s += before * (now_s - last_s)
        last_s = now_s
    await ending
    return last_s - began_s, workers_s


def _targets(load: SpikeLoad) -> tuple[Target | None, Target | None]:
    is_spike = load is LOADS[0]
    return (ratio_at_most(1.05), ratio_at_most(1.0)) if is_spike else (None, None)


async def run(bench: Bench, scale: Scale) -> None:
    with RedisServer() as server:
        for load in LOADS[: scale(1, len(LOADS))]:
            ours, theirs = (Contender(rule, load, server.url) for rule in (OURS, THEIRS))
            times = await interleave(scale(1, 5), ours, theirs, warm_up=0)
            of_time, of_workers = _targets(load)
            bench.add(f"{load.name}: time", "s", times[0], of_time, (THEIRS, times[1]))
            bench.add(
                f"{load.name}: worker seconds",
                "s",
                ours.worker_seconds,
                of_workers,
                (THEIRS, theirs.worker_seconds),
            )
