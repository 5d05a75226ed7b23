"""What an author's posts cost, measured where it is known to all: in their log and in the homes.

Posts a second: the ids of the last posts say when they were made, whoever made them. Home reads:
a home's time to live tells when it was last looked at, so of some followers it is asked who looked
since about the last post. Nothing is counted and nothing kept, but for a moment near.
"""

from __future__ import annotations

from collections.abc import Callable

from heatsink.errors import Retryable

from .graph import FRESH_S, STALE_S, Graph
from .policy import COST_SLACK, Cost
from .store import POSTS, Cache, HomeStore, PostLog

LAST_POSTS, POSTS_MIN = 20, 10
SAMPLE = 64
READS_FRESH_S, READS_STALE_S = 5.0, 15.0
POSTS_S_MAX = 10.0  # nobody posts more: with few followers there is nothing to measure


class CostMeter:
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

    async def cost(self, author: str, followers: int, costly_writes_s: float = 0.0) -> Cost:
        """What may matter of it: where writes are too few to be costly, nobody looks at reads."""
        if followers * POSTS_S_MAX < costly_writes_s:
            return Cost(0.0, followers)
        cost = Cost(await self.posts_s(author), followers)
        if cost.writes_s <= costly_writes_s * COST_SLACK:
            return cost
        one_s: float | None = await self._cache.get(
            f"~reads/{author}",
            lambda: self._reads_s(author, 1 / cost.posts_s),
            fresh_for=READS_FRESH_S,
            stale_for=READS_STALE_S,
        )
        return cost._replace(reads_s=None if one_s is None else one_s * followers)

    async def posts_s(self, author: str) -> float:
        """Over the last posts and the time since; 0 until there are some."""
        posts_s: float = await self._cache.get(
            f"~rate/{author}", lambda: self._posts_s(author), fresh_for=FRESH_S, stale_for=STALE_S
        )
        return posts_s

    async def _posts_s(self, author: str) -> float:
        page = await self._log.page(POSTS + author, limit=LAST_POSTS)
        if len(page.entries) < POSTS_MIN:
            return 0.0
        oldest_ms = self._log.scheme.time_ms(page.entries[-1].raw)
        return len(page.entries) / max(self._now_ms() - oldest_ms, 1) * 1000

    async def _reads_s(self, author: str, within_s: float) -> float | None:
        """Looks of one follower a second: at least, since who looked twice counts once."""
        users = await self._graph.some_followers(author, SAMPLE)
        try:
            ages_s = await self._homes.looked_at_s(users)
        except Retryable:
            return None  # a pulled post needs no homes: it must not fail without them
        looked = sum(age_s is not None and age_s <= within_s for age_s in ages_s)
        return looked / max(len(users), 1) / within_s
