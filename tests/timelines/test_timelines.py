"""Timelines on virtual time: every post in every home exactly once, whatever its author's mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest

import heatsink
from heatsink import Heatsink
from heatsink.bulk import Actions
from heatsink.errors import InvalidCursor, InvalidSetting
from heatsink.reads.reads import Reads
from heatsink.testing import SkewedClock, run_on_virtual_time
from heatsink.timelines import Timelines, TimelineSettings
from heatsink.timelines.policy import PULLED, PUSHED
from heatsink.timelines.store import HOME_MAX, posts_of
from heatsink.timelines.timelines import FOLLOW_TOGETHER, LIMIT_MAX

from .losses import lose_everything


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


AUTHORS = ["ann", "Zed", "bob", "bo", "bo\x01b", "größe"]


async def pairs(timelines: Timelines, user: str, limit: int) -> list[tuple[object, str]]:
    found, cursor = [], None
    while True:
        page = await timelines.home(user, limit=limit, cursor=cursor)
        found += [(post.id, post.author) for post in page.posts]
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("pulled", [[], AUTHORS, AUTHORS[:1], AUTHORS[1:3], AUTHORS[2:]])
def test_posts_that_share_an_id_are_all_shown_in_one_order_at_any_limit(pulled: list[str]) -> None:
    async def work() -> None:
        async with world() as (hs, clock):
            timelines = hs.timelines
            for author in pulled:
                await timelines.pin(author, PULLED, reason="a test")
            await clock.sleep(2.0)
            sent = []
            for author in AUTHORS:
                await timelines.follow("zoe", author)
            for _ in range(3):
                id = (await timelines.post(AUTHORS[0], b"first")).id
                sent += [(id, author) for author in AUTHORS]
                for author in AUTHORS[1:]:
                    post = await timelines.post(author, b"same id", id=id)
                    assert post.mode == (PULLED if author in pulled else PUSHED)
            await clock.sleep(2.0)
            wanted = sorted(sent, reverse=True)  # by id, then by author
            for limit in (1, 2, 3, 4, 5, 7, 50):
                assert await pairs(timelines, "zoe", limit) == wanted

    run_on_virtual_time(work())


def test_posts_that_share_an_id_are_shown_beyond_what_is_kept_near() -> None:
    """Old posts of a celebrity come from the log, which has bounds by id alone."""

    async def work() -> None:
        async with world() as (hs, clock):
            timelines, authors = hs.timelines, ["ann", "bob", "cyd"]
            for author in authors:
                await timelines.follow("zoe", author)
                await timelines.pin(author, PULLED, reason="a test")
            await clock.sleep(2.0)
            sent = []
            for number in range(LIMIT_MAX + 5):
                id = (await timelines.post("bob", b"%d" % number)).id
                for author in ("ann", "cyd"):
                    await timelines.post(author, b"%d" % number, id=id)
                sent += [(id, author) for author in authors]
            await clock.sleep(10.0)
            wanted = sorted(sent, reverse=True)
            assert await pairs(timelines, "zoe", 200) == wanted
            assert await pairs(timelines, "zoe", 7) == wanted

    run_on_virtual_time(work())


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
    reason = "followers: 5, 4 or more are pulled"
    now = "0 posts/s × 5 followers = 0 writes/s"
    assert await timelines.explain("ada") == f"pull: {reason} (now {now})"


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
async def test_an_import_brings_every_follow_and_the_posts_along(
    timelines: Timelines, clock: SkewedClock
) -> None:
    posts = [(await timelines.post(author, author.encode())).body for author in ("ada", "bob")]
    await timelines.follow("fan-3", "bob")
    fans = [f"fan-{number}" for number in range(FOLLOW_TOGETHER)]

    async def graph() -> AsyncIterator[tuple[str, str]]:
        for fan in fans:
            for author in ("ada", "bob"):
                yield fan, author

    assert await timelines.follow_many(graph()) == 2 * len(fans) - 1
    assert await timelines.follow_many([(fan, "ada") for fan in fans]) == 0
    assert await timelines.followers("ada") == await timelines.followers("bob") == len(fans)
    await clock.sleep(1.0)
    for fan in (fans[0], fans[3], fans[-1]):
        assert await bodies(timelines, fan) == posts[::-1]


@on_virtual_time
async def test_an_import_refuses_what_is_no_pair(timelines: Timelines, clock: SkewedClock) -> None:
    assert clock.now_s() > 0
    for pairs in ("text", 7, ["ab"], [("zoe",)], [("zoe", "zoe")], [("zoe", 5)]):
        with pytest.raises(InvalidSetting, match="pairs"):
            await timelines.follow_many(pairs)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"pairs\[1\]: author must not be the user"):
        await timelines.follow_many([("zoe", "ada"), ("zoe", "zoe")])
    assert await timelines.following("zoe") == []


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


@on_virtual_time
async def test_whom_a_noisy_author_displaced_is_back_after_the_unfollow(
    timelines: Timelines, clock: SkewedClock
) -> None:
    await timelines.follow("zoe", "ada")
    await timelines.follow("zoe", "loud")
    early = [b"%d" % number for number in range(150)]
    for body in early:
        await timelines.post("ada", body)
    for _ in range(HOME_MAX):
        await timelines.post("loud", b"!")
    await clock.sleep(20.0)
    assert await bodies(timelines, "zoe", 200) == [b"!"] * HOME_MAX
    await timelines.unfollow("zoe", "loud")
    assert await bodies(timelines, "zoe") == early[::-1]


def test_a_post_that_another_process_deleted_is_shown_for_a_moment_only() -> None:
    async def work() -> None:
        async with world() as (hs, clock):
            timelines = hs.timelines
            await timelines.follow("zoe", "ada")
            post = await timelines.post("ada", b"a mistake")
            await clock.sleep(1.0)
            assert await bodies(timelines, "zoe") == [b"a mistake"]
            await hs.log.delete(posts_of("ada"), post.id)  # as seen from here
            await clock.sleep(TimelineSettings().fresh_for)
            await bodies(timelines, "zoe")
            await clock.sleep(0.1)
            assert await bodies(timelines, "zoe") == []

    run_on_virtual_time(work())


def test_homes_that_were_lost_are_made_anew() -> None:
    async def work() -> None:
        async with world() as (hs, clock):
            timelines = hs.timelines
            await timelines.follow("zoe", "ada")
            await timelines.post("ada", b"one")
            await clock.sleep(1.0)
            assert await bodies(timelines, "zoe") == [b"one"]
            lose_everything(hs.parts.queue.queue.homes)
            await timelines.post("ada", b"two")
            await clock.sleep(1.0)
            assert await bodies(timelines, "zoe") == [b"two", b"one"]

    run_on_virtual_time(work())


def test_a_home_is_made_anew_with_whom_another_process_has_just_begun_to_follow() -> None:
    async def work() -> None:
        async with world() as (hs, clock):
            post = await hs.timelines.post("ada", b"hello")
            await hs.bulk.wait(post.batch)
            assert await bodies(hs.timelines, "zoe") == []
            await another_process(hs, clock).follow("zoe", "ada")
            lose_everything(hs.parts.queue.queue.homes)
            await bodies(hs.timelines, "zoe")
            await clock.sleep(6.0)
            assert await bodies(hs.timelines, "zoe") == [b"hello"]

    run_on_virtual_time(work())


def another_process(hs: Heatsink, clock: SkewedClock) -> Timelines:
    """The same stores, but what it keeps near is its own."""
    return replace(hs.parts.queue, cache=Reads(clock=clock), rng=Random(2)).timelines


@on_virtual_time
async def test_wrong_input_is_refused_by_name(timelines: Timelines, clock: SkewedClock) -> None:
    assert clock.now_s() > 0
    with pytest.raises(InvalidSetting, match="must not be the user"):
        await timelines.follow("ada", "ada")
    with pytest.raises(InvalidSetting, match="mode must be"):
        await timelines.pin("ada", "shout", reason="why not")
    with pytest.raises(InvalidSetting, match="user"):
        await timelines.home("")


ID = "0190000000007000800000000000beef"
ADA = b"ada".hex()
CURSORS = [
    *("what?", "", "00", "0" * 64, "00 " * 16, 5),
    *(ID, ID[2:] + ADA, "00" * 16 + ADA, ID + "ff", ID + "00", ID + "\n" + ADA, (ID + ADA).upper()),
]


@pytest.mark.parametrize("cursor", CURSORS)
def test_a_cursor_of_another_kind_is_refused(cursor: str) -> None:
    async def work() -> None:
        async with world() as (hs, _):
            with pytest.raises(InvalidCursor):
                await hs.timelines.home("ada", cursor=cursor)

    run_on_virtual_time(work())


@pytest.mark.parametrize(
    "name", ["a\0b", "😀" * 256, "#" * 20 + "😀" * 220, "x" * 257, "\ud800", 5]
)
def test_a_name_that_does_not_fit_is_refused_by_its_field(name: str) -> None:
    async def work() -> None:
        async with world() as (hs, _):
            timelines = hs.timelines
            with pytest.raises(InvalidSetting, match="author"):
                await timelines.follow("zoe", name)
            with pytest.raises(InvalidSetting, match="user"):
                await timelines.follow(name, "zoe")
            with pytest.raises(InvalidSetting, match="author"):
                await timelines.post(name, b"hello")

    run_on_virtual_time(work())


@pytest.mark.parametrize("name", ["x" * 256, "%" * 256, "😀" * 225, " ", "a/b", "~x"])
def test_a_long_name_that_fits_is_pushed_and_pulled(name: str) -> None:
    async def work() -> None:
        async with world() as (hs, clock):
            timelines = hs.timelines
            await timelines.follow("zoe", name)
            await timelines.post(name, b"pushed")
            await timelines.pin(name, PULLED, reason="a test")
            await clock.sleep(3.0)
            await timelines.post(name, b"pulled")
            assert await bodies(timelines, "zoe") == [b"pulled", b"pushed"]

    run_on_virtual_time(work())
