"""A celebrity among friends: what always pushing costs everybody, and what pulling saves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import msgspec

from heatsink.bulk import Actions, BulkSettings
from heatsink.client.heatsink import Heatsink
from heatsink.client.queue import Queue
from heatsink.client.settings import Settings
from heatsink.isolate import TimelineSettings
from heatsink.isolate.store import HomeEntry
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.homes import MemoryHomes
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import SkewedClock, run_on_virtual_time

from .report import Cell, Chart, Figure, Report, Series, Table

FANS = 10_000
FRIENDS = 20
POSTS = 10
WRITE_S = 0.001
THRESHOLD = 1_000
WORKERS = 4
CASES = {"always pushed": 10**9, f"pulled from {THRESHOLD:,} followers on": THRESHOLD}
STORY = f"""\
A celebrity and somebody with {FRIENDS} friends post at the same time. Writing one home takes
{WRITE_S * 1000:.0f} ms of a worker, and there are {WORKERS}.

Pushed, a celebrity's post is a write for every fan, and takes its time. Pulled, it is one write,
and every fan sees it with the next look at home. The friend's posts are pushed in both cases."""


class SlowHomes(MemoryHomes):
    """Homes whose writes take time and are counted."""

    def __init__(self, clock: SkewedClock) -> None:
        super().__init__(clock)
        self.writes = 0
        self._clock = clock

    async def push(self, users: Sequence[str], entry: HomeEntry) -> None:
        self.writes += len(users)
        await self._clock.sleep(WRITE_S * len(users))
        await super().push(users, entry)


class Run(msgspec.Struct, frozen=True):
    case: str
    writes: int
    celebrity_s: list[float]
    friend_s: list[float]


class Network:
    def __init__(self, threshold: int, seed: int) -> None:
        self.clock = SkewedClock()
        self.homes = SlowHomes(self.clock)
        queue, rng = MemoryQueueServer(self.clock).stores(), Random(seed)
        settings = Settings(timelines=TimelineSettings(threshold=threshold))
        bulk = BulkSettings(partitions=1)
        self.client = Heatsink(
            memory_stores(self.clock),
            settings,
            self.clock,
            rng,
            lambda: Queue(queue, self.homes, bulk, self.clock, rng),
        )

    async def until_seen(self, user: str, author: str) -> float:
        """From posting to the moment that the user's home shows it."""
        timelines, began_s = self.client.timelines, self.clock.monotonic_s()
        post = await timelines.post(author, b"hello")
        while not any(p.id == post.id for p in (await timelines.home(user, limit=20)).posts):
            await self.clock.sleep(0.05)
        return self.clock.monotonic_s() - began_s

    async def play(self, case: str, fans: int) -> Run:
        async with self.client as hs:
            worker = hs.worker(Actions(), workers=WORKERS, workers_max=WORKERS)
            running = asyncio.ensure_future(worker.run())
            for number in range(fans):
                await hs.timelines.follow(f"fan-{number}", "celebrity")
            for number in range(FRIENDS):
                await hs.timelines.follow(f"friend-{number}", "somebody")
            await hs.timelines.post("celebrity", b"I am here")
            await self.clock.sleep(120.0)
            self.homes.writes = 0
            celebrity_s, friend_s = [], []
            for _ in range(POSTS):
                both = await asyncio.gather(
                    self.until_seen("fan-0", "celebrity"), self.until_seen("friend-0", "somebody")
                )
                celebrity_s.append(both[0])
                friend_s.append(both[1])
                await self.clock.sleep(60.0)
            worker.stop()
            await running
        return Run(case, self.homes.writes, celebrity_s, friend_s)


def one_run(case: str, fans: int, seed: int) -> Run:
    async def play() -> Run:
        return await Network(CASES[case], seed).play(case, fans)

    return run_on_virtual_time(play())


def experiment(fans: int = FANS, seed: int = 1) -> Report:
    runs = [one_run(case, fans, seed) for case in CASES]
    pushed, pulled = runs
    return Report(
        name="celebrity",
        title=f"A celebrity with {fans:,} fans",
        story=STORY,
        figures=[
            Figure("homes written, always pushed", f"{pushed.writes:,}", f"{POSTS} posts each"),
            Figure("homes written, pulled", f"{pulled.writes:,}", "the friend's only"),
            Figure(
                "a fan sees it after",
                f"{max(pulled.celebrity_s):.2f} s",
                f"{max(pushed.celebrity_s):.2f} s if pushed",
            ),
        ],
        tables=[_table(runs)],
        charts=[
            Chart(
                "From post to home: the celebrity's fan",
                "seconds",
                [_line(run, run.celebrity_s, colour) for colour, run in enumerate(runs)],
                x_title="posts",
            ),
            Chart(
                "From post to home: somebody's friend",
                "seconds",
                [_line(run, run.friend_s, colour) for colour, run in enumerate(runs)],
                x_title="posts",
            ),
        ],
    )


def _table(runs: list[Run]) -> Table:
    rows: list[list[Cell]] = [
        [
            run.case,
            run.writes,
            round(run.writes / (2 * POSTS), 1),
            round(max(run.celebrity_s), 2),
            round(max(run.friend_s), 2),
        ]
        for run in runs
    ]
    columns = ["posts are", "homes written", "a post", "fan waits, s", "friend waits, s"]
    return Table(f"{POSTS} posts of each", columns, rows)


def _line(run: Run, seconds: list[float], colour: int) -> Series:
    places = [float(number) for number in range(1, len(seconds) + 1)]
    return Series(run.case, places, [round(s, 3) for s in seconds], colour=colour)
