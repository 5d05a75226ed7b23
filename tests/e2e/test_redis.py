"""A real Redis that is killed, emptied and frozen under load: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

import heatsink
from heatsink import BucketRules, Heatsink
from heatsink.primitives.ids import Uuid7
from heatsink.registry.decisions import Reading
from heatsink.spread.fsck import check
from heatsink.testing.redis import RedisServer
from tests.servers import real
from tests.spread.test_log import everything
from tests.waiting import soon

RULES = BucketRules(bucket_units_s=10, cool_down_s=60.0)


class Writers:
    """Append to one key through two processes' worth of clients and note what was promised."""

    def __init__(self, clients: list[Heatsink]) -> None:
        self.acknowledged: dict[bytes, UUID] = {}
        self._clients = clients

    async def write(self, number: int) -> None:
        client = self._clients[number % len(self._clients)]
        for n in range(10**9):
            receipt = await client.log.append("conv", b"%d %d" % (number, n))
            self.acknowledged[b"%d %d" % (number, n)] = receipt.id
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self.write(number)) for number in range(8)]
        try:
            yield
            assert not [task for task in tasks if task.done()], "no append may fail"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def widened(hs: Heatsink) -> bool:
    return (await hs.explain("conv")).buckets >= 8


async def kill_and_empty(server: RedisServer) -> None:
    server.kill()
    await asyncio.sleep(1.5)
    await asyncio.to_thread(server.start)


async def freeze(server: RedisServer) -> None:
    with server.stopped():
        await asyncio.sleep(2.0)


@pytest.mark.sleeps("an outage must outlast the lease")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("fail", [kill_and_empty, freeze], ids=["killed and emptied", "frozen"])
async def test_a_failing_redis_loses_and_refuses_nothing(
    tmp_path: Path, fail: Callable[[RedisServer], Awaitable[None]]
) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    with real(RedisServer) as server:
        news = server.url
        async with (
            heatsink.connect(url, news=news, rules=RULES, lease_s=1.0) as one,
            heatsink.connect(url, news=news, rules=RULES, lease_s=1.0) as other,
        ):
            writers = Writers([one, other])
            async with writers.running():
                await soon(lambda: widened(one))
                epochs = len(one.parts.registry.view.layout("conv").epochs)
                for _ in range(2):
                    before = len(writers.acknowledged)
                    await fail(server)
                    assert len(writers.acknowledged) > before
                await one.pin("conv", buckets=3, reason="news goes on")
                await soon(lambda: has_buckets(other, 3))
            assert epochs > 1
            await verify(one, writers)


async def has_buckets(hs: Heatsink, buckets: int) -> bool:
    return hs.parts.registry.view.layout("conv").buckets == buckets


async def verify(hs: Heatsink, writers: Writers) -> None:
    entries = await everything(hs, "conv", limit=1_000)
    stored = {entry.body: entry.id for entry in entries}
    assert len(writers.acknowledged) > 500
    assert len(stored) == len(entries)
    assert writers.acknowledged.items() <= stored.items()
    stores = hs.parts.stores
    assert (await check(stores.log, stores.counters, stores.registry, Uuid7())).clean


@pytest.mark.timeout(120)
async def test_news_reaches_processes_that_do_not_coordinate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    with real(RedisServer) as server:
        async with (
            heatsink.connect(url, news=server.url) as leader,
            heatsink.connect(url, news=server.url, coordinate=False) as follower,
        ):
            await soon(lambda: hears(follower))
            monkeypatch.setattr(follower.parts.registry, "renew", no_store)
            await leader.pin("k", buckets=4, reason="launch")
            await soon(lambda: arrived(follower))


async def no_store() -> Reading:
    raise AssertionError("the store need not be asked")


async def hears(hs: Heatsink) -> bool:
    assert hs.parts.registry._listener is not None
    return hs.parts.registry._listener._closed_ms > 0


async def arrived(hs: Heatsink) -> bool:
    return hs.parts.registry.view.layout("k").buckets == 4


async def test_without_redis_at_the_start_everything_works_but_spreading(tmp_path: Path) -> None:
    news = "redis://127.0.0.1:1"
    async with heatsink.connect(f"sqlite:///{tmp_path}/x.db", news=news) as hs:
        receipt = await hs.log.append("k", b"hey")
        assert (await hs.log.get("k", receipt.id)) is not None
        assert len((await hs.log.page("k")).entries) == 1
