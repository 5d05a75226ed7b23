"""Compares two ways to deliver posts, pushing and pulling, by cost, for three kinds of authors.

The experiment is a small social network on virtual time, in which each write to a home timeline
takes time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import NamedTuple

import msgspec

from heatsink.bulk import Actions, BulkSettings
from heatsink.client.heatsink import Heatsink
from heatsink.client.queue import Queue
from heatsink.client.settings import Settings
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.messages import MemoryHomes
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import SkewedClock, run_on_virtual_time
from heatsink.timelines import Timelines, TimelineSettings
from heatsink.timelines.store import HomeEntry

from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all

WRITE_S = 0.001
WORKERS = 4
FANS = 10_000
FRIENDS = 20
POSTS = 10
THRESHOLD = 1_000
NEVER = 10**9
CASES = {"always pushed": NEVER, f"pulled from {THRESHOLD:,} followers on": THRESHOLD}
LISTENERS = 500
COMMENT_S = 1 / 3  # between two posts of the commentator
LOOK_S = 60.0  # between two reads of one listener
SETTLED_S = 15.0
EVENT_S = 30.0
RULES = {
    "always pushed": TimelineSettings(threshold=NEVER, costly_writes_s=NEVER),
    "followers decide": TimelineSettings(threshold=THRESHOLD, costly_writes_s=NEVER),
    "followers and cost decide": TimelineSettings(threshold=THRESHOLD),
}
STORY = f"""\
A celebrity and a user with {FRIENDS} friends post at the same time. Writing one home takes a worker
{WRITE_S * 1000:.0f} ms, and there are {WORKERS} workers.

If the celebrity's post is pushed, it is one write for every fan, which takes time. If it is pulled,
it is one write, and every fan sees it at the next read of the home. The friend's posts are pushed
in both cases.

A commentator has {LISTENERS} listeners, fewer than the threshold, and posts three times a second
while each listener reads once a minute. Most pushed posts are never read. So the cost rule pulls
them."""


class SlowHomes(MemoryHomes):
    """Home timelines whose writes take time. `writes` counts the written homes by author."""

    def __init__(self, clock: SkewedClock) -> None:
        super().__init__(clock)
        self.writes = Counter[str]()

    async def push(self, users: Sequence[str], entry: HomeEntry) -> None:
        self.writes[entry.author] += len(users)
        await self._clock.sleep(WRITE_S * len(users))
        await super().push(users, entry)


class Network:
    def __init__(self, settings: TimelineSettings, seed: int) -> None:
        self.clock = SkewedClock()
        self.homes = SlowHomes(self.clock)
        queue, rng = MemoryQueueServer(self.clock).stores(), Random(seed)
        bulk = BulkSettings(partitions=1)
        self._client = Heatsink(
            memory_stores(self.clock),
            Settings(timelines=settings),
            self.clock,
            rng,
            lambda: Queue(queue, self.homes, bulk, self.clock, rng),
        )

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Timelines]:
        async with self._client as hs:
            worker = hs.worker(Actions(), workers=WORKERS, workers_max=WORKERS)
            running = asyncio.ensure_future(worker.run())
            yield hs.timelines
            worker.stop()
            await running

    async def until_seen(self, user: str, author: str) -> float:
        """Let `author` post, and return the seconds until the home of `user` shows the post."""
        timelines, began_s = self._client.timelines, self.clock.monotonic_s()
        post = await timelines.post(author, b"hello")
        while not any(p.id == post.id for p in (await timelines.home(user, limit=20)).posts):
            await self.clock.sleep(0.05)
        return self.clock.monotonic_s() - began_s


class CelebrityRun(msgspec.Struct, frozen=True):
    case: str
    writes: int
    celebrity_s: list[float]
    friend_s: list[float]


async def play(case: str, fans: int, seed: int) -> CelebrityRun:
    """Let a celebrity and a user with few friends post at the same time, once a minute.

    `case` sets the number of followers from which posts are pulled. `fans` is the number of the
    celebrity's followers. Returns how many homes were written, and how long a fan and a friend
    waited.
    """
    network = Network(TimelineSettings(threshold=CASES[case]), seed)
    celebrity_s, friend_s = [], []
    async with network.at_work() as timelines:
        await gather_followers(timelines, fans)
        for _ in range(POSTS):
            both = await asyncio.gather(
                network.until_seen("fan-0", "celebrity"), network.until_seen("friend-0", "somebody")
            )
            celebrity_s.append(both[0])
            friend_s.append(both[1])
            await network.clock.sleep(60.0)
    return CelebrityRun(case, network.homes.writes.total(), celebrity_s, friend_s)


async def gather_followers(timelines: Timelines, fans: int) -> None:
    await timelines.follow_many((f"fan-{number}", "celebrity") for number in range(fans))
    await timelines.follow_many((f"friend-{number}", "somebody") for number in range(FRIENDS))


def one_run(case: str, fans: int, seed: int) -> CelebrityRun:
    return run_on_virtual_time(play(case, fans, seed))


# -- an event, with an author for each rule ------------------------------------------------


class AuthorCost(NamedTuple):
    """What the posts of one author cost during the event.

    `explained` says why the posts are pushed or pulled.
    """

    rules: str
    author: str
    posts: int
    writes: int
    explained: str

    @property
    def mode(self) -> str:
        return self.explained.partition(":")[0]


class PostingEvent:
    """Three authors post while listeners read. `play` returns what each author's posts cost."""

    def __init__(self, rules: str, seed: int) -> None:
        self.rules = rules
        self.network = Network(RULES[rules], seed)
        self.posts = {"somebody": 0, "celebrity": 0, "commentator": 0}

    async def play(self, fans: int) -> list[AuthorCost]:
        clock, writes = self.network.clock, self.network.homes.writes
        async with self.network.at_work() as timelines:
            await gather_followers(timelines, fans)
            names = [f"listener-{number}" for number in range(LISTENERS)]
            await timelines.follow_many((name, "commentator") for name in names)
            going_on = [
                asyncio.ensure_future(self.look(timelines, names)),
                asyncio.ensure_future(self.post(timelines, "somebody", 10.0)),
                asyncio.ensure_future(self.post(timelines, "celebrity", 10.0)),
                asyncio.ensure_future(self.post(timelines, "commentator", COMMENT_S)),
            ]
            await clock.sleep(SETTLED_S)
            writes.clear()
            before = dict(self.posts)
            await clock.sleep(EVENT_S)
            costs = [
                AuthorCost(
                    self.rules,
                    author,
                    self.posts[author] - before[author],
                    writes[author],
                    await timelines.explain(author),
                )
                for author in self.posts
            ]
            for task in going_on:
                task.cancel()
            await asyncio.gather(*going_on, return_exceptions=True)
        return costs

    async def post(self, timelines: Timelines, author: str, every_s: float) -> None:
        while True:
            await timelines.post(author, b"hello")
            self.posts[author] += 1
            await self.network.clock.sleep(every_s)

    async def look(self, timelines: Timelines, names: list[str]) -> None:
        while True:
            for name in names:
                await timelines.home(name, limit=20)
                await self.network.clock.sleep(LOOK_S / len(names))


def event(rules: str, fans: int, seed: int) -> list[AuthorCost]:
    async def play() -> list[AuthorCost]:
        return await PostingEvent(rules, seed).play(fans)

    return run_on_virtual_time(play())


# -- the report ----------------------------------------------------------------------------


def experiment(fans: int = FANS, seed: int = 1) -> LabReport:
    wanted = [partial(one_run, case, fans, seed) for case in CASES]
    found = run_all([*wanted, *(partial(event, rules, fans, seed) for rules in RULES)])
    runs, costs = found[: len(wanted)], [cost for each in found[len(wanted) :] for cost in each]
    return LabReport(
        name="celebrity",
        title=f"A celebrity with {fans:,} fans",
        story=STORY,
        figures=_figures(runs, costs),
        tables=[_table(runs), _cost_table(costs)],
        charts=[
            _chart("From post to home: the celebrity's fan", [run.celebrity_s for run in runs]),
            _chart("From post to home: somebody's friend", [run.friend_s for run in runs]),
        ],
    )


def _figures(runs: list[CelebrityRun], costs: list[AuthorCost]) -> list[Figure]:
    pushed, pulled = runs
    of_commentator = [cost.writes for cost in costs if cost.author == "commentator"]
    return [
        Figure("homes written, always pushed", f"{pushed.writes:,}", f"{POSTS} posts each"),
        Figure("homes written, pulled", f"{pulled.writes:,}", "the friend's only"),
        Figure(
            "a fan sees it after",
            f"{max(pulled.celebrity_s):.2f} s",
            f"{max(pushed.celebrity_s):.2f} s if pushed",
        ),
        Figure(
            "homes written for a commentator",
            f"{of_commentator[-1]:,}",
            f"{of_commentator[0]:,} in {EVENT_S:.0f} s if pushed",
        ),
    ]


def _table(runs: list[CelebrityRun]) -> ReportTable:
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
    return ReportTable(f"{POSTS} posts of each", columns, rows)


def _cost_table(costs: list[AuthorCost]) -> ReportTable:
    rows: list[list[Cell]] = [
        [cost.rules, cost.author, cost.mode, cost.posts, cost.writes, cost.explained]
        for cost in costs
    ]
    columns = ["rules", "author", "mode", "posts", "homes written", "why"]
    note = "Reads are estimated from the homes of 64 followers, since about the last post."
    return ReportTable(f"Cost by mode: {EVENT_S:.0f} s of an event", columns, rows, note)


def _chart(title: str, seconds: list[list[float]]) -> Chart:
    lines = [
        _line(case, one, colour)
        for colour, (case, one) in enumerate(zip(CASES, seconds, strict=True))
    ]
    return Chart(title, "seconds", lines, x_title="posts")


def _line(case: str, seconds: list[float], colour: int) -> Series:
    places = [float(number) for number in range(1, len(seconds) + 1)]
    return Series(case, places, [round(s, 3) for s in seconds], colour=colour)
