"""One post, by how many follow its author: pushed into every home, or pulled when one is read.

The homes are in a real Redis. A post of an author with 1,000,000 followers is pulled; what always
pushing it would take is what pushing takes here per follower, times a million.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import heatsink
from heatsink import Heatsink
from heatsink.bulk import Actions, BulkSettings
from heatsink.isolate.graph import FOLLOWERS
from heatsink.isolate.policy import PULLED
from heatsink.testing.servers import RedisServer

from .harness import Bench, Scale, at_most, ratio_at_most

CELEBRITY = 1_000_000
SETTLED_S = 2.0


@asynccontextmanager
async def a_network(url: str) -> AsyncIterator[Heatsink]:
    settings = BulkSettings(durability="relaxed", partitions=4)
    async with heatsink.connect("memory://", queue=url, bulk=settings) as hs:
        worker = hs.worker(Actions(), workers=8)
        running = asyncio.create_task(worker.run())
        yield hs
        worker.stop()
        await running


async def push_s(hs: Heatsink, author: str, last: str) -> float:
    """From the call to the moment the last follower sees it."""
    began_s = perf_counter()
    post = await hs.timelines.post(author, b"x" * 200)
    await hs.bulk.wait(post.batch)
    page = await hs.timelines.home(last, limit=1)
    assert page.posts[0].id == post.id
    return perf_counter() - began_s


async def pull_s(hs: Heatsink, author: str, follower: str) -> float:
    began_s = perf_counter()
    post = await hs.timelines.post(author, b"x" * 200)
    page = await hs.timelines.home(follower, limit=1)
    assert post.mode == PULLED
    assert page.posts[0].id == post.id
    return perf_counter() - began_s


async def run(bench: Bench, scale: Scale) -> None:
    followers, rounds = scale(1_000, 9_000), scale(3, 15)
    with RedisServer() as server:
        async with a_network(server.url) as hs:
            for number in range(followers):
                await hs.timelines.follow(f"fan-{number}", "pushed")
            last = f"fan-{followers - 1}"
            await hs.timelines.follow(last, "pulled")
            await hs.counters.add(FOLLOWERS + "pulled", CELEBRITY - 1)
            await hs.timelines.pin("pulled", PULLED, reason="a million followers")
            await asyncio.sleep(SETTLED_S)
            await hs.timelines.home(last)
            pushed, pulled = [], []
            for _ in range(rounds):
                pushed.append(await push_s(hs, "pushed", last) / followers * CELEBRITY)
                pulled.append(await pull_s(hs, "pulled", last))
    metric = f"post by an author of {CELEBRITY:,} to the home of a follower"
    other = ("always push, extrapolated", pushed)
    bench.add(metric, "ms", pulled, ratio_at_most(0.01), other)
    bench.add("homes written a post, pulled", "writes", [1.0], at_most(1), ("push", [CELEBRITY]))
