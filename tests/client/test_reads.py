"""Hot reads through a connected client: pages, heat, decisions, other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heatsink import Heatsink, connect, connect_sync
from heatsink.errors import Closed, InvalidSetting
from heatsink.reads import NearRules, ReadSettings
from heatsink.testing.redis import RedisServer
from tests.servers import real
from tests.waiting import soon

LONG: dict[str, Any] = {"fresh_for": 600.0, "stale_for": 600.0}


class Source:
    def __init__(self) -> None:
        self.version = 1

    async def load(self) -> int:
        return self.version


async def test_reads_are_part_of_the_client_and_end_with_it(url: str) -> None:
    gate = asyncio.Event()
    async with connect(url) as hs:
        reads = hs.reads
        assert await reads.get("product:42", Source().load) == 1
        slow = asyncio.ensure_future(reads.get("other", gate.wait))
        await asyncio.sleep(0.01)
    with pytest.raises(Closed):
        await slow
    with pytest.raises(Closed):
        _ = hs.reads
    with pytest.raises(Closed):
        await reads.get("product:42", Source().load)


def bodies(page: Any) -> list[bytes]:
    return [entry.body for entry in page.entries]


async def test_a_page_is_kept_on_request_but_never_beyond_an_own_write(hs: Heatsink) -> None:
    receipt = await hs.log.append("conv", b"1")
    first = await hs.log.page("conv", fresh_for=600)
    first.entries.clear()
    again = await hs.log.page("conv", fresh_for=600)
    assert bodies(again) == [b"1"], "each caller has a list of its own"
    assert hs.parts.reading._page_reads.stats().loads == 1
    await hs.log.append("conv", b"2")
    assert bodies(await hs.log.page("conv", fresh_for=600)) == [b"2", b"1"]
    assert bodies(await hs.log.page("conv", limit=1, fresh_for=600)) == [b"2"]
    await hs.log.delete("conv", receipt.id)
    assert bodies(await hs.log.page("conv", fresh_for=600)) == [b"2"]
    await hs.log.erase("conv")
    assert bodies(await hs.log.page("conv", fresh_for=600)) == []


async def test_readers_of_a_busy_key_never_miss_an_own_append(hs: Heatsink) -> None:
    async def write_and_read(number: int) -> None:
        for turn in range(10):
            body = f"{number} {turn}".encode()
            await hs.log.append("conv", body)
            page = await hs.log.page("conv", limit=200, fresh_for=600, stale_for=600)
            assert body in bodies(page)

    await asyncio.gather(*map(write_and_read, range(8)))


async def test_pages_that_a_write_outdated_are_not_kept(hs: Heatsink) -> None:
    for number in range(50):
        await hs.log.append("conv", b"%d" % number)
        assert bodies(await hs.log.page("conv", limit=1, fresh_for=600)) == [b"%d" % number]
    assert hs.page_stats().loads == 50
    assert hs.page_stats().entries == 1


async def test_what_is_remembered_of_pages_is_bounded_as_their_cache_is(url: str) -> None:
    async with connect(url, reads=ReadSettings(capacity=10)) as hs:
        for number in range(30):
            await hs.log.page(f"conv-{number}", fresh_for=600)
        assert hs.page_stats().entries == len(hs.parts.reading.pages._asked) == 10
        await hs.log.append("conv-0", b"1")
        assert bodies(await hs.log.page("conv-0", fresh_for=600)) == [b"1"]
        assert hs.page_stats().loads == 31


async def test_what_another_process_appends_is_seen_when_the_page_is_no_longer_fresh(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with connect(url) as one, connect(url) as two:
        await one.log.append("conv", b"1")
        await two.log.page("conv", fresh_for=0.2)
        await one.log.append("conv", b"2")
        await asyncio.sleep(0.25)
        assert bodies(await two.log.page("conv", fresh_for=0.2)) == [b"2", b"1"]


async def test_wrong_times_of_a_page_are_refused_by_name(hs: Heatsink) -> None:
    for wrong, name in (
        ({"stale_for": 1.0}, "stale_for"),
        ({"fresh_for": 2.0, "stale_for": 1.0}, "stale_for"),
        ({"fresh_for": -1.0}, "fresh_for"),
    ):
        with pytest.raises(InvalidSetting, match=name):
            await hs.log.page("conv", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="limit"):
        await hs.log.page("conv", limit=0, fresh_for=1.0)


async def test_explain_tells_a_read_hot_key_from_a_write_hot_one() -> None:
    rules = NearRules(hot_reads_s=200)
    async with connect("memory://", window_s=0.2, near=rules) as hs:
        assert (await hs.explain("product:42")).hot_by == ""
        source = Source()
        async with asyncio.timeout(20):
            while not ((explained := await hs.explain("product:42")).near and explained.hot_by):
                for _ in range(200):
                    await hs.reads.get("product:42", source.load)
                await asyncio.sleep(0.02)
        assert explained.hot_by == "read-hot"
        assert explained.buckets == 1, "salting a read-hot key would make it worse"
        assert "near    app servers keep reads for 100 ms, " in str(explained)
        assert "reads/s" in str(explained)
        assert "product:42: 1 bucket now (read-hot)" in str(explained)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with real(RedisServer) as server:
        yield server


async def test_processes_forget_together_and_hear_what_the_leader_decides(
    redis: RedisServer, tmp_path: Path
) -> None:
    url, rules = f"sqlite:///{tmp_path}/shop.db", NearRules(hot_reads_s=200)
    leader = connect(url, news=redis.url, window_s=0.2, near=rules)
    follower = connect(url, news=redis.url, window_s=0.2, coordinate=False)
    async with leader as one, follower as two:
        await soon(lambda: one.reads.is_linked and two.reads.is_linked)
        source = Source()
        assert await two.reads.get("product:42", source.load, **LONG) == 1
        entry, source.version = two.reads._find("product:42"), 2
        one.reads.forget("product:42")
        await soon(lambda: two.reads._find("product:42") is not entry)
        assert await two.reads.get("product:42", source.load, **LONG) == 2
        near_s = two.parts.reading.near_s
        async with asyncio.timeout(20):
            while not near_s("product:42"):
                for _ in range(200):
                    await two.reads.get("product:42", source.load, **LONG)
                await asyncio.sleep(0.02)


def test_without_asyncio_loads_are_plain_functions(redis: RedisServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    one, two = connect_sync(url, news=redis.url), connect_sync(url, news=redis.url)
    with one, two:
        while not (one.reads.is_linked and two.reads.is_linked):
            pass
        version = 1
        assert two.reads.get("k", lambda: version, **LONG) == 1
        version = 2
        assert two.reads.get("k", lambda: version, **LONG) == 1
        one.reads.forget("k")
        while two.reads.get("k", lambda: version, **LONG) == 1:
            pass
    with pytest.raises(Closed):
        _ = one.reads
