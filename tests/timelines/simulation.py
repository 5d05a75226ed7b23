"""Timelines under faults, on virtual time: every home shows every post once, in order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from heatsink.bulk import Actions, BulkSettings
from heatsink.client.heatsink import Heatsink
from heatsink.client.queue import Queue
from heatsink.client.settings import Settings
from heatsink.errors import HeatsinkError
from heatsink.primitives.subjects import Kind
from heatsink.spread.backoff import Retries
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.messages import MemoryHomes
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import SkewedClock, linked_stores, run_on_virtual_time
from heatsink.testing.faults import _Linked
from heatsink.timelines import TimelineSettings
from heatsink.timelines.modes import mode_of
from heatsink.timelines.policy import PULLED, PUSHED
from tests.bulk.process import Process

from .losses import lose_everything

AUTHORS = ["ada", "bob", "cyd", "dan"]
PINNED = "cyd"  # all others go by followers and cost
THRESHOLD = 5
BY_FOLLOWERS = TimelineSettings(THRESHOLD)
BY_COST_TOO = TimelineSettings(THRESHOLD, costly_writes_s=0.1, costly_ratio=1.0)
BURST = 12
PAGE = 5  # small, so that posts that share an id come to lie on both sides of a boundary
USERS = [f"user-{number}" for number in range(8)]
STEPS = 60
SETTLE_S = 60.0


class Violation(AssertionError):
    """Some home does not show what it must."""


@dataclass
class Flips:
    """Changes of mode that the policy made, by the rule that its reason names."""

    to_pull: int = 0
    to_push: int = 0
    by_cost: int = 0

    def __add__(self, other: Flips) -> Flips:
        pull, push = self.to_pull + other.to_pull, self.to_push + other.to_push
        return Flips(pull, push, self.by_cost + other.by_cost)


@dataclass
class World:
    rng: Random
    settings: TimelineSettings = BY_FOLLOWERS
    clock: SkewedClock = field(default_factory=SkewedClock)
    nodes: list[Process] = field(default_factory=list)
    clients: dict[str, Heatsink] = field(default_factory=dict)
    acknowledged: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    wished: dict[tuple[str, str], bool] = field(default_factory=dict)
    unsure: set[tuple[str, str]] = field(default_factory=set)
    deleted: set[tuple[Any, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stores = memory_stores(self.clock)
        self.queue = MemoryQueueServer(self.clock)
        self.homes = MemoryHomes(self.clock)

    def start_node(self, number: int) -> None:
        node = Process(f"node-{number}", self.rng, (0.001, 0.01))
        self.nodes.append(node)
        node.run(self._live(node))

    async def _live(self, node: Process) -> None:
        settings = Settings(
            retries=Retries(first_s=0.05, longest_s=0.5, deadline_s=4.0),
            timelines=self.settings,
            lease_s=1.5,
            name=node.name,
        )

        def queue() -> Queue:
            homes: Any = _Linked(node.link, self.homes)
            bulk = BulkSettings(partitions=4, deadline_s=5.0)
            return Queue(node.stores(self.queue), homes, bulk, node.clock, self.rng)

        while True:
            stores = linked_stores(self.stores, node.link)
            client = Heatsink(stores, settings, node.clock, self.rng, queue)
            try:
                await client.__aenter__()
                break
            except HeatsinkError:
                await node.clock.sleep(0.2)
        self.clients[node.name] = client
        await client.worker(Actions(), lease_s=3.0, member_s=1.5).run()

    def crash_a_node(self) -> None:
        up = [node for node in self.nodes if not node.is_dead]
        node = self.rng.choice(up)
        node.kill()
        self.clients.pop(node.name, None)
        self.start_node(len(self.nodes))

    def disturb(self) -> None:
        for node in self.nodes:
            faults = node.faults
            faults.lost, faults.answer_lost = self.rng.choice([(0.0, 0.0), (0.05, 0.05)])
            if self.rng.random() < 0.1:
                node.clock.stall(self.rng.uniform(0.5, 5.0))

    # -- what users do ---------------------------------------------------------------------

    async def attempt(self, act: Callable[[Heatsink], Awaitable[Any]]) -> Any:
        """None if nobody could do it, or nobody knows."""
        if not self.clients:
            return None
        client = self.rng.choice([self.clients[name] for name in sorted(self.clients)])
        try:
            return await asyncio.wait_for(act(client), 20.0)
        except (HeatsinkError, TimeoutError):
            return None

    async def step(self) -> None:
        author, user = self.rng.choice(AUTHORS), self.rng.choice(USERS)
        choice = self.rng.random()
        if choice < 0.38:
            await (self._post(author) if choice < 0.28 else self._post_under_one_id())
        elif choice < 0.45:
            await asyncio.gather(*(self._post(author) for _ in range(BURST)))
        elif choice < 0.63:
            await self._follow(user, author, self.rng.random() < 0.7)
        elif choice < 0.75:
            await self._crowd(author)
        elif choice < 0.8 and self.acknowledged[author]:
            await self._delete(author, self.rng.choice(self.acknowledged[author]))
        elif choice < 0.88:
            mode = self.rng.choice([PUSHED, PULLED])
            await self.attempt(lambda hs: hs.timelines.pin(PINNED, mode, reason="a flip"))
        elif choice < 0.9:
            await self.attempt(lambda hs: hs.timelines.unpin(PINNED))
        elif choice < 0.94:
            await self._look(user)
        elif choice < 0.98:
            self.crash_a_node()
        else:
            lose_everything(self.homes)

    async def _post(self, author: str, id: Any = None) -> Any:
        body = b"%d" % self.rng.getrandbits(32)
        fewest, began_ms = self._followers_at_least(author), int(self.clock.now_s() * 1000)
        post = await self.attempt(lambda hs: hs.timelines.post(author, body, id=id))
        if post is None:
            return None
        self.acknowledged[author].append(post.id)
        fewest = min(fewest, self._followers_at_least(author))
        is_pushed = id is None and post.mode == PUSHED and author != PINNED
        if is_pushed and fewest >= THRESHOLD and self._pushed_since_ms(author) < began_ms:
            raise Violation(f"a post of {author} was pushed to {fewest} followers or more")
        return post.id

    def _pushed_since_ms(self, author: str) -> int:
        """When the author's last epoch began: one that began during a post was decided before."""
        view = self.clients[max(self.clients)].parts.registry.view
        return view.layout(mode_of(author).text).epochs[-1].start_ms

    def _followers_at_least(self, author: str) -> int:
        """Those who follow for certain."""
        return sum(
            follows and pair not in self.unsure
            for pair, follows in self.wished.items()
            if pair[1] == author
        )

    async def _post_under_one_id(self) -> None:
        """Callers mint ids too: nothing keeps two authors from using the same one."""
        for _ in range(3):
            first, second = self.rng.sample(AUTHORS, 2)
            if (id := await self._post(first)) is not None:
                await self._post(second, id)

    async def _follow(self, user: str, author: str, follows: bool) -> None:
        async def act(hs: Heatsink) -> bool:
            change = hs.timelines.follow if follows else hs.timelines.unfollow
            await change(user, author)
            return True

        if follows != self.wished.get((user, author)):
            self.unsure.add((user, author))
        self.wished[user, author] = follows
        if await self.attempt(act):
            self.unsure.discard((user, author))
        else:
            self.unsure.add((user, author))
        await self._look(user)

    async def _crowd(self, author: str) -> None:
        """Many come, or most leave, while the author posts: across the threshold, either way."""
        comes = not self.wished.get((USERS[0], author))
        for user in USERS[: -1 if comes else THRESHOLD]:
            await self._follow(user, author, comes)
            if self.rng.random() < 0.3:
                await self._post(author)
        await self.clock.sleep(2.0)
        await self._post(author)

    async def _look(self, user: str) -> None:
        """A home that was made from the authors' logs hides what was not pushed to it."""
        await self.attempt(lambda hs: hs.timelines.home(user))

    async def _delete(self, author: str, id: Any) -> None:
        self.deleted.add((id, author))
        await self.attempt(lambda hs: hs.timelines.delete(author, id))

    # -- the end ---------------------------------------------------------------------------

    async def settle(self) -> None:
        """Everything heals, what nobody knows is said once more, and the queue drains."""
        for node in self.nodes:
            if not node.is_dead:
                node.faults.heal()
        await self.clock.sleep(15.0)
        for user, author in sorted(self.unsure):
            await self._follow(user, author, self.wished[user, author])
        for author, ids in self.acknowledged.items():
            for id in ids:
                if (id, author) in self.deleted:
                    await self._delete(author, id)
        await self.clock.sleep(SETTLE_S)

    async def check(self) -> None:
        for user in USERS:
            followed = {a for a in AUTHORS if self.wished.get((user, a))}
            found = await self._home(user)
            posts = [(post.id, post.author) for post in found]
            if posts != sorted(posts, reverse=True):
                raise Violation(f"{user}: not in order")
            if len(set(posts)) != len(posts):
                raise Violation(f"{user}: a post twice")
            strangers = {post.author for post in found} - followed
            if strangers:
                raise Violation(f"{user}: posts of {strangers}")
            wanted = {(id, a) for a in followed for id in self.acknowledged[a]} - self.deleted
            if missing := wanted - set(posts):
                raise Violation(f"{user}: {len(missing)} of {len(wanted)} posts are missing")
            if shown := self.deleted & set(posts):
                raise Violation(f"{user}: {len(shown)} deleted posts are shown")

    async def flips(self) -> Flips:
        """As the registry has them: what was decided, whether it took effect or not."""
        found = Flips()
        for entry in await self.clients[max(self.clients)].decisions(200):
            for decision in entry.bucket_decisions:
                if decision.subject.kind is Kind.AUTHOR and PINNED not in decision.key:
                    pulls, by_cost = decision.value == 2, "cost: " in decision.reason
                    found += Flips(pulls and not by_cost, not pulls and not by_cost, by_cost)
        return found

    async def _home(self, user: str) -> list[Any]:
        client = self.clients[max(self.clients)]
        found: list[Any] = []
        cursor = None
        while True:
            page = await client.timelines.home(user, limit=PAGE, cursor=cursor)
            found += page.posts
            cursor = page.cursor
            if cursor is None:
                return found


def simulate(seed: int) -> Flips:
    async def run() -> Flips:
        world = World(Random(seed), BY_COST_TOO if seed % 2 else BY_FOLLOWERS)
        for number in range(3):
            world.start_node(number)
        await world.clock.sleep(5.0)
        for _ in range(STEPS):
            world.disturb()
            await world.step()
            await world.clock.sleep(world.rng.uniform(0.0, 1.0))
        await world.settle()
        await world.check()
        flips = await world.flips()
        for node in world.nodes:
            node.kill()
        return flips

    return run_on_virtual_time(run())
