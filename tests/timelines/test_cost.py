"""What an author's posts cost is measured, and decides below the threshold."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

import heatsink
from heatsink import Heatsink
from heatsink.bulk import Actions
from heatsink.errors import InvalidSetting, Unavailable
from heatsink.testing import SkewedClock, run_on_virtual_time
from heatsink.timelines import TimelineSettings
from heatsink.timelines.policy import PULLED, PUSHED
from heatsink.timelines.store import HomeEntry

LISTENERS = 40
RULES = TimelineSettings(costly_writes_s=50.0)


@asynccontextmanager
async def a_commentator() -> AsyncIterator[tuple[Heatsink, SkewedClock]]:
    clock = SkewedClock()
    async with heatsink.connect("memory://", clock=clock, rng=Random(1), timelines=RULES) as hs:
        worker = hs.worker(Actions())
        running = asyncio.ensure_future(worker.run())
        await hs.timelines.follow_many((f"fan-{n}", "cyd") for n in range(LISTENERS))
        for number in range(LISTENERS):
            await hs.timelines.home(f"fan-{number}")
        await clock.sleep(10.0)
        yield hs, clock
        worker.stop()
        await running


async def comment(hs: Heatsink, clock: SkewedClock, posts: int, every_s: float) -> str:
    """The mode of the last post."""
    mode = ""
    for _ in range(posts):
        mode = (await hs.timelines.post("cyd", b"!")).mode
        await clock.sleep(every_s)
    return mode


def test_who_posts_more_than_anybody_reads_is_pulled_until_that_is_over() -> None:
    async def work() -> None:
        async with a_commentator() as (hs, clock):
            assert await comment(hs, clock, 30, 0.25) == PULLED
            reason = (await hs.timelines.explain("cyd")).partition(" (now")[0]
            assert reason.startswith("pull: cost: ")
            assert "posts/s × 40 followers = " in reason
            assert reason.endswith(" writes/s against 0 reads/s")
            assert await comment(hs, clock, 30, 10.0) == PUSHED
            assert "little enough to push again" in await hs.timelines.explain("cyd")
            homes = [len((await hs.timelines.home("fan-7", limit=100)).posts)]
            assert homes == [60]

    run_on_virtual_time(work())


def test_whose_followers_read_as_often_as_they_post_is_pushed() -> None:
    async def work() -> None:
        async with a_commentator() as (hs, clock):

            async def look() -> None:
                while True:
                    for number in range(LISTENERS):
                        await hs.timelines.home(f"fan-{number}")
                    await clock.sleep(0.1)

            looking = asyncio.ensure_future(look())
            assert await comment(hs, clock, 30, 0.25) == PUSHED
            figures = re.findall(r"(\d+) (?:writes|reads)/s", await hs.timelines.explain("cyd"))
            writes_s, reads_s = map(int, figures)
            assert writes_s > RULES.costly_writes_s
            assert reads_s == pytest.approx(writes_s, rel=0.2)
            looking.cancel()

    run_on_virtual_time(work())


def test_a_pulled_post_does_not_need_the_homes() -> None:
    async def work() -> None:
        async with a_commentator() as (hs, clock):
            assert await comment(hs, clock, 30, 0.25) == PULLED

            async def away(*_: object) -> None:
                raise Unavailable("away")

            hs.parts.queue.queue.homes.looked_at_s = away  # type: ignore[method-assign, assignment]
            await clock.sleep(20.0)
            assert (await hs.timelines.post("cyd", b"!")).mode == PULLED

    run_on_virtual_time(work())


def test_homes_that_are_away_for_a_moment_are_tried_again() -> None:
    async def work() -> None:
        async with a_commentator() as (hs, _):
            homes, calls = hs.parts.queue.queue.homes, 0
            page = homes.page

            async def twice_away(user: str, below: HomeEntry | None, limit: int) -> object:
                nonlocal calls
                calls += 1
                if calls < 3:
                    raise Unavailable("away")
                return await page(user, below, limit)

            homes.page = twice_away  # type: ignore[method-assign, assignment]
            assert (await hs.timelines.home("fan-1")).posts == []
            assert calls == 3

    run_on_virtual_time(work())


@pytest.mark.parametrize("name", ["costly_writes_s", "costly_ratio"])
def test_wrong_settings_are_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        TimelineSettings(**{name: 0.0})  # type: ignore[arg-type]
