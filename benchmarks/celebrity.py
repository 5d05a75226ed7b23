"""One post, by how many follow its author: pushed into every home, or pulled when one is read.

The homes are in a real Redis. Every follow of the large author is written, then her posts are
pulled, by the number of her followers. What always pushing them would take is computed: what
pushing is seen to take for an author below the threshold, per follower, times her followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import heatsink
from heatsink import Heatsink
from heatsink.bulk import Actions, BulkSettings
from heatsink.testing.redis import RedisServer
from heatsink.timelines import TimelineSettings
from heatsink.timelines.policy import PULLED

from .harness import Bench, Scale, at_most, ratio_at_most

BODY = b"x" * 200
READS_MAX = 100
THRESHOLD = 10_000  # as it is by default
LARGE, SMALL = "with many", "with few"


@asynccontextmanager
async def a_network(url: str) -> AsyncIterator[Heatsink]:
    settings = BulkSettings(durability="relaxed", partitions=4)
    by_followers = TimelineSettings(costly_writes_s=1e12)  # else both are pulled, by cost
    async with heatsink.connect(
        "memory://", queue=url, bulk=settings, timelines=by_followers
    ) as hs:
        worker = hs.worker(Actions(), workers=8)
        running = asyncio.create_task(worker.run())
        yield hs
        worker.stop()
        await running


def info(server: RedisServer, section: str, field: str) -> int:
    """A figure that Redis has of itself."""
    for line in server.command("INFO", section).splitlines():
        if line.startswith(field):
            return int(line.removeprefix(field).split(",")[0])
    return 0


def homes_written(server: RedisServer) -> int:
    """A push cuts each home that it writes; its batch adds two to that, for the index."""
    return info(server, "commandstats", "cmdstat_zremrangebyrank:calls=")


async def import_s(hs: Heatsink, author: str, fans: range) -> float:
    began_s = perf_counter()
    await hs.timelines.follow_many((f"fan-{n}", author) for n in fans)
    return perf_counter() - began_s


async def push_s(hs: Heatsink, follower: str) -> float:
    """From the call to the moment the last follower has it."""
    began_s = perf_counter()
    post = await hs.timelines.post(SMALL, BODY)
    await hs.bulk.wait(post.batch)
    await home_s(hs, follower)
    return perf_counter() - began_s


async def home_s(hs: Heatsink, user: str) -> float:
    began_s = perf_counter()
    await hs.timelines.home(user, limit=10)
    return perf_counter() - began_s


async def pull(hs: Heatsink, follower: str) -> tuple[float, int]:
    """From the call to the moment a home shows it, and how many reads that took."""
    began_s = perf_counter()
    post = await hs.timelines.post(LARGE, BODY)
    assert post.mode == PULLED
    for reads in range(1, READS_MAX):
        page = await hs.timelines.home(follower, limit=10)
        if any(seen.id == post.id for seen in page.posts):
            return perf_counter() - began_s, reads
    raise AssertionError(f"not seen in {READS_MAX} reads")


async def until_pulled(hs: Heatsink) -> None:
    """Posts that are still pushed end first: they would count for those that are not."""
    while (post := await hs.timelines.post(LARGE, BODY)).mode != PULLED:
        await hs.bulk.wait(post.batch)


async def run(bench: Bench, scale: Scale) -> None:
    many, few, rounds = scale(20_000, 1_000_000), scale(1_000, 9_000), scale(3, 15)
    follower = "fan-7"
    with RedisServer() as server:
        async with a_network(server.url) as hs:
            empty = info(server, "memory", "used_memory:")
            took_s = await import_s(hs, LARGE, range(THRESHOLD))
            await until_pulled(hs)
            took_s += await import_s(hs, LARGE, range(THRESHOLD, many))
            bench.add("a follow, imported", "µs", [took_s / many])
            graph = info(server, "memory", "used_memory:") - empty
            await import_s(hs, SMALL, range(few))
            before = info(server, "memory", "used_memory:")
            await push_s(hs, follower)
            home = (info(server, "memory", "used_memory:") - before) / few
            pushed, pulled, reads, homes = [], [], [], []
            push_writes, pull_writes = [], []
            for _ in range(rounds):
                start = homes_written(server)
                pushed.append(await push_s(hs, follower) / few * many)
                middle = homes_written(server)
                seen_s, looks = await pull(hs, follower)
                push_writes.append((middle - start) / few * many)
                pull_writes.append(float(homes_written(server) - middle))
                pulled.append(seen_s)
                reads.append(float(looks))
                homes.append(await home_s(hs, follower))
    whose = f"by an author of {many:,}"
    other = ("always push, computed", pushed)
    bench.add(f"post {whose} to a home that shows it", "ms", pulled, ratio_at_most(0.01), other)
    bench.add(f"home reads until a post {whose} is seen", "reads", reads, at_most(1))
    bench.add("a home read", "ms", homes)
    other = ("always push, computed", push_writes)
    bench.add(f"homes written for a post {whose}", "writes", pull_writes, at_most(0), other)
    other = ("always push, computed", [home * many / 1e6])
    bench.add(f"Redis, {many:,} follows written", "MB", [graph / 1e6], other=other)
