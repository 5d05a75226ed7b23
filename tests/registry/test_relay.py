"""Following by news: what is believed, what is not, and how seldom the store is asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
import pytest

from heatsink.errors import Unavailable
from heatsink.primitives.hooks import Event, Hook, Hooks
from heatsink.registry.decisions import BUCKETS, Reading, for_key
from heatsink.registry.news import Seal, WatchedNews
from heatsink.registry.registry import Registry
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.stores.memory.messages import MemoryNews
from heatsink.testing import ManualClock

from .test_registry import FOUNDING


class CountedRegistry(MemoryRegistry):
    """Counts how often META is read."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.reads = 0

    async def meta(self) -> Reading:
        self.reads += 1
        return await super().meta()


class Relay(MemoryNews):
    """Can be down."""

    down = False

    async def publish(self, log: str, entries: Mapping[int, bytes], pair: bytes) -> None:
        self._check()
        await super().publish(log, entries, pair)

    async def pair(self, servers: int = 1, /) -> bytes | None:
        self._check()
        return await super().pair(servers)

    def _check(self) -> None:
        if self.down:
            raise Unavailable("Redis is down")


@pytest.fixture
def store(clock: ManualClock) -> CountedRegistry:
    return CountedRegistry(clock)


@pytest.fixture
def news() -> Relay:
    return Relay()


@pytest.fixture
async def leader(store: CountedRegistry, news: Relay, clock: ManualClock) -> Registry:
    return await opened(store, news, clock)


@pytest.fixture
async def follower(store: CountedRegistry, news: Relay, clock: ManualClock) -> Registry:
    return await opened(store, news, clock)


async def opened(store: MemoryRegistry, news: Relay, clock: ManualClock) -> Registry:
    registry = Registry(store, clock, news, Random(1))
    await registry.open(FOUNDING)
    return registry


async def decide(leader: Registry, buckets: int) -> None:
    """The leader publishes a layout, and moves the closed time beyond its start."""
    await leader.publish([for_key("k", BUCKETS, buckets, "hot")], term=0)
    await leader.keep_ahead(leads=True)


async def test_a_layout_arrives_without_a_look_at_the_store(
    leader: Registry, follower: Registry, store: CountedRegistry, clock: ManualClock
) -> None:
    await clock.advance(0.2)
    await decide(leader, 5)
    await leader.tell()
    reads = store.reads
    await follower.keep_up(urgent=False)
    assert store.reads == reads
    assert follower.view.layout("k").buckets == 5
    assert follower.view.horizon_ms == leader.view.horizon_ms


async def test_a_gap_in_the_news_is_filled_from_the_store(
    leader: Registry, follower: Registry, news: Relay, clock: ManualClock
) -> None:
    await clock.advance(0.2)
    await decide(leader, 5)
    await decide(leader, 7)
    await leader.tell()
    del news.log["i"][1]
    await follower.keep_up(urgent=False)
    assert follower.view.version == 2
    assert follower.view.layouts == leader.view.layouts


async def test_a_gap_that_cannot_be_filled_leaves_the_horizon_alone(
    leader: Registry,
    follower: Registry,
    store: CountedRegistry,
    news: Relay,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await clock.advance(0.2)
    await decide(leader, 5)
    await leader.tell()
    news.log.clear()
    horizon_ms = follower.view.horizon_ms

    async def unavailable(*_: Any) -> Any:
        raise Unavailable("not now")

    for name in ("log", "snapshot", "meta"):
        monkeypatch.setattr(store, name, unavailable)
    with pytest.raises(Unavailable):
        await follower.keep_up(urgent=True)
    assert (follower.view.version, follower.view.horizon_ms) == (0, horizon_ms)


async def test_a_write_past_the_horizon_asks_the_store_when_redis_is_gone(
    follower: Registry, news: Relay, clock: ManualClock
) -> None:
    news.down = True
    await clock.advance(0.6)
    await follower.reach(int(clock.now_s() * 1000), deadline_s=clock.monotonic_s() + 1)
    assert follower.view.horizon_ms > clock.now_s() * 1000


async def test_a_new_leader_repeats_what_its_predecessor_may_not_have_told(
    leader: Registry, follower: Registry, news: Relay, clock: ManualClock
) -> None:
    await clock.advance(0.2)
    await decide(leader, 5)
    await leader.renew()
    heir = await opened(leader._store, news, clock)  # type: ignore[arg-type]
    await heir.tell()
    seal = Seal(heir.meta)
    assert await news.pair() == seal.pair(heir.meta.closed_ms, 1)
    (entry,) = await leader._store.log(0, 1)
    assert await news.entries("i", 0, 1) == [seal.entry(entry)]
    assert follower.view.version == 0


async def test_telling_a_relay_that_is_down_costs_nothing(leader: Registry, news: Relay) -> None:
    news.down = True
    await leader.tell()
    news.down = False
    await leader.tell()
    assert news.newest is None, "it is left alone for a moment"


async def reads_of_a_fleet(
    store: CountedRegistry, news: Relay, clock: ManualClock, sample: int, seconds: float
) -> int:
    """META reads of some followers of a large fleet, each of which keeps writing."""
    followers = [await opened(store, news, clock) for _ in range(sample)]
    running = [asyncio.ensure_future(follower.follow()) for follower in followers]
    reads = store.reads
    for _ in range(int(seconds / 0.25)):
        await clock.advance(0.25)
        for follower in followers:
            if follower.view.horizon_ms <= clock.now_s() * 1000:
                await follower.renew_shared()
    for task in running:
        task.cancel()
    return store.reads - reads


async def test_a_large_fleet_without_news_asks_the_store_no_more_than_300_times_a_second(
    store: CountedRegistry, news: Relay, clock: ManualClock
) -> None:
    servers, sample = 6_000, 6
    await store.found(msgspec.structs.replace(FOUNDING, servers=servers))
    news.down = True
    await reads_of_a_fleet(store, news, clock, sample, seconds=60)
    reads = await reads_of_a_fleet(store, news, clock, sample, seconds=240)
    per_second = reads / 240 * servers / sample
    assert 20 < per_second <= 300


async def test_with_news_a_fleet_hardly_asks_the_store(
    store: CountedRegistry, news: Relay, leader: Registry, clock: ManualClock
) -> None:
    async def lead() -> None:
        while True:
            await leader.keep_ahead(leads=True)
            await leader.tell()
            store.reads -= 1
            await clock.sleep(0.1)

    leading = asyncio.ensure_future(lead())
    reads = await reads_of_a_fleet(store, news, clock, sample=5, seconds=60)
    leading.cancel()
    assert reads <= 5 * 5


async def test_the_closed_time_stays_close_while_news_comes_and_grows_with_silence(
    store: CountedRegistry, news: Relay, clock: ManualClock
) -> None:
    await store.found(msgspec.structs.replace(FOUNDING, servers=6_000))
    follower = await opened(store, news, clock)

    def ahead_s() -> float:
        return round(follower.view.horizon_ms / 1000 - clock.now_s(), 1)

    assert ahead_s() == 0.8, "6,000 servers get news every 0.24 s, and may miss one of them"
    news.down = True
    await clock.advance(0.6)
    await follower.renew_shared()
    assert ahead_s() == 0.8, "a publication or two may be late: the leader shall have news to tell"
    await clock.advance(1.4)
    await follower.renew_shared()
    assert ahead_s() == 6.0, "so that it need not be read again before the next leader"
    await clock.advance(200.0)
    await follower.renew_shared()
    assert ahead_s() == 60.0
    assert follower.behind_ms_max > 60_000, "a clock that far behind the horizon is right"


class Noted(Hook):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


async def test_a_relay_that_stops_answering_is_reported_once_and_so_is_its_return(
    news: Relay, clock: ManualClock
) -> None:
    noted = Noted()
    watched = WatchedNews(news, clock, Hooks([noted]))
    await watched.pair()
    news.down = True
    for _ in range(30):
        with pytest.raises(Unavailable):
            await watched.pair()
        await clock.advance(0.1)
    assert [event.name for event in noted.events] == ["news.lost"]
    assert noted.events[0].level == logging.WARNING
    assert "does not answer (Redis is down). Writes and reads go on" in noted.events[0].message
    assert watched.lost == "no answer for 3 s (Redis is down)"
    news.down = False
    await watched.pair()
    await watched.pair()
    assert [event.name for event in noted.events] == ["news.lost", "news.back"]
    assert watched.lost is None


async def test_a_single_failed_call_does_not_make_a_relay_lost(
    news: Relay, clock: ManualClock
) -> None:
    noted = Noted()
    watched = WatchedNews(news, clock, Hooks([noted]))
    for _ in range(10):
        news.down = True
        with pytest.raises(Unavailable):
            await watched.pair()
        await clock.advance(0.9)
        news.down = False
        await watched.pair()
    assert noted.events == []
