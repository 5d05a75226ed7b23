"""Act 4: an author becomes famous. A post costs one write per follower, or one if it is pulled."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec

from heatsink.bulk.actions import Actions
from heatsink.lab.demo.act import (
    About,
    ActFinding,
    ActSnapshot,
    ActVerdict,
    Cell,
    Offer,
    Watcher,
    about,
    settle,
    watch,
)
from heatsink.lab.demo.lanes import LaneMeter
from heatsink.lab.demo.traffic import Leg, Pacer, Traffic, TrafficPlan
from heatsink.lab.demo.world import DemoWorld
from heatsink.primitives.ids import Uuid7
from heatsink.primitives.words import counted
from heatsink.timelines.policy import PULLED, PUSHED
from heatsink.timelines.timelines import Post, Timelines

FRIENDS_S, CROWD_S = 20, 150  # new followers per second
POST_EVERY_S = 1.0
LOOKED_AT = 40
HOME_PAGE = 200
WHY = "for comparison"


WORDS = """\
A post is pushed into the home timeline of every follower, so that reading a home takes one read.
With fifty followers that is fifty writes; with ten million followers it is ten million.

Heatsink counts followers and switches an author from push to pull at a threshold, here
{threshold:,}. From then on a post is written once, and homes fetch it when they are read.

Grace keeps posting while she gains followers. For comparison, a second author sends the same
posts to the same followers and is always pushed.

Look at the bars: each pair is one post, and the height is the number of homes written for it so
far. A post without a blue bar was pulled.

hs.timelines with a threshold of {threshold:,} (the default is 10,000), on SQLite and a private
Valkey server. Pushes are bulk actions in its queue. The second author is pinned to push."""


class PostNow(msgspec.Struct, frozen=True):
    """One post: the number of followers when it was stored, its mode, and the homes written for it.

    `always_writes` are the homes written for the same post by the author who is always pushed.
    """

    followers: int
    mode: str
    writes: int
    always_writes: int


class CelebrityNow(ActSnapshot, frozen=True, tag="snapshot"):
    followers: int
    threshold: int
    mode: str
    posts: list[PostNow]
    says: str

    def cells(self) -> dict[str, Cell]:
        last = self.posts[-1] if self.posts else PostNow(0, PUSHED, 0, 0)
        return {
            "followers": self.followers,
            "posts": len(self.posts),
            "last post, always pushed": last.always_writes,
            "last post, threshold": last.writes,
            "now": self.mode,
        }


def traffic_of(plan: TrafficPlan) -> Traffic:
    friends_s, crowd_s = plan.size * FRIENDS_S, plan.size * CROWD_S
    return Traffic(
        (
            Leg("a few friends follow", 5, friends_s, friends_s),
            Leg("she is discovered", 10, friends_s, crowd_s),
            Leg("a celebrity", 11, crowd_s, crowd_s),
        )
    ).faster(plan.speed)


class Fame:
    """Two authors with the same number of followers and posts.

    Posts of the first author are pulled from a threshold of followers on. Posts of the second
    author are always pushed.
    """

    def __init__(self, world: DemoWorld, tasks: asyncio.TaskGroup) -> None:
        self.grace = world.fresh("grace")
        self.pushed = f"{self.grace}-always-pushed"
        self.meters = {name: LaneMeter(world.clock) for name in (self.grace, self.pushed)}
        self.followers = 0
        self.posts: list[tuple[int, Post, Post]] = []
        self._posting: list[asyncio.Task[None]] = []
        self._arriving: list[asyncio.Task[None]] = []
        self._timelines: Timelines = world.hs.timelines
        self._tasks = tasks

    async def begin(self) -> None:
        await self._timelines.pin(self.pushed, PUSHED, reason=WHY)

    def arrive(self, count: int) -> None:
        for _ in range(count):
            fan = self.fan(len(self._arriving))
            self._arriving.append(self._tasks.create_task(self._follow(fan)))

    def fan(self, number: int) -> str:
        return f"fan-{number}-of-{self.grace}"

    async def _follow(self, fan: str) -> None:
        await self._timelines.follow(fan, self.grace)
        self.followers += 1
        await self._timelines.follow(fan, self.pushed)

    def post(self) -> None:
        """Let both authors post, without waiting until their earlier posts are stored."""
        self._posting.append(self._tasks.create_task(self._post(len(self._posting) + 1)))

    async def _post(self, number: int) -> None:
        body = f"post {number}".encode()
        both = (self._timelines.post(author, body) for author in (self.grace, self.pushed))
        mine, always = await asyncio.gather(*both)
        self.posts.append((self.followers, mine, always))

    async def settle(self) -> None:
        await asyncio.gather(*self._posting, *self._arriving)

    def told(self) -> list[PostNow]:
        return [
            PostNow(followers, mine.mode, self._writes(mine), self._writes(always))
            for followers, mine, always in self.posts
        ]

    def _writes(self, post: Post) -> int:
        return self.meters[post.author].taken[Uuid7().raw(post.id).hex()]

    async def look_at_homes(self, rng: Random) -> tuple[int, int]:
        """Read the homes of some fans. Return how many were read, and how many of these are wrong.

        A home is right if it shows every post exactly once.
        """
        fans = rng.sample(range(self.followers), min(LOOKED_AT, self.followers))
        due = sorted(str(post.id) for _, *both in self.posts for post in both)
        homes = [await self._timelines.home(self.fan(n), limit=HOME_PAGE) for n in fans]
        return len(fans), sum(sorted(str(p.id) for p in home.posts) != due for home in homes)


class CelebrityAct:
    name = "celebrity"

    def about(self, plan: TrafficPlan) -> About:
        return about(self.name, "A celebrity", WORDS.format(threshold=plan.threshold))

    def seconds(self, plan: TrafficPlan) -> float:
        return traffic_of(plan).seconds

    async def run(self, world: DemoWorld, plan: TrafficPlan, watcher: Watcher) -> ActVerdict:
        async with world.working(Actions()), asyncio.TaskGroup() as tasks:
            fame, pacer = Fame(world, tasks), Pacer(traffic_of(plan), world.clock)
            with (
                world.tap.on(fame.grace, fame.meters[fame.grace]),
                world.tap.on(fame.pushed, fame.meters[fame.pushed]),
            ):
                await fame.begin()

                async def look() -> CelebrityNow:
                    return _look(fame, pacer, traffic_of(plan), plan.threshold)

                watching = tasks.create_task(watch(look, watcher, world.clock))
                posting = tasks.create_task(_keep_posting(fame, world, POST_EVERY_S / plan.speed))
                await pacer.run(fame.arrive)
                posting.cancel()
                fame.post()
                await _pushed_through(world, fame)
                watching.cancel()
                watcher.tell(await look())
            offer = Offer("new followers", traffic_of(plan).calls, pacer.offered)
            homes = await fame.look_at_homes(world.rng)
            return judge(offer, fame.told(), homes, plan.threshold)


async def _keep_posting(fame: Fame, world: DemoWorld, every_s: float) -> None:
    while True:
        await world.clock.sleep(every_s)
        fame.post()


async def _pushed_through(world: DemoWorld, fame: Fame) -> None:
    await fame.settle()
    for _, *both in fame.posts:
        for post in both:
            if post.batch:
                await world.hs.bulk.wait(post.batch)


def _look(fame: Fame, pacer: Pacer, traffic: Traffic, threshold: int) -> CelebrityNow:
    posts = fame.told()
    mode = posts[-1].mode if posts else PUSHED
    leg = traffic.leg_at(pacer.second)[0].name
    says = narrate(fame.followers, mode, threshold)
    return CelebrityNow(round(pacer.second, 2), leg, fame.followers, threshold, mode, posts, says)


def narrate(followers: int, mode: str, threshold: int) -> str:
    if mode == PULLED:
        return (
            f"{followers:,} followers: past the threshold of {threshold:,}, Grace is pulled. Each "
            "post is one write, and fans see it when they next read their home."
        )
    if followers > threshold / 2:
        return f"{followers:,} followers: a post takes {followers:,} writes, and more each time."
    return f"{followers:,} followers: a post is pushed into their homes, which is cheap."


def judge(offer: Offer, posts: list[PostNow], homes: tuple[int, int], threshold: int) -> ActVerdict:
    looked_at, wrong = homes
    always, mine = sum(p.always_writes for p in posts), sum(p.writes for p in posts)
    line = (
        f"{counted(len(posts), 'post')} took {mine:,} home writes with the threshold, {always:,} "
        f"if always pushed. The last one took {posts[-1].writes:,} and "
        f"{posts[-1].always_writes:,}."
    )
    findings = [
        ActFinding(
            not wrong,
            f"Of {looked_at} fans picked at random, {looked_at - wrong} have a home that shows "
            "every post of both authors exactly once, pushed or pulled.",
        ),
        _pulled(posts, threshold),
        ActFinding(
            None,
            f"Always pushed, a post took {always / len(posts):,.0f} home writes on average "
            f"and {max(post.always_writes for post in posts):,} at most; with the threshold, "
            f"{mine / len(posts):,.0f} on average.",
        ),
    ]
    return ActVerdict(*settle(line, offer, findings, wrong=bool(wrong)))


def _pulled(posts: list[PostNow], threshold: int) -> ActFinding:
    pulled = [post for post in posts if post.mode == PULLED]
    if not pulled:
        return ActFinding(
            False, f"No post was pulled: Grace was pushed past {threshold:,} followers."
        )
    writes = sum(post.writes for post in pulled)
    widest = max(post.writes for post in posts)
    late = (
        f" One post before that reached {widest:,} homes: new followers came while it was pushed."
        if widest > threshold
        else ""
    )
    return ActFinding(
        not writes,
        f"After her follower number {threshold:,} she was pulled: {counted(len(pulled), 'post')}, "
        f"{writes:,} home writes.{late}",
    )
