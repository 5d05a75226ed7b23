from __future__ import annotations

import asyncio
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest

from heatsink.errors import Unavailable
from heatsink.heat.heat import Heat, Report
from heatsink.stores.redis.address import RedisKeys
from heatsink.stores.redis.connection import Connection
from heatsink.stores.redis.heat import RedisBus
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisServer
from tests.servers import patient

REPORT = Report("a", 1, 1.0, True, 1, {"k": Heat(1, 1)})


async def poison_of(connection: Connection, keys: RedisKeys) -> list[dict[bytes, bytes]]:
    found = await connection.run("XRANGE", keys.poison, "-", "+")
    return [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in found]


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


async def test_a_new_leader_starts_with_the_reports_of_the_last_seconds(
    connection: Connection, keys: RedisKeys
) -> None:
    await connection.run("XADD", keys.heat, "1000-0", "r", b"old")
    await RedisBus(connection, keys).send(REPORT)
    first, second = RedisBus(connection, keys), RedisBus(connection, keys)
    assert await first.receive() == [REPORT]
    assert await first.receive() == []
    assert await second.receive() == [REPORT]


async def test_more_reports_than_one_reply_holds_are_all_received(
    bus: RedisBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heatsink.stores.redis.heat.TAKE_MAX", 10)
    for _ in range(35):
        await bus.send(REPORT)
    assert len(await bus.receive()) == 35
    assert await bus.receive() == []


async def test_reports_that_were_read_before_redis_failed_count(
    bus: RedisBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heatsink.stores.redis.heat.TAKE_MAX", 10)
    for _ in range(35):
        await bus.send(REPORT)
    run, reads = bus._run, count(1)

    async def third_read_fails(*words: Any) -> Any:
        if words[0] == "XRANGE" and next(reads) == 3:
            raise Unavailable("Redis does not answer")
        return await run(*words)

    monkeypatch.setattr(bus, "_run", third_read_fails)
    assert len(await bus.receive()) == 20
    assert len(await bus.receive()) == 15


async def test_a_redis_that_was_set_back_is_read_from_where_it_is(
    connection: Connection, bus: RedisBus, keys: RedisKeys
) -> None:
    """Its new entries have older ids than the last one that was read."""
    await bus.send(REPORT)
    assert await bus.receive() == [REPORT]
    await connection.run("DEL", keys.heat)
    await connection.run("XADD", keys.heat, "5000-0", "r", msgspec.msgpack.encode(REPORT))
    assert await bus.receive() == []
    assert await bus.receive() == [REPORT]


async def test_an_emptied_redis_is_read_on(
    connection: Connection, bus: RedisBus, keys: RedisKeys
) -> None:
    await bus.send(REPORT)
    assert await bus.receive() == [REPORT]
    await connection.run("DEL", keys.heat)
    await asyncio.sleep(0.005)  # an id has milliseconds: in the same one, it would be the same
    await bus.send(REPORT)
    assert await bus.receive() == [REPORT]


async def test_the_stream_is_named_after_the_deployment(
    server: RedisServer, keys: RedisKeys
) -> None:
    connection = Connection(patient(server.url), ManualClock(), Random(1))
    await RedisBus(connection, keys).send(REPORT)
    assert await connection.run("XLEN", f"{{{keys.prefix}}}:hot_partitions") == 1
    await connection.close()
