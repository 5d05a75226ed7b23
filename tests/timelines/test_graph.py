"""Following and unfollowing survive errors half way, double clicks and two clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import heatsink
from heatsink.errors import Unavailable
from heatsink.primitives.subjects import Kind, Subject
from heatsink.testing import run_on_virtual_time
from heatsink.timelines import Timelines
from heatsink.timelines.graph import Graph

from .test_timelines import bodies, world

CLICKS = 3
USERS = 10


class Breaking:
    """A log and counters whose n-th write from now on fails."""

    def __init__(self, graph: Graph, write: int) -> None:
        self.left = write
        self.log, self.counts = graph._log, graph._counts
        graph._log = graph._counts = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    async def append(self, *arguments: Any, **named: Any) -> Any:
        self.cut()
        return await self.log.append(*arguments, **named)

    async def add(self, *arguments: Any, **named: Any) -> Any:
        self.cut()
        return await self.counts.add(*arguments, **named)

    async def value(self, key: Subject) -> int:
        return await self.counts.value(key)

    def cut(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Unavailable("cut here")


async def broken(graph: Graph, write: int, change: Callable[[], Awaitable[bool]]) -> None:
    breaking = Breaking(graph, write)
    with suppress(Unavailable):
        await change()
    graph._log, graph._counts = breaking.log, breaking.counts


@pytest.mark.parametrize("then", ["follow", "unfollow"])
@pytest.mark.parametrize("first", ["follow", "unfollow"])
@pytest.mark.parametrize("write", [1, 2, 3, 4])
def test_what_ended_half_way_is_mended_by_either_call(write: int, first: str, then: str) -> None:
    async def work() -> None:
        async with world() as (hs, clock):
            timelines = hs.timelines
            await timelines.home("zoe")  # from now on it is not made from the authors' logs
            if first == "unfollow":
                await timelines.follow("zoe", "ada")
            change = getattr(timelines, first)
            await broken(timelines._graph, write, lambda: change("zoe", "ada"))
            await getattr(timelines, then)("zoe", "ada")
            await timelines.post("ada", b"hello")
            await clock.sleep(2.0)
            follows = then == "follow"
            assert await bodies(timelines, "zoe") == [b"hello"] * follows
            assert await timelines.following("zoe") == ["ada"] * follows
            assert await timelines.followers("ada") == follows

    run_on_virtual_time(work())


@pytest.mark.parametrize("write", [1, 2, 3, 4])
def test_who_is_said_to_follow_gets_the_posts_though_nobody_repeats(write: int) -> None:
    async def work(first: str) -> None:
        async with world() as (hs, clock):
            timelines = hs.timelines
            await timelines.home("zoe")  # from now on it is not made from the authors' logs
            if first == "unfollow":
                await timelines.follow("zoe", "ada")
            change = getattr(timelines, first)
            await broken(timelines._graph, write, lambda: change("zoe", "ada"))
            await timelines.post("ada", b"hello")
            await clock.sleep(2.0)
            follows = await timelines.following("zoe") == ["ada"]
            assert await bodies(timelines, "zoe") == [b"hello"] * follows

    for first in ("follow", "unfollow"):
        run_on_virtual_time(work(first))


async def click(clients: list[Timelines], what: str) -> int:
    """Everybody clicks several times at once. How many calls say that they changed something."""
    said = await asyncio.gather(
        *(
            getattr(clients[number % len(clients)], what)(f"user-{user}", "bob")
            for user in range(USERS)
            for number in range(CLICKS)
        )
    )
    return sum(said)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_double_click_counts_once(tmp_path: Path, count: int) -> None:
    url = f"sqlite:///{tmp_path / 'data.db'}"
    async with (
        heatsink.connect(url, queue="memory://") as one,
        heatsink.connect(url, queue="memory://") as two,
    ):
        clients = [one.timelines, two.timelines][:count]
        for _ in range(2):
            assert await click(clients, "follow") == USERS
            assert await one.counters.value(Subject(Kind.FOLLOWERS, "bob")) == USERS
            assert await click(clients, "unfollow") == USERS
            assert await one.counters.value(Subject(Kind.FOLLOWERS, "bob")) == 0


def test_a_clock_that_goes_back_does_not_bring_an_old_event_back() -> None:
    async def work() -> None:
        async with world() as (hs, _):
            graph = hs.timelines._graph
            await graph.follow("zoe", "ada")
            await graph.unfollow("zoe", "ada")
            last = await graph._last("zoe", "ada")
            graph._mint = lambda: bytes(16)
            await graph.follow("zoe", "ada")
            assert (await graph._last("zoe", "ada")).token > last.token
            assert [name async for name in graph.followers("ada")] == ["zoe"]

    run_on_virtual_time(work())
