from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from heatsink.heat.heat import Heat, Report
from heatsink.stores.redis import heat as module
from heatsink.stores.redis.address import GROUP, RedisKeys
from heatsink.stores.redis.connection import Connection
from heatsink.stores.redis.heat import RedisBus
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisServer
from tests.servers import patient

REPORT = Report("a", 1, 1.0, True, 0, {"k": Heat(1, 1)})


@pytest.fixture
async def at_once() -> AsyncIterator[None]:
    """Entries count as left behind as soon as they were taken."""
    with patch.object(module, "RECLAIM_S", 0.0):
        yield


async def poison_of(connection: Connection, keys: RedisKeys) -> list[dict[bytes, bytes]]:
    found = await connection.run("XRANGE", keys.poison, "-", "+")
    return [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in found]


async def pending_in(connection: Connection, keys: RedisKeys) -> int:
    count: int = (await connection.run("XPENDING", keys.heat, GROUP))[0]
    return count


@pytest.mark.parametrize(
    "fields",
    [("r", b"junk"), ("r", b""), ("r", b"x", "more", b"y"), ("r", b"\x00" * 300_000)],
    ids=["junk", "empty", "too many fields", "too large"],
)
async def test_an_entry_that_does_not_parse_is_set_aside(
    connection: Connection, bus: RedisBus, keys: RedisKeys, fields: tuple[Any, ...]
) -> None:
    await bus.send(REPORT)
    await connection.run("XADD", keys.heat, "*", *fields)
    await bus.send(REPORT)
    assert await bus.receive() == [REPORT, REPORT]
    (poison,) = await poison_of(connection, keys)
    assert any(word in poison[b"reason"] for word in (b"decoded", b"is unknown", b"256 KB"))
    assert len(poison[b"fields"]) <= 4_096
    assert await bus.receive() == []
    assert await pending_in(connection, keys) == 0


@pytest.mark.usefixtures("at_once")
async def test_what_a_dead_coordinator_took_goes_to_the_next(
    connection: Connection, keys: RedisKeys, clock: ManualClock
) -> None:
    dead = RedisBus(connection, keys, "dead", clock)
    await dead.send(REPORT)
    assert await dead.receive() == [REPORT]
    heir = RedisBus(connection, keys, "heir", clock)
    assert await heir.receive() == [REPORT]
    with patch.object(module, "RECLAIM_S", 5.0):
        assert await heir.receive() == []
    assert await pending_in(connection, keys) == 0


@pytest.mark.usefixtures("at_once")
async def test_an_entry_that_kills_whoever_takes_it_is_set_aside_after_three_times(
    connection: Connection, keys: RedisKeys, clock: ManualClock
) -> None:
    await RedisBus(connection, keys, "sender", clock).send(REPORT)
    taken = [await RedisBus(connection, keys, f"life-{life}", clock).receive() for life in range(5)]
    assert taken == [[REPORT], [REPORT], [REPORT], [], []]
    (poison,) = await poison_of(connection, keys)
    assert poison[b"reason"] == b"delivered 3 times"
    assert await pending_in(connection, keys) == 0


@pytest.mark.usefixtures("at_once")
async def test_consumers_that_are_long_gone_are_dismissed(
    connection: Connection, keys: RedisKeys, clock: ManualClock
) -> None:
    gone, here = (RedisBus(connection, keys, name, clock) for name in ("gone", "here"))
    for bus in (gone, here):
        await bus.send(REPORT)
        assert await bus.receive() == [REPORT]
        await bus._acknowledge(bus._taken)
    with patch.object(module, "IDLE_CONSUMER_MS", -1):
        await here.receive()
    consumers = await connection.run("XINFO", "CONSUMERS", keys.heat, GROUP)
    assert [consumer[1] for consumer in consumers] == [b"here"]


async def test_an_emptied_redis_gets_its_group_again(
    connection: Connection, bus: RedisBus, keys: RedisKeys
) -> None:
    await bus.send(REPORT)
    assert await bus.receive() == [REPORT]
    await connection.run("DEL", keys.heat)
    await bus.send(REPORT)
    assert await bus.receive() == [REPORT]


async def test_the_stream_is_named_after_the_deployment(
    server: RedisServer, keys: RedisKeys
) -> None:
    connection = Connection(patient(server.url), ManualClock(), Random(1))
    await RedisBus(connection, keys, "me", ManualClock()).send(REPORT)
    assert await connection.run("XLEN", f"{{{keys.prefix}}}:hot_partitions") == 1
    await connection.close()
