"""Authors small and large, every follow really written, while workers are killed in mid push.

Authors post while a graph is imported. Those who get famous cross the threshold on the way, and
come down again when their followers leave.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import groupby, islice
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import msgspec

import heatsink
from heatsink import Heatsink
from heatsink.bulk import BulkSettings
from heatsink.errors import Retryable
from heatsink.primitives.subjects import Kind, Subject
from heatsink.testing.redis import RedisServer
from heatsink.timelines import Post, TimelineSettings
from heatsink.timelines.policy import PULLED, PUSHED
from tests.servers import real

from .bulk import Process, Workers, running_workers

LEASE_S = 2.0
AT_ONCE = 50
NO_COST = 1e12  # only the number of followers decides


class Sizes(msgspec.Struct, frozen=True):
    """`sample` homes are checked beside those of all who follow an author below the threshold."""

    followers: tuple[int, ...] = (10, 1_000, 10_000, 100_000, 1_000_000)
    threshold: int = 10_000
    falls: tuple[int, ...] = (10_000, 100_000)
    sample: int = 1_000
    steps: int = 6  # posts of each author while the number of followers grows tenfold
    kills: int = 6  # of all workers, while the graph is imported
    workers: int = 2

    @property
    def milestones(self) -> list[int]:
        """Numbers of users at which everybody posts: near the threshold as often as far above."""
        largest, found = max(self.followers), [1]
        while found[-1] < largest:
            found.append(max(found[-1] + 1, int(found[-1] * 10 ** (1 / self.steps))))
        return [*found[:-1], largest]


def fan(number: int) -> str:
    return f"fan-{number}"


class Network:
    """What was posted and who follows whom, as it must be in the end."""

    def __init__(self, hs: Heatsink, workers: Workers, sizes: Sizes, rng: Random) -> None:
        self.hs = hs
        self.workers = workers
        self.sizes = sizes
        self.followers = {f"author-{size}": size for size in sizes.followers}
        self.posts: dict[str, list[Post]] = {author: [] for author in self.followers}
        self.imported = self.restarts = 0
        self.cut_pushes = 0
        self.running: list[Process] = []
        near, largest = sizes.threshold, max(sizes.followers)
        self.watched = [
            *range(near),
            *rng.sample(range(near, largest), min(sizes.sample, largest - near)),
        ]

    # -- what happens ----------------------------------------------------------------------

    async def look_at_homes(self) -> None:
        """From now on they are not made from the authors' logs, which would hide a lost push."""
        await at_once(self.hs.timelines.home(fan(number)) for number in self.watched)

    def graph(self) -> Iterator[tuple[str, str]]:
        for number in range(max(self.sizes.followers)):
            self.imported = max(self.imported, number)
            for author, size in self.followers.items():
                if number < size:
                    yield fan(number), author
        self.imported = max(self.sizes.followers)

    async def import_graph(self) -> None:
        """As an application would: from the first pair again if something was away."""
        while True:
            try:
                await self.hs.timelines.follow_many(self.graph())
            except Retryable:
                self.restarts += 1
                continue
            return

    async def rise(self) -> None:
        """Everybody posts while the graph is imported."""
        following = asyncio.ensure_future(self.import_graph())
        milestones = self.sizes.milestones
        kill_at = milestones[-1 :: -(len(milestones) // self.sizes.kills)]
        for milestone in milestones:
            while self.imported < milestone and not following.done():
                await asyncio.sleep(0.01)
            await self.post_all()
            if milestone in kill_at:
                await self.kill_in_mid_push()
        await following
        for author, size in self.followers.items():
            assert await self.hs.counters.value(Subject(Kind.FOLLOWERS, author)) == size

    async def fall(self, author: str, number: int) -> None:
        """The newest followers leave, down to this number."""
        await self.post_all()
        leaving = range(number, self.followers[author])
        self.followers[author] = number
        quarter = len(leaving) // 4 + 1
        for first in range(0, len(leaving), quarter):
            some = leaving[first : first + quarter]
            await at_once(self.hs.timelines.unfollow(fan(n), author) for n in some)
            await self.post_all()
        await self.until_mode(author, PUSHED)

    async def rise_again(self, author: str, number: int) -> None:
        back = range(self.followers[author], number)
        await self.hs.timelines.follow_many((fan(n), author) for n in back)
        self.followers[author] = number
        await self.until_mode(author, PULLED)

    async def until_mode(self, author: str, mode: str) -> None:
        """Followers are counted anew every second, and a change holds a moment later."""
        for _ in range(20):
            await asyncio.sleep(0.5)
            if (await self.post(author)).mode == mode:
                return
        raise AssertionError(f"{author}: {await self.hs.timelines.explain(author)}")

    async def post_all(self) -> list[Post]:
        return await asyncio.gather(*map(self.post, self.followers))

    async def post(self, author: str) -> Post:
        post = await self.hs.timelines.post(author, b"%d" % len(self.posts[author]))
        self.posts[author].append(post)
        return post

    async def kill_in_mid_push(self) -> None:
        """Every worker, with kill -9, while pushes are under way; others take their place."""
        while not all(map(self.workers.is_ready, self.running)):
            assert [process.poll() for process in self.running] == [None] * len(self.running)
            await asyncio.sleep(0.02)
        while not (cut := await self.frozen_pushes()):
            self.signal(signal.SIGCONT)
        self.cut_pushes += cut
        for process in self.running:
            self.workers.kill(process)
        self.start_workers()

    async def frozen_pushes(self) -> int:
        """Of how many pushes something was running when all workers were stopped."""
        batches = [post.batch for post in await self.post_all() if post.batch]
        waiting = batches
        while waiting:
            pushes = await asyncio.gather(*map(self.hs.bulk.status, waiting))
            if any(push.running for push in pushes):
                break
            waiting = [push.id for push in pushes if not push.is_final]
        self.signal(signal.SIGSTOP)
        left = await asyncio.gather(*map(self.hs.bulk.status, batches))
        return sum(push.running > 0 for push in left)

    def signal(self, number: int) -> None:
        for process in self.running:
            process.send_signal(number)

    def start_workers(self) -> None:
        self.running = [
            self.workers.start("--relaxed", workers=8) for _ in range(self.sizes.workers)
        ]

    # -- what must be ----------------------------------------------------------------------

    async def pushes_end(self) -> None:
        for posts in self.posts.values():
            for post in posts:
                if post.batch:
                    progress = await self.hs.bulk.wait(post.batch, 120.0)
                    assert (progress.state, progress.failed) == ("done", 0)

    async def check_homes(self) -> int:
        await at_once(map(self.check_home, self.watched))
        return len(self.watched)

    async def check_home(self, number: int) -> None:
        followed = [author for author, size in self.followers.items() if number < size]
        wanted = sorted(post.id for author in followed for post in self.posts[author])[::-1]
        found, cursor = [], None
        while True:
            page = await self.hs.timelines.home(fan(number), limit=200, cursor=cursor)
            found += [post.id for post in page.posts]
            cursor = page.cursor
            if cursor is None:
                break
        missing, surplus = set(wanted) - set(found), set(found) - set(wanted)
        assert found == wanted, f"{fan(number)}: {len(missing)} missing, {len(surplus)} too many"

    def stretches(self, author: str) -> list[tuple[str, int]]:
        """The modes of an author's posts, with how many posts each held."""
        modes = groupby(post.mode for post in self.posts[author])
        return [(mode, len(list(posts))) for mode, posts in modes]


async def at_once(calls: Iterable[Awaitable[Any]]) -> None:
    rest = iter(calls)
    while some := list(islice(rest, AT_ONCE)):
        await asyncio.gather(*some)


@asynccontextmanager
async def a_network(
    folder: Path, sizes: Sizes, rng: Random
) -> AsyncIterator[tuple[Network, RedisServer]]:
    with (
        real(RedisServer) as redis,
        running_workers(redis, folder, LEASE_S) as workers,
    ):
        timelines = TimelineSettings(threshold=sizes.threshold, costly_writes_s=NO_COST)
        async with heatsink.connect(
            "memory://",
            queue=redis.url,
            timelines=timelines,
            bulk=BulkSettings(durability="relaxed"),
        ) as hs:
            network = Network(hs, workers, sizes, rng)
            network.start_workers()
            yield network, redis


def memory_mb(redis: RedisServer) -> float:
    lines = redis.command("INFO", "memory").splitlines()
    return int(next(line for line in lines if line.startswith("used_memory:")).split(":")[1]) / 1e6


async def play(folder: Path, sizes: Sizes, say: Callable[[str], None] = lambda _: None) -> None:
    """All of it. Some come down again below the threshold, and the first of them up once more."""
    async with a_network(folder, sizes, Random(5)) as (network, redis):
        began_s = monotonic()

        def report(what: str) -> None:
            say(f"{monotonic() - began_s:6.0f} s  {what}; Redis has {memory_mb(redis):,.0f} MB")

        await network.look_at_homes()
        report(f"{len(network.watched):,} homes are whole")
        await network.rise()
        report(f"{sum(sizes.followers):,} follows are written, begun {1 + network.restarts} times")
        fallen = [f"author-{size}" for size in sizes.falls]
        for author in fallen:
            await network.fall(author, sizes.threshold * 3 // 4)
            report(f"{author} came down to {network.followers[author]:,}")
        await network.kill_in_mid_push()
        await network.rise_again(fallen[0], sizes.threshold)
        await network.pushes_end()
        report(f"pushes have ended, {network.cut_pushes} were cut by kill -9")
        checked = await network.check_homes()
        report(f"{checked:,} homes have every post once and in order")
        for author in network.posts:
            say(f"{author}: {network.stretches(author)}")
        assert network.cut_pushes > 0
        for author, size in zip(network.posts, sizes.followers, strict=True):
            modes = [mode for mode, _ in network.stretches(author)]
            flips = (size >= sizes.threshold) + (author in fallen) + (author == fallen[0])
            expected = [PUSHED, PULLED, PUSHED, PULLED][: 1 + flips]
            is_born_pulled = modes[0] == PULLED and size >= sizes.threshold  # at its first post
            assert modes == expected[is_born_pulled:], f"{author}: {modes}"
