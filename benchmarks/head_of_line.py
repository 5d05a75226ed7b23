"""Twenty items of 2 ms that come behind 20,000 and 1,000,000 others, on 32 workers.

Measured from the call that submits the twenty to the end of the last of them, in a worker that is
busy with the large batch for half a second by then; alone, in one that is idle. Heatsink has one
partition here, so that the batches cannot pass each other by luck; tenants differ. Peers run 32 at
once (taskiq 100) in the order of their queues, as they do by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from statistics import median

from redis import Redis

from heatsink.testing.redis import RedisServer

from .harness import Bench, Samples, Scale, at_most, interleave
from .queue.driver import Driver, driving
from .queue.peers import OURS_TOGETHER, SAQ, TASKIQ, Peer, found

SMALL = 20
LARGE = 20_000
HUGE = 1_000_000
PAUSE_MS = 2
BUSY_S = 0.5
TRIES = 3
SLACK_MS = 30.0
LONGER = 1.5
numbers = count(1)


class Line:
    """A queue with its worker and somebody who submits."""

    def __init__(self, enqueuer: Driver, worker: Driver) -> None:
        self._enqueuer = enqueuer
        self._worker = worker

    async def small(self) -> float:
        group = next(numbers)
        order = await self._enqueuer.order(group, SMALL, PAUSE_MS)
        return (await self._worker.ended(group)).ended_s - order.began_s

    async def large(self, size: int) -> int:
        group = next(numbers)
        await self._enqueuer.order(group, size, PAUSE_MS)
        await asyncio.sleep(BUSY_S)
        return group

    def check_behind(self, group: int) -> None:
        if self._worker.has_ended(group):
            raise RuntimeError("the large batch ended first: nothing was measured")


class Contender:
    def __init__(self, peer: Peer, command: Sequence[str], url: str) -> None:
        self.name = peer.name
        self._command = command
        self._url = url

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Line]:
        Redis.from_url(self._url).flushall()
        with (
            driving(self._command, "work", self._url) as worker,
            driving(self._command, "enqueue", self._url) as enqueuer,
        ):
            line = Line(enqueuer, worker)
            await line.small()  # both have started then
            yield line


class Ours(Contender):
    """Alone, behind many, behind very many, in each turn."""

    def __init__(self, command: Sequence[str], url: str) -> None:
        super().__init__(OURS_TOGETHER, command, url)
        self.alone: Samples = []
        self.behind: dict[int, Samples] = {LARGE: [], HUGE: []}

    async def __call__(self) -> float:
        for size, samples in self.behind.items():
            async with self.line() as line:
                alone = [await line.small() for _ in range(TRIES)]
                large = await line.large(size)
                behind = [await line.small() for _ in range(TRIES)]
                line.check_behind(large)
            samples.append(median(behind))
        self.alone.append(median(alone))
        return self.alone[-1]


class Other(Contender):
    async def __call__(self) -> float:
        async with self.line() as line:
            await line.large(LARGE)
            return await line.small()


def others(scale: Scale, url: str) -> list[Other]:
    wanted = scale.peers or (() if scale.quick else (SAQ.name, TASKIQ.name))
    return [Other(peer, command, url) for peer, command in found(wanted)]


async def run(bench: Bench, scale: Scale) -> None:
    command = OURS_TOGETHER.command()
    assert command is not None
    with RedisServer() as server:
        ours, peers = Ours(command, server.url), others(scale, server.url)
        _, *theirs = await interleave(scale(1, 5), ours, *peers, warm_up=0)
    limit = at_most(LONGER * median(ours.alone) * 1000 + SLACK_MS)
    for size, samples in ours.behind.items():
        bench.add(f"20 items behind {size:,}", "ms", samples, limit, ("alone", ours.alone))
    for peer, samples in zip(peers, theirs, strict=True):
        times = [other / our for other, our in zip(samples, ours.behind[LARGE], strict=True)]
        bench.add(f"{peer.name} takes longer, behind {LARGE:,}", "×", times)
