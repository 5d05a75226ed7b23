"""Timelines on virtual time: every post in every home exactly once, whatever its author's mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

import heatsink
from heatsink import Heatsink
from heatsink.bulk import Actions
from heatsink.errors import InvalidCursor, InvalidSetting
from heatsink.isolate import Timelines, TimelineSettings
from heatsink.isolate.policy import PULLED, PUSHED, wanted_mode
from heatsink.testing import SkewedClock, run_on_virtual_time


@asynccontextmanager
async def world(threshold: int = 10, seed: int = 1) -> AsyncIterator[tuple[Heatsink, SkewedClock]]:
    clock = SkewedClock()
    settings = TimelineSettings(threshold=threshold)
    async with heatsink.connect(
        "memory://", clock=clock, rng=Random(seed), timelines=settings
    ) as hs:
        worker = hs.worker(Actions())
        running = asyncio.ensure_future(worker.run())
        await clock.sleep(1.0)
        yield hs, clock
        worker.stop()
        await running


def on_virtual_time(
    test: Callable[[Timelines, SkewedClock], Awaitable[None]],
) -> Callable[[], None]:
    def run() -> None:
        async def work() -> None:
            async with world() as (hs, clock):
                await test(hs.timelines, clock)

        run_on_virtual_time(work())

    run.__name__ = test.__name__
    return run


async def bodies(timelines: Timelines, user: str, limit: int = 50) -> list[bytes]:
    found, cursor = [], None
    while True:
        page = await timelines.home(user, limit=limit, cursor=cursor)
        found += [post.body for post in page.posts]
        cursor = page.cursor
        if cursor is None:
            return found


async def crowd(timelines: Timelines, author: str, count: int) -> None:
    for number in range(count):
        await timelines.follow(f"fan-{number}", author)


@on_virtual_time
async def test_a_small_authors_post_is_pushed(timelines: Timelines, clock: SkewedClock) -> None:
    await timelines.follow("zoe", "ada")
    post = await timelines.post("ada", b"hello")
    assert post.mode == PUSHED
    assert post.batch
    await clock.sleep(1.0)
    assert await bodies(timelines, "zoe") == [b"hello"]
    assert await bodies(timelines, "yan") == []


@on_virtual_time
async def test_a_celebritys_post_is_pulled_at_once(
    timelines: Timelines, clock: SkewedClock
) -> None:
    await crowd(timelines, "ada", 12)
    await timelines.post("ada", b"first")
    await clock.sleep(3.0)
    post = await timelines.post("ada", b"second")
    assert (post.mode, post.batch) == (PULLED, "")
    assert (await bodies(timelines, "fan-3"))[0] == b"second"
    await clock.sleep(1.0)
    assert await bodies(timelines, "fan-3") == [b"second", b"first"]


@on_virtual_time
async def test_flips_in_mid_stream_lose_and_double_nothing(
    timelines: Timelines, clock: SkewedClock
) -> None:
    await timelines.follow("zoe", "ada")
    sent = []
    for number in range(60):
        if number % 15 == 7:
            mode = PULLED if number % 2 else PUSHED
            await timelines.pin("ada", mode, reason="a test")
        sent.append(b"%d" % number)
        await timelines.post("ada", sent[-1])
        await clock.sleep(0.2)
    await clock.sleep(2.0)
    assert await bodies(timelines, "zoe", limit=7) == sent[::-1]


@on_virtual_time
async def test_the_threshold_is_changed_for_all_while_they_run(
    timelines: Timelines, clock: SkewedClock
) -> None:
    await crowd(timelines, "ada", 5)
    await timelines.set_threshold(4, reason="Redis is short of memory")
    await clock.sleep(2.0)
    await timelines.post("ada", b"one")
    await clock.sleep(2.0)
    assert (await timelines.post("ada", b"two")).mode == PULLED
    assert await timelines.explain("ada") == "pull: 5 followers, 4 or more are pulled (5 now)"


@on_virtual_time
async def test_a_pinned_author_stays_so_until_unpinned(
    timelines: Timelines, clock: SkewedClock
) -> None:
    await timelines.pin("ada", PULLED, reason="a launch")
    await clock.sleep(2.0)
    assert (await timelines.post("ada", b"one")).mode == PULLED
    await timelines.unpin("ada")
    await clock.sleep(2.0)
    await timelines.post("ada", b"two")
    await clock.sleep(2.0)
    assert (await timelines.post("ada", b"three")).mode == PUSHED


@on_virtual_time
async def test_posting_again_with_the_same_id_is_the_same_post(
    timelines: Timelines, clock: SkewedClock
) -> None:
    await timelines.follow("zoe", "ada")
    post = await timelines.post("ada", b"hello")
    await timelines.pin("ada", PULLED, reason="a test")
    await clock.sleep(2.0)
    again = await timelines.post("ada", b"hello", id=post.id)
    assert (again.id, again.mode, again.batch) == (post.id, PUSHED, post.batch)
    assert await bodies(timelines, "zoe") == [b"hello"]


@on_virtual_time
async def test_who_follows_late_sees_what_was_posted_before(
    timelines: Timelines, clock: SkewedClock
) -> None:
    await timelines.post("ada", b"early")
    await clock.sleep(1.0)
    assert await timelines.follow("zoe", "ada")
    assert not await timelines.follow("zoe", "ada")
    assert await bodies(timelines, "zoe") == [b"early"]
    assert await timelines.followers("ada") == 1


@on_virtual_time
async def test_unfollow_and_delete_take_effect_at_once(
    timelines: Timelines, clock: SkewedClock
) -> None:
    for author in ("ada", "bob"):
        await timelines.follow("zoe", author)
        await timelines.post(author, author.encode())
    post = await timelines.post("bob", b"a mistake")
    await clock.sleep(1.0)
    assert await timelines.delete("bob", post.id)
    assert await timelines.unfollow("zoe", "ada")
    assert await bodies(timelines, "zoe") == [b"bob"]
    await timelines.follow("zoe", "ada")
    assert await bodies(timelines, "zoe") == [b"bob", b"ada"]
    assert await timelines.following("zoe") == ["ada", "bob"]


@on_virtual_time
async def test_a_page_is_full_though_posts_in_it_were_deleted(
    timelines: Timelines, clock: SkewedClock
) -> None:
    await timelines.follow("zoe", "ada")
    posts = [await timelines.post("ada", b"%d" % number) for number in range(8)]
    await clock.sleep(1.0)
    for post in posts[4:7]:
        await timelines.delete("ada", post.id)
    page = await timelines.home("zoe", limit=3)
    assert [post.body for post in page.posts] == [b"7", b"3", b"2"]


def test_homes_that_were_lost_are_made_anew() -> None:
    async def work() -> None:
        async with world() as (hs, clock):
            timelines = hs.timelines
            await timelines.follow("zoe", "ada")
            await timelines.post("ada", b"one")
            await clock.sleep(1.0)
            assert await bodies(timelines, "zoe") == [b"one"]
            hs._queue.homes.lose_everything()  # type: ignore[union-attr]
            await timelines.post("ada", b"two")
            await clock.sleep(1.0)
            assert await bodies(timelines, "zoe") == [b"two", b"one"]

    run_on_virtual_time(work())


@on_virtual_time
async def test_wrong_input_is_refused_by_name(timelines: Timelines, clock: SkewedClock) -> None:
    assert clock.now_s() > 0
    with pytest.raises(InvalidSetting, match="somebody else"):
        await timelines.follow("ada", "ada")
    with pytest.raises(InvalidSetting, match="mode must be"):
        await timelines.pin("ada", "shout", reason="why not")
    with pytest.raises(InvalidSetting, match="user"):
        await timelines.home("")
    with pytest.raises(InvalidCursor):
        await timelines.home("ada", cursor="what?")


def test_the_mode_has_room_between_push_and_pull() -> None:
    assert wanted_mode(9_999, PUSHED, 10_000) is None
    assert wanted_mode(10_000, PUSHED, 10_000) == (
        PULLED,
        "10,000 followers, 10,000 or more are pulled",
    )
    assert wanted_mode(8_000, PULLED, 10_000) is None
    change = wanted_mode(7_999, PULLED, 10_000)
    assert change is not None
    assert change[0] == PUSHED
