"""Batches with a rate of their own: how close to the ideal time, and never above the rate.

The time is from a batch's submit to the last start of its items, ideally items ÷ rate: three
batches in one worker process and in four that share the partitions, then many fast ones in one.
Starts are noted by the handlers themselves and counted in every window of one second that begins
with a start. The full test (15,000 jobs at 10/s) runs on virtual time; the team that wrote the
first version took 1.44 × the ideal, with 1.45 attempts a job,
since what came too early was put back.

A start is forfeited when it cannot be made within 20 ms of its time, so time over ideal is also a
measure of how busy the machine is. A loop written by hand shows how much: it knows its calendar,
asks Redis nothing but one PING before each start, and forfeits by the same rule.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import NamedTuple

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from heatsink.bulk.store import LATE_MS
from heatsink.testing.redis import RedisServer

from .harness import Bench, Samples, Scale, at_most, interleave
from .queue.driver import driving
from .queue.peers import OURS_RATED

FEW = 3, 30, 1.05  # batches, items a second of each, time over ideal at most
MANY = 42, 50, 1.1
FLEETS = (1, 4)
SETTLE_S = 3.0  # until processes have shared the partitions
LATER_S = 1.0


class Load(NamedTuple):
    ideal_s: int
    batches: int
    per_s: int
    over_ideal_max: float

    @property
    def items(self) -> int:
        return self.per_s * self.ideal_s

    @property
    def numbers(self) -> range:
        return range(self.batches)


class Fleet:
    """So many worker processes; time over ideal. What else the starts tell is kept beside."""

    def __init__(self, url: str, processes: int, load: Load) -> None:
        self.processes = processes
        self.load = load
        self.busiest: Samples = []
        self.attempts: Samples = []
        self._url = url
        self._redis = Redis.from_url(url)

    async def __call__(self) -> float:
        self._redis.flushall()
        command, load = OURS_RATED.command(), self.load
        assert command is not None
        with ExitStack() as stack:
            for _ in range(self.processes):
                stack.enter_context(driving(command, "work", self._url))
            enqueuer = stack.enter_context(driving(command, "enqueue", self._url))
            await enqueuer.order(0, 1)
            await asyncio.sleep(SETTLE_S)
            orders = [await enqueuer.order(n + 1, load.items, load.per_s) for n in load.numbers]
            starts = await self._starts()
        self.busiest.append(float(max(map(busiest_second, starts))))
        self.attempts.append(sum(map(len, starts)) / (load.items * load.batches))
        pairs = zip(starts, orders, strict=True)
        return max(times[-1] - order.began_s for times, order in pairs) / load.ideal_s

    async def _starts(self) -> list[list[float]]:
        """For each batch, once it has ended: a moment later, to see what should not have come."""
        names = [f"starts-{n + 1}" for n in self.load.numbers]
        while True:
            await asyncio.sleep(LATER_S)
            if all(self._redis.llen(name) >= self.load.items for name in names):
                break
        await asyncio.sleep(LATER_S)
        return [sorted(map(float, self._redis.lrange(name, 0, -1))) for name in names]


class BareLoop:
    """The limit: batches that each wait for their next time, ask Redis once, and start."""

    def __init__(self, url: str, load: Load) -> None:
        self._redis = AsyncRedis.from_url(url)
        self._load = load

    async def __call__(self) -> float:
        began_s = perf_counter()
        await asyncio.gather(*(self._batch(began_s) for _ in self._load.numbers))
        return (perf_counter() - began_s) / self._load.ideal_s

    async def _batch(self, due_s: float) -> None:
        left, late_s = self._load.items, LATE_MS / 1000
        while left:
            await asyncio.sleep(max(due_s - perf_counter(), 0.0))
            await self._redis.ping()
            left -= perf_counter() < due_s + late_s
            due_s += (1.0 + late_s) / self._load.per_s


def busiest_second(starts: list[float]) -> int:
    """The most starts in any second, of sorted times."""
    return max(bisect_left(starts, first + 1.0) - n for n, first in enumerate(starts))


async def run(bench: Bench, scale: Scale) -> None:
    few, many = (Load(scale(3, 6), *load) for load in (FEW, MANY))
    with RedisServer() as server:
        for load, fleets in ((few, FLEETS), (many, FLEETS[:1])):
            await compare(bench, scale(1, 11), server.url, load, fleets)


async def compare(bench: Bench, rounds: int, url: str, load: Load, sizes: Sequence[int]) -> None:
    fleets = [Fleet(url, size, load) for size in sizes]
    bare, *taken = await interleave(rounds, BareLoop(url, load), *fleets, warm_up=0)
    for fleet, over_ideal in zip(fleets, taken, strict=True):
        processes = f"{fleet.processes} process{'es' * (fleet.processes > 1)}"
        where = f"{load.batches} × {load.per_s}/s, {processes}"
        busiest, attempts, limit = fleet.busiest, fleet.attempts, at_most(load.per_s)
        bench.add(
            f"time over ideal, {where}",
            "×",
            over_ideal,
            at_most(load.over_ideal_max),
            ("hand-written loop", bare),
        )
        bench.add(f"most starts in a second, {where}", "", busiest, limit, middle=max)
        bench.add(f"attempts per item, {where}", "", attempts, at_most(1.0), middle=max)
