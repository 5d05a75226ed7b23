"""Timelines hold under faults, and the simulation would notice if they did not."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from unittest.mock import patch

import pytest

from heatsink.primitives.subjects import Kind, Subject
from heatsink.timelines.graph import FRESH_S, STALE_S, Graph
from heatsink.timelines.modes import Modes
from heatsink.timelines.policy import PUSHED
from heatsink.timelines.store import HomeEntry
from heatsink.timelines.timelines import Timelines
from tests.planted import Hunt, Plant, usually

from .simulation import PINNED, Flips, Violation, simulate

pytestmark = pytest.mark.slow("simulated timelines")

SEEDS = usually(2, full=8)
SEEDS_PER_TEST = usually(2, full=4)
FIRST = 7  # with the two seeds from here on, all kinds of flips happen
BUGS: dict[str, Plant] = {}
HUNT = Hunt("timelines", BUGS, simulate, Violation, seeds=15)


def bug(plant: Plant) -> Plant:
    BUGS[plant.__name__] = plant
    return plant


@pytest.mark.timeout(240)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, SEEDS_PER_TEST))
def test_every_home_shows_every_post_once_in_order(first: int) -> None:
    flips = sum(map(simulate, range(first, first + SEEDS_PER_TEST)), Flips())
    assert flips.to_pull > 0
    assert flips.to_push > 0
    assert flips.by_cost > 0


@bug
def mode_of_today() -> AbstractContextManager[object]:
    return patch.object(Modes, "at", lambda self, author, _: self.now(author))


@bug
def last_choice_of_the_policy_holds_for_older_posts() -> AbstractContextManager[object]:
    at = Modes.at

    def latest(self: Modes, author: str, time_ms: int) -> str:
        return at(self, author, time_ms) if author == PINNED else self.wanted(author) or PUSHED

    return patch.object(Modes, "at", latest)


@bug
def first_post_does_not_wait() -> AbstractContextManager[object]:
    async def at_once(self: Modes, author: str) -> None:
        pass

    return patch.object(Modes, "take_effect", at_once)


@bug
def followers_counted_from_the_cache() -> AbstractContextManager[object]:
    """Processes disagree about an author's followers for some seconds."""
    count = Graph.load_follower_count

    async def cached(self: Graph, author: str) -> int:
        found: int = await self._cache.get_own(
            Subject(Kind.CACHED, f"old/{author}"),
            lambda: count(self, author),
            fresh_for=FRESH_S,
            stale_for=STALE_S,
        )
        return found

    return patch.object(Graph, "load_follower_count", cached)


@bug
def no_back_fill() -> AbstractContextManager[object]:
    async def follow(self: Timelines, user: str, author: str) -> bool:
        return await self._graph.follow(user, author)

    return patch.object(Timelines, "follow", follow)


@bug
def no_rebuild() -> AbstractContextManager[object]:
    async def rebuild(self: Timelines, user: str) -> None:
        await self._homes.fill([user], [], True)

    return patch.object(Timelines, "_rebuild", rebuild)


@bug
def unfollowed_stay() -> AbstractContextManager[object]:
    async def pushed(
        self: Timelines, user: str, _: frozenset[str], below: HomeEntry | None, limit: int
    ) -> list[HomeEntry]:
        page = await self._homes.page(user, below, limit)
        if page is None:
            await self._rebuild(user)
            page = await self._homes.page(user, below, limit)
        return page or []

    async def unfollow(self: Timelines, user: str, author: str) -> bool:
        return await self._graph.unfollow(user, author)

    return patch.multiple(Timelines, _pushed=pushed, unfollow=unfollow)


@bug
def cursor_without_the_author() -> AbstractContextManager[object]:
    """As before cursors carried it: what shares an id with the last post of a page is lost."""
    read = Timelines._read_cursor

    def by_id_alone(self: Timelines, cursor: str | None) -> HomeEntry | None:
        entry = read(self, cursor)
        return entry and HomeEntry(entry.raw, "")

    return patch.object(Timelines, "_read_cursor", by_id_alone)


@bug
def homes_merged_by_id_alone() -> AbstractContextManager[object]:
    """Posts that share an id come in any order, which another page may see otherwise."""

    async def newest(
        self: Timelines, user: str, following: Iterable[str], below: HomeEntry | None, limit: int
    ) -> list[HomeEntry]:
        followed = frozenset(following)
        pulled = [author for author in followed if self._modes.was_ever_pulled(author)]
        found = set(await self._pushed(user, followed, below, limit))
        for author in pulled:
            found.update(await self._pulled(author, below, limit))
        return sorted(found, key=lambda entry: entry.raw, reverse=True)[:limit]

    return patch.object(Timelines, "_newest", newest)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)
