"""Homes in memory and in Redis behave alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from uuid import uuid4

import pytest

from heatsink.primitives.clock import SystemClock
from heatsink.stores.memory.messages import MemoryHomes
from heatsink.stores.redis.homes import RedisHomes
from heatsink.testing.redis import RedisCluster, RedisServer
from heatsink.timelines.store import HOME_MAX, HomeEntry, HomeStore, slot_of
from tests.servers import real


@pytest.fixture(params=["memory", "server", "cluster"])
async def homes(request: pytest.FixtureRequest) -> AsyncIterator[HomeStore]:
    if request.param == "memory":
        yield MemoryHomes(SystemClock())
        return
    with real(RedisServer if request.param == "server" else RedisCluster) as server:
        opened = RedisHomes(server.url, f"test-{uuid4().hex}", SystemClock(), Random(1))  # type: ignore[attr-defined]
        yield opened
        await opened.close()


def entry(number: int, author: str = "ada") -> HomeEntry:
    return HomeEntry(number.to_bytes(16, "big"), author)


async def test_a_home_is_whole_only_after_it_was_built(homes: HomeStore) -> None:
    assert await homes.page("zoe", None, 10) is None
    await homes.push(["zoe"], entry(1))
    assert await homes.page("zoe", None, 10) is None
    await homes.fill(["zoe"], [], built=True)
    assert await homes.page("zoe", None, 10) == [entry(1)]


async def test_pages_go_on_below_the_last_and_show_a_post_once(homes: HomeStore) -> None:
    await homes.fill(["zoe"], [entry(n) for n in range(5)], built=True)
    await homes.push(["zoe"], entry(3))
    first = await homes.page("zoe", None, 3)
    assert first == [entry(4), entry(3), entry(2)]
    assert await homes.page("zoe", first[-1], 3) == [entry(1), entry(0)]


async def test_entries_of_one_id_are_ordered_by_author_and_paged_one_by_one(
    homes: HomeStore,
) -> None:
    """An author may begin another's name, and have control characters in theirs."""
    authors = ["ada", "ad", "ad\x01", "ad\x10z", "ad\x7f", "größe", "Zed", "\uffee", "😀"]
    sent = [entry(n, author) for n in (1, 2) for author in authors]
    await homes.fill(["zoe"], sent[::2], built=True)
    for one in sent[1::2]:
        await homes.push(["zoe"], one)
    wanted = sorted(sent, reverse=True)
    assert await homes.page("zoe", None, 50) == wanted
    found: list[HomeEntry] = []
    while page := await homes.page("zoe", found[-1] if found else None, 1):
        found += page
    assert found == wanted


async def test_a_page_goes_on_below_an_entry_that_is_gone(homes: HomeStore) -> None:
    await homes.fill(["zoe"], [entry(1, "bob"), entry(2, "bob"), entry(2, "dan")], built=True)
    assert await homes.page("zoe", entry(2, "cyd"), 5) == [entry(2, "bob"), entry(1, "bob")]
    assert await homes.page("zoe", entry(2), 5) == [entry(1, "bob")]


async def test_a_push_reaches_every_user_of_the_group_and_nobody_else(homes: HomeStore) -> None:
    group = [name for name in (f"user-{n}" for n in range(2_000)) if slot_of(name) == 7]
    await homes.fill([*group, "other"], [], built=True)
    await homes.push(group, entry(9, "größe"))
    assert [await homes.page(user, None, 5) for user in group] == [[entry(9, "größe")]] * len(group)
    assert await homes.page("other", None, 5) == []


async def test_a_home_keeps_the_newest(homes: HomeStore) -> None:
    await homes.fill(["zoe"], [entry(n) for n in range(500)], built=True)
    await homes.fill(["zoe"], [entry(n) for n in range(500, HOME_MAX + 50)], built=False)
    page = await homes.page("zoe", None, HOME_MAX + 50)
    assert page is not None
    assert len(page) == HOME_MAX
    assert page[0] == entry(HOME_MAX + 49)
    assert page[-1] == entry(50)


async def test_a_dropped_author_leaves_and_the_home_is_whole_no_longer(homes: HomeStore) -> None:
    await homes.drop("zoe", "ada")
    others = [entry(n, "größe") for n in (2, 4)]
    await homes.fill(["zoe"], [entry(1), entry(3, "ad"), entry(3), *others], built=True)
    await homes.drop("zoe", "ada")
    assert await homes.page("zoe", None, 10) is None
    await homes.fill(["zoe"], [], built=True)
    assert await homes.page("zoe", None, 10) == [entry(4, "größe"), entry(3, "ad"), others[0]]


async def test_only_a_look_counts_as_one(homes: HomeStore) -> None:
    assert await homes.looked_at_s(["zoe", "yan"]) == [None, None]
    for user in ("zoe", "yan"):
        await homes.fill([user], [], built=True)
    await asyncio.sleep(0.05)
    await homes.push(["zoe", "yan"], entry(1))
    await homes.page("zoe", None, 1)
    looked, pushed = await homes.looked_at_s(["zoe", "yan"])
    assert looked is not None
    assert pushed is not None
    assert pushed - looked > 0.04
