"""News that the leader pushes: followers ask Redis for nothing while it comes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from heatsink.errors import Unavailable
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Decision
from heatsink.stores.memory import memory_stores
from heatsink.stores.redis import with_redis
from heatsink.stores.redis.address import RedisKeys, parse
from heatsink.stores.redis.connection import Connection
from heatsink.stores.redis.news import PATIENCE, PUSHED_S, REPEAT_S, RedisNews, RedisSoft
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

    async def run(self, *words: Any) -> Any:
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
