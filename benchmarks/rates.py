"""Three batches with a rate of their own: how close to the ideal time, and never above the rate.

The time is from the first submit to the last start of an item, ideally items ÷ rate. Starts are
noted by the handlers themselves, in one worker process or in four that share the partitions, and
counted in every window of one second that begins with a start. The full test (15,000 jobs at 10/s)
runs on virtual time; the team that wrote the first version took 1.44 × the ideal, with 1.45
attempts a job, since what came too early was put back.

A start is forfeited when it cannot be made within 20 ms of its time, so time over ideal is also a
measure of how busy the machine is. A loop written by hand shows how much: it knows its calendar,
asks Redis nothing but one PING before each start, and forfeits by the same rule.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from contextlib import ExitStack
from time import perf_counter

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from heatsink.bulk.rates import LATE_MS
from heatsink.testing.servers import RedisServer

from .harness import Bench, Samples, Scale, at_most, interleave
from .queue.driver import driving
from .queue.peers import OURS_RATED

BATCHES = (1, 2, 3)
PER_S = 30
FLEETS = (1, 4)
SETTLE_S = 3.0  # until processes have shared the partitions
LATER_S = 1.0


class Fleet:
    """So many worker processes; time over ideal. What else the starts tell is kept beside."""

    def __init__(self, url: str, processes: int, items: int) -> None:
        self.processes = processes
        self.busiest: Samples = []
        self.attempts: Samples = []
        self._url = url
        self._redis = Redis.from_url(url)
        self._items = items

    async def __call__(self) -> float:
        self._redis.flushall()
        command = OURS_RATED.command()
        assert command is not None
        with ExitStack() as stack:
            for _ in range(self.processes):
                stack.enter_context(driving(command, "work", self._url))
            enqueuer = stack.enter_context(driving(command, "enqueue", self._url))
            await enqueuer.order(0, 1)
            await asyncio.sleep(SETTLE_S)
            orders = [await enqueuer.order(group, self._items, PER_S) for group in BATCHES]
            starts = await self._starts()
        self.busiest.append(float(max(map(busiest_second, starts))))
        self.attempts.append(sum(map(len, starts)) / (self._items * len(BATCHES)))
        took_s = max(max(times) for times in starts) - orders[0].began_s
        return took_s / (self._items / PER_S)

    async def _starts(self) -> list[list[float]]:
        """For each batch, once it has ended: a moment later, to see what should not have come."""
        names = [f"starts-{group}" for group in BATCHES]
        while True:
            await asyncio.sleep(LATER_S)
            if all(self._redis.llen(name) >= self._items for name in names):
                break
        await asyncio.sleep(LATER_S)
        return [sorted(map(float, self._redis.lrange(name, 0, -1))) for name in names]


class BareLoop:
    """The limit: batches that each wait for their next time, ask Redis once, and start."""

    def __init__(self, url: str, items: int) -> None:
        self._redis = AsyncRedis.from_url(url)
        self._items = items

    async def __call__(self) -> float:
        began_s = perf_counter()
        await asyncio.gather(*(self._batch(began_s) for _ in BATCHES))
        return (perf_counter() - began_s) / (self._items / PER_S)

    async def _batch(self, due_s: float) -> None:
        left, late_s = self._items, LATE_MS / 1000
        while left:
            await asyncio.sleep(max(due_s - perf_counter(), 0.0))
            await self._redis.ping()
            left -= perf_counter() < due_s + late_s
            due_s += (1.0 + late_s) / PER_S


def busiest_second(starts: list[float]) -> int:
    """The most starts in any second, of sorted times."""
    return max(bisect_left(starts, first + 1.0) - n for n, first in enumerate(starts))


async def run(bench: Bench, scale: Scale) -> None:
    items = PER_S * scale(3, 10)
    with RedisServer() as server:
        fleets = [Fleet(server.url, size, items) for size in FLEETS]
        bare, *taken = await interleave(
            scale(1, 3), BareLoop(server.url, items), *fleets, warm_up=0
        )
    for fleet, over_ideal in zip(fleets, taken, strict=True):
        where = f"{fleet.processes} process{'es' * (fleet.processes > 1)}"
        busiest, attempts = fleet.busiest, fleet.attempts
        bench.add(
            f"time over ideal, {where}", "×", over_ideal, at_most(1.05), ("hand-written loop", bare)
        )
        bench.add(f"most starts in a second, {where}", "", busiest, at_most(PER_S), middle=max)
        bench.add(f"attempts per item, {where}", "", attempts, at_most(1.0), middle=max)
