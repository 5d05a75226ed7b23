"""News that the leader pushes: followers ask Redis for nothing while it comes."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from heatsink.errors import Unavailable
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Decision
from heatsink.registry.news import PUSHED_S, Polls, tells_s
from heatsink.stores.memory import memory_stores
from heatsink.stores.redis import with_redis
from heatsink.stores.redis.address import RedisKeys, parse
from heatsink.stores.redis.connection import Connection
from heatsink.stores.redis.news import (
    PAIR_POLLS_S,
    PATIENCE,
    REPEAT_S,
    SOFT_POLLS_S,
    RedisNews,
    RedisSoft,
    RedisWire,
)
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisServer
from tests.servers import real

KEYS = RedisKeys()
PAIR, NOTICE = b"5|2|i|mac", b"mac and\nnotice"


class Noted:
    """A connection that notes all commands, and hands what is published to a follower."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []
        self.follower: RedisNews | None = None
        self.is_down = False

    async def run(self, *words: Any) -> Any:
        if self.is_down:
            raise Unavailable("Redis is down")
        self.commands.append(words)
        if words[0] == "PUBLISH" and self.follower is not None:
            self.follower.hear(words[2])
        return [] if words[0].startswith("X") else None


def pushed(clock: ManualClock) -> tuple[Any, RedisNews, Any, RedisNews]:
    theirs, ours = Noted(), Noted()
    any_theirs: Any = theirs
    any_ours: Any = ours
    leader, follower = RedisNews(any_theirs, KEYS, clock), RedisNews(any_ours, KEYS, clock)
    theirs.follower = follower
    return theirs, leader, ours, follower


async def test_a_follower_asks_for_nothing_while_news_is_pushed(clock: ManualClock) -> None:
    _, leader, ours, follower = pushed(clock)
    await leader.publish("i", {1: b"one", 2: b"two"}, PAIR + b"\n" + NOTICE)
    assert await follower.pair() == PAIR + b"\n" + NOTICE
    assert await follower.entries("i", 0, 2) == [b"one", b"two"]
    assert ours.commands == []
    await follower.entries("other", 0, 2)
    assert [words[0] for words in ours.commands] == ["XRANGE"]


async def test_a_notice_is_pushed_when_it_is_new_and_now_and_then(clock: ManualClock) -> None:
    theirs, leader, _, follower = pushed(clock)
    for number in range(3):
        await leader.publish("i", {}, b"%d|2|i|mac\n%b" % (number, NOTICE))
        assert await follower.pair() == b"%d|2|i|mac\n%b" % (number, NOTICE)
    sizes = [len(words[2]) for words in theirs.commands if words[0] == "PUBLISH"]
    assert sizes[0] > sizes[1] == sizes[2]
    await clock.advance(REPEAT_S)
    await leader.publish("i", {}, PAIR + b"\n" + NOTICE)
    assert len(theirs.commands[-1][2]) == sizes[0]


async def test_without_pushes_a_follower_polls_and_later_more_slowly(clock: ManualClock) -> None:
    _, leader, ours, follower = pushed(clock)
    await leader.publish("i", {}, PAIR)
    await clock.advance(PUSHED_S)
    for _ in range(PATIENCE + 100):
        await follower.pair()
        await clock.advance(0.1)
    assert PATIENCE < len(ours.commands) < PATIENCE + 40
    follower.hear(b"junk")


async def test_a_large_fleet_without_a_leader_polls_redis_seldom_and_evenly(
    clock: ManualClock,
) -> None:
    """Of 10,000 processes, 500 are looked at here: they may poll a twentieth of the whole."""
    servers, share, lasts_s, rng = 10_000, 20, 40, Random(1)
    ours = Noted()
    anything: Any = ours
    fleet = [RedisNews(anything, KEYS, clock, rng=rng) for _ in range(servers // share)]
    for follower in fleet:
        follower.hear(msgspec.msgpack.encode([PAIR]))
    polls = []
    for _ in range(lasts_s):
        before = len(ours.commands)
        for _ in range(5):
            await clock.advance(0.2)
            for follower in fleet:
                await follower.pair(servers)
        polls.append(len(ours.commands) - before)
    assert polls[0] == 0  # a publication may still come
    assert 0.7 < sum(polls[2:]) / (lasts_s - 2) / (PAIR_POLLS_S / share) < 1.1
    assert max(polls) < 1.7 * PAIR_POLLS_S / share


async def test_a_fleet_with_rare_publications_relies_on_them(clock: ManualClock) -> None:
    servers = 60_000
    _, leader, ours, follower = pushed(clock)
    await follower.pair(servers)
    ours.commands.clear()
    for _ in range(5):
        await leader.publish("i", {}, PAIR)
        await clock.advance(tells_s(servers))
        assert tells_s(servers) > PUSHED_S
        assert follower.is_pushed
        assert await follower.pair(servers) == PAIR
    assert ours.commands == []


async def test_between_two_polls_a_failing_redis_does_not_seem_to_answer(
    clock: ManualClock,
) -> None:
    _, _, ours, follower = pushed(clock)
    ours.is_down = True
    for _ in range(PATIENCE + 20):
        with pytest.raises(Unavailable):
            await follower.pair()
        await clock.advance(0.1)
    ours.is_down = False
    await clock.advance(1.0)
    assert await follower.pair() is None


async def test_a_large_fleet_without_a_leader_seldom_reads_soft_decisions(
    clock: ManualClock,
) -> None:
    servers, share, lasts_s, rng = 10_000, 20, 60, Random(1)
    ours = Noted()
    anything: Any = ours
    news = RedisNews(anything, KEYS, clock, rng=rng)
    news.servers = servers
    polls = [Polls(clock, rng, SOFT_POLLS_S) for _ in range(servers // share)]
    fleet = [RedisSoft(anything, KEYS, news, each) for each in polls]
    for reader in fleet:
        await reader.read()
    assert len(ours.commands) == 2 * len(fleet)  # at the start, each must know what was decided
    for _ in range(lasts_s):
        await clock.advance(1.0)
        for reader in fleet:
            await reader.read()
    reads_s = (len(ours.commands) / 2 - len(fleet)) / lasts_s
    assert 0.6 < reads_s / (SOFT_POLLS_S / share) < 1.1


class Silent:
    """A subscription on which nothing comes, and whose connection is dead."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.pings = 0

    async def get_message(self, timeout: float) -> None:
        await self._clock.advance(timeout)

    async def ping(self) -> None:
        self.pings += 1


@pytest.mark.parametrize(("servers", "most_s", "pings"), [(1, 4.0, 3), (10_000, 11.0, 1)])
async def test_a_dead_subscription_is_noticed_in_a_large_fleet_by_fewer_pings(
    clock: ManualClock, servers: int, most_s: float, pings: int
) -> None:
    anything: Any = Noted()
    news = RedisNews(anything, KEYS, clock)
    news.servers = servers
    address = parse("redis://127.0.0.1:1")
    wire = RedisWire(anything, address, KEYS, clock, Random(1), news)
    silent, began_s = Silent(clock), clock.monotonic_s()
    with pytest.raises(TimeoutError):
        await wire._take_messages(silent, anything)
    assert clock.monotonic_s() - began_s <= most_s
    assert silent.pings == pings


async def test_soft_decisions_are_pushed_too(clock: ManualClock) -> None:
    theirs, leader, ours, follower = pushed(clock)
    said = RedisSoft(theirs, KEYS, leader)
    heard = RedisSoft(ours, KEYS, follower)
    assert await heard.read() == []
    asked = len(ours.commands)
    await leader.publish("i", {}, PAIR)
    await said.publish([Decision(Subject(Kind.WORKERS, "0"), "workers", 1, "why")], 1)
    assert [soft.decision.value for soft in await heard.read()] == [1]
    assert await heard.read() == []
    assert len(ours.commands) == asked


async def test_a_leader_waits_for_a_redis_that_is_busy_and_an_application_does_not() -> None:
    """While Redis sends news to thousands, it answers nobody."""
    clock = SystemClock()
    with real(RedisServer) as server:
        url = f"{server.url}?timeout_s=0.05"
        stores = with_redis(memory_stores(clock), url, clock, Random(1))
        assert stores.news is not None
        await stores.bus.receive()  # connected
        other = Connection(parse(f"{server.url}?timeout_s=5"), clock, Random(1))
        await other.run("CLIENT", "PAUSE", 300, "ALL")
        with pytest.raises(Unavailable):
            await stores.news.pair()
        await stores.news.publish("log", {}, b"pair")
        assert await stores.bus.receive() == []
        await other.close()
        await stores.close()
