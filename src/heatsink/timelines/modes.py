"""The mode of authors, push or pull: where it is stored, and how it is chosen.

The mode of a post is a function of its author and of the time in its id. The registry stores an
author's mode like the layout of a key: one bucket means push, two mean pull. So the closed time
makes all processes agree on the mode, and a change of mode loses no post and shows none twice. At
each post, `Choice` reviews the author's mode. It uses the number of followers, and the cost that
`CostMeter` measures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from heatsink.errors import Retryable
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import PIN, Decision
from heatsink.registry.registry import Registry
from heatsink.registry.settings import StoredSetting, set_decision

from .graph import FRESH_S, STALE_S, Graph
from .policy import (
    COST_SLACK,
    PULLED,
    PUSHED,
    Author,
    ModeLimits,
    PostingCost,
    TimelineSettings,
    wanted_mode,
)
from .store import Cache, HomeStore, PostLog, posts_of

PINNED = "pinned: "
THRESHOLD = "timelines.threshold"
BUCKETS = {PUSHED: 1, PULLED: 2}
LAST_POSTS, POSTS_MIN = 20, 10
SAMPLE = 64
DECIDE_ATTEMPTS = 3
READS_FRESH_S, READS_STALE_S = 5.0, 15.0
POSTS_S_MAX = 10.0  # assumed maximum; with few followers even that many posts are not costly


class AuthorMode(NamedTuple):
    """An author's mode, and the reason for it. The mode applies to posts from `since_ms` on."""

    author: str
    mode: str
    reason: str
    since_ms: int


def mode_of(author: str) -> Subject:
    """Return the subject in the registry whose layout stores an author's mode."""
    return Subject(Kind.AUTHOR, author)


class Modes:
    """Reads and changes the modes of authors in the registry.

    The function `reach` renews the registry's view until the view holds all epochs up to a time.
    `reach_buckets` waits until a key's layout has a given number of buckets.
    """

    def __init__(
        self,
        registry: Registry,
        reach: Callable[[int], Awaitable[None]],
        reach_buckets: Callable[[str, int], Awaitable[None]],
    ) -> None:
        self._registry = registry
        self._reach = reach
        self._reach_buckets = reach_buckets

    async def know(self, posts: Iterable[tuple[str, int]]) -> None:
        """Make sure that the method `at` returns the exact modes of these posts.

        `posts` are pairs (author, time). If this process's view does not reach the time of a post
        yet, this renews the view.
        """
        knows = self._registry.view.knows
        unknown = [time_ms for author, time_ms in posts if not knows(mode_of(author).text, time_ms)]
        if unknown:
            await self._reach(max(unknown))

    def now(self, author: str) -> str:
        """Return the mode in the author's newest epoch, according to this process's view."""
        return _mode(self._registry.view.layout(mode_of(author).text).buckets)

    def at(self, author: str, time_ms: int) -> str:
        """Return the mode of the post that the author made at `time_ms`.

        The result is exact for times below this process's horizon.
        """
        return _mode(self._registry.view.layout(mode_of(author).text).epoch_at(time_ms).buckets)

    def was_ever_pulled(self, author: str) -> bool:
        return self._registry.view.layout(mode_of(author).text).max_buckets > 1

    def reason(self, author: str) -> str:
        pin = self._registry.view.pins.get(mode_of(author).text)
        return pin.reason if pin else "few followers"

    def since_ms(self, author: str) -> int:
        """Return the time from which the newest mode applies; 0 if the mode never changed."""
        return self._registry.view.layout(mode_of(author).text).epochs[-1].start_ms

    def wanted(self, author: str) -> str | None:
        """Return the mode that was decided last. It may not be in effect yet.

        Returns None if no mode was ever decided.
        """
        pin = self._registry.view.pins.get(mode_of(author).text)
        return _mode(pin.value or 1) if pin else None

    async def take_effect(self, author: str) -> None:
        """Wait until the last decision for the author is in effect, if this decision is pull.

        A decision takes effect within about a second. A change to push needs no wait: until it is
        in effect, posts are pulled, which costs little.
        """
        if self.wanted(author) == PULLED:
            await self._reach_buckets(mode_of(author).text, BUCKETS[PULLED])

    def decided(self) -> list[AuthorMode]:
        """Return the authors with a decided mode, the latest change first.

        All other authors are pushed.
        """
        view = self._registry.view
        found = []
        for key, pin in view.pins.items():
            if pin.subject.kind is Kind.AUTHOR:
                epoch, author = view.layout(key).epochs[-1], pin.subject.name
                found.append(AuthorMode(author, _mode(epoch.buckets), pin.reason, epoch.start_ms))
        return sorted(found, key=lambda one: -one.since_ms)

    async def set_threshold(self, followers: int, reason: str) -> None:
        now_ms = self._registry.now_ms()
        setting = StoredSetting(THRESHOLD, followers, "hs.timelines", now_ms, reason)
        await self._registry.publish([set_decision(setting)], term=None)

    async def change(self, author: str, mode: str, reason: str) -> None:
        decision = Decision(mode_of(author), PIN, BUCKETS[mode], reason)
        await self._registry.publish([decision], term=None)

    def last_decision(self, author: str) -> Decision | None:
        return self._registry.view.pins.get(mode_of(author).text)

    async def replace(self, seen: Decision | None, author: str, mode: str, reason: str) -> bool:
        """Decide a mode, if `seen` is still the last decision for the author.

        Returns False if another process has made a decision after `seen`.
        """
        decision = Decision(mode_of(author), PIN, BUCKETS[mode], reason)
        return await self._registry.replace_pin(seen, decision)


def _mode(buckets: int) -> str:
    return PULLED if buckets > 1 else PUSHED


class CostMeter:
    """Measures the cost of an author's posts from stored data, without counters.

    The ids of the last posts give the rate of posts. The remaining time to live of a home shows
    when the home was last read. So a sample of homes shows, approximately, how many followers have
    read their home since the last post.
    """

    def __init__(
        self,
        log: PostLog,
        graph: Graph,
        homes: HomeStore,
        cache: Cache,
        now_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._graph = graph
        self._homes = homes
        self._cache = cache
        self._now_ms = now_ms

    async def cost(self, author: str, followers: int, costly_writes_s: float = 0.0) -> PostingCost:
        """Return the cost of the author's posts.

        Reads are not measured if pushing the posts would write far fewer homes per second than
        `costly_writes_s`.
        """
        if followers * POSTS_S_MAX < costly_writes_s:
            return PostingCost(0.0, followers)
        cost = PostingCost(await self.posts_s(author), followers)
        if cost.writes_s <= costly_writes_s * COST_SLACK:
            return cost
        one_s: float | None = await self._cache.get_own(
            Subject(Kind.CACHED, f"reads/{author}"),
            lambda: self._reads_s(author, 1 / cost.posts_s),
            fresh_for=READS_FRESH_S,
            stale_for=READS_STALE_S,
        )
        return cost._replace(reads_s=None if one_s is None else one_s * followers)

    async def posts_s(self, author: str) -> float:
        """Return the posts per second since the 20th-last post.

        The result is 0 while the author has fewer than 10 posts.
        """
        posts_s: float = await self._cache.get_own(
            Subject(Kind.CACHED, f"rate/{author}"),
            lambda: self._posts_s(author),
            fresh_for=FRESH_S,
            stale_for=STALE_S,
        )
        return posts_s

    async def _posts_s(self, author: str) -> float:
        page = await self._log.page(posts_of(author), limit=LAST_POSTS)
        if len(page.entries) < POSTS_MIN:
            return 0.0
        oldest_ms = self._log.scheme.time_ms(page.entries[-1].raw)
        return len(page.entries) / max(self._now_ms() - oldest_ms, 1) * 1000

    async def _reads_s(self, author: str, within_s: float) -> float | None:
        """Reads per second by one follower, on average over a sample of followers.

        A follower who reads twice within `within_s` counts once, so the result is a lower bound.
        None if the homes are unavailable.
        """
        users = await self._graph.some_followers(author, SAMPLE)
        try:
            ages_s = await self._homes.looked_at_s(users)
        except Retryable:
            return None  # a pulled post needs no homes, so it must succeed without them
        looked = sum(age_s is not None and age_s <= within_s for age_s in ages_s)
        return looked / max(len(users), 1) / within_s


class Choice:
    """Chooses an author's mode each time the author posts, and explains the mode."""

    def __init__(
        self,
        graph: Graph,
        modes: Modes,
        meter: CostMeter,
        settings: TimelineSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self._graph = graph
        self._modes = modes
        self._meter = meter
        self._settings = settings
        self._now_ms = now_ms

    def adopt(self, settings: TimelineSettings) -> None:
        self._settings = settings

    async def renew(self, author: str) -> None:
        """Decide the mode of the author's next post, and wait until it is in effect."""
        if not self._modes.reason(author).startswith(PINNED):
            for _ in range(DECIDE_ATTEMPTS):
                if await self._decide(author):
                    break
        await self._modes.take_effect(author)

    async def _decide(self, author: str) -> bool:
        """Change the author's mode if necessary. Returns False if another process was faster.

        That process may have counted other followers. So after False, this process must count the
        followers again.
        """
        seen, change = self._modes.last_decision(author), None
        if self._modes.wanted(author) == PULLED:
            change = await self._change(author, await self._graph.follower_count(author))
        if change or self._modes.wanted(author) != PULLED:
            # A cached count may be seconds old, and lower than that of another process. A push to
            # many followers is costly, so this process reads the count before it pushes a post.
            change = await self._change(author, await self._graph.load_follower_count(author))
        return change is None or await self._modes.replace(seen, author, *change)

    async def _change(self, author: str, followers: int) -> tuple[str, str] | None:
        limits, cost = self._limits(), PostingCost(0.0, followers)
        if followers < limits.threshold:  # otherwise the number of followers alone decides
            cost = await self._meter.cost(author, followers, limits.costly_writes_s)
        return wanted_mode(self._author(author, cost), limits)

    async def explain(self, author: str) -> str:
        cost = await self._meter.cost(author, await self._graph.follower_count(author))
        return f"{self._modes.now(author)}: {self._modes.reason(author)} (now {cost})"

    def _author(self, name: str, cost: PostingCost) -> Author:
        modes = self._modes
        held_s = (self._now_ms() - modes.since_ms(name)) / 1000
        return Author(modes.wanted(name) or PUSHED, modes.reason(name), held_s, cost)

    def _limits(self) -> ModeLimits:
        settings = self._settings
        return ModeLimits(settings.threshold, settings.costly_writes_s, settings.costly_ratio)
