"""Somebody who has Redis, and not the store, writes news: nobody places a row by it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

import heatsink
from heatsink import Heatsink
from heatsink.primitives.chance import SECRET_BYTES
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.ids import Uuid7
from heatsink.registry.decisions import BUCKETS, LogEntry, Meta, for_key
from heatsink.registry.news import Seal
from heatsink.spread.fsck import check
from heatsink.stores.redis.address import RedisKeys
from heatsink.stores.redis.connection import Connection, RedisRefused
from heatsink.testing.redis import RedisServer
from tests.servers import patient, patient_url, real
from tests.spread.test_log import everything
from tests.waiting import soon

KEYS = RedisKeys()
PINS = (4, 2, 7, 3, 5)
VALUE = re.compile(rb"\xa5value.", re.DOTALL)
FLIPPED: set[bytes] = set()
Forge = Callable[[Connection], Awaitable[None]]


def pair_ahead(ahead_ms: int) -> Forge:
    async def forge(redis: Connection) -> None:
        """As the pair is, but for the closed time."""
        pair = await redis.run("GET", KEYS.pair)
        if pair is not None:
            closed_ms, *rest = pair.split(b"|")
            forged = b"|".join([b"%d" % (int(closed_ms) + ahead_ms), *rest])
            await redis.run("SET", KEYS.pair, forged)

    return forge


async def entry_ahead(redis: Connection) -> None:
    """The next version, before the leader has decided it: whose comes first stays in a stream."""
    closed_ms, version, incarnation, *_ = (await redis.run("GET", KEYS.pair)).split(b"|")
    number = int(version) + 1
    decision = for_key("conv", BUCKETS, 11, "forged")
    entry = LogEntry(number, int(closed_ms), int(closed_ms), (decision,))
    body = seal_of_another_secret(incarnation).entry(entry)
    log = KEYS.log(incarnation.decode())
    await redis.run("XADD", log, f"{number}-0", "e", body)


def seal_of_another_secret(incarnation: bytes) -> Seal:
    secret = bytes(SECRET_BYTES)
    return Seal(Meta(0, 0, 0, 0, "", incarnation.decode(), b"", "", secret=secret))


async def pair_of_another_secret(redis: Connection) -> None:
    closed_ms, version, incarnation, _ = (await redis.run("GET", KEYS.pair)).split(b"|")
    seal = seal_of_another_secret(incarnation)
    await redis.run("SET", KEYS.pair, seal.pair(int(closed_ms) + 400, int(version)))


async def flipped_bits(redis: Connection) -> None:
    """In the number of buckets of every decision, as soon as it is there."""
    _, _, incarnation, *_ = (await redis.run("GET", KEYS.pair)).split(b"|")
    log = KEYS.log(incarnation.decode())
    found = await redis.run("XRANGE", log, "-", "+")
    bodies = {id: fields[1] for id, fields in found}
    if all(body in FLIPPED for body in bodies.values()):
        return
    await redis.run("DEL", log)
    for id, body in bodies.items():
        flipped = body if body in FLIPPED else VALUE.sub(_flip, body)
        FLIPPED.add(flipped)
        await redis.run("XADD", log, id, "e", flipped)


def _flip(value: re.Match[bytes]) -> bytes:
    return value[0][:-1] + bytes([value[0][-1] ^ 1])


@asynccontextmanager
async def forging(url: str, forge: Forge) -> AsyncIterator[None]:
    redis = Connection(patient(url), SystemClock(), Random())

    async def go_on() -> None:
        while True:
            await redis.run("CLIENT", "KILL", "TYPE", "pubsub")  # so that processes poll
            try:
                await forge(redis)
            except RedisRefused as refused:
                if refused.code != "OLDER":
                    raise
            await asyncio.sleep(0.002)

    task = asyncio.ensure_future(go_on())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await redis.close()


Writers = list[asyncio.Task[None]]


async def write(hs: Heatsink, number: int, acknowledged: dict[bytes, UUID]) -> None:
    for n in range(10**9):
        body = b"%d %d" % (number, n)
        acknowledged[body] = (await hs.log.append("conv", body)).id
        await asyncio.sleep(0.005)


@asynccontextmanager
async def writing(
    clients: list[Heatsink], acknowledged: dict[bytes, UUID]
) -> AsyncIterator[Writers]:
    writers = [
        asyncio.ensure_future(write(hs, number, acknowledged)) for number, hs in enumerate(clients)
    ]
    try:
        yield writers
        assert not [writer for writer in writers if writer.done()], "no append may fail"
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


async def change(
    leader: Heatsink, buckets: int, acknowledged: dict[bytes, UUID], writers: Writers
) -> None:
    """Give the key so many buckets, while rows are written before, meanwhile and after."""
    await leader.pin("conv", buckets=buckets, reason="a test")
    await soon(lambda: leader.parts.registry.view.layout("conv").buckets == buckets)
    enough = len(acknowledged) + 100
    await soon(lambda: len(acknowledged) > enough or any(writer.done() for writer in writers))


MORE = pytest.mark.full("servers and seconds; one pair and one entry stand for the others")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("forge", "what"),
    [
        pytest.param(pair_ahead(3_600_000), "closed time", marks=MORE),
        (pair_ahead(400), "closed time"),
        pytest.param(pair_of_another_secret, "closed time", marks=MORE),
        (entry_ahead, "log entry"),
        pytest.param(flipped_bits, "log entry", marks=MORE),
    ],
    ids=["an hour ahead", "400 ms ahead", "another secret", "an entry ahead", "flipped bits"],
)
async def test_forged_news_misplaces_no_row(
    tmp_path: Path, forge: Forge, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    caplog.set_level(logging.WARNING, "heatsink")
    acknowledged: dict[bytes, UUID] = {}
    with real(RedisServer) as server:
        news = patient_url(server.url)
        async with AsyncExitStack() as stack:
            leader = await stack.enter_async_context(heatsink.connect(url, news=news))
            apps = [
                await stack.enter_async_context(heatsink.connect(url, news=news, coordinate=False))
                for _ in range(2)
            ]
            everybody = [leader, *apps]
            await soon(lambda: all(heard(hs) for hs in everybody))
            async with forging(server.url, forge), writing(apps, acknowledged) as writers:
                for buckets in PINS:
                    await change(leader, buckets, acknowledged, writers)
            for hs in everybody:
                await verify(hs, acknowledged)
    told = [record.message for record in caplog.records if what in record.message]
    assert 1 <= len(told) <= len(everybody), "each process says so once"


def heard(hs: Heatsink) -> bool:
    assert hs.parts.registry._listener is not None
    return hs.parts.registry._listener._closed_ms > 0


async def verify(hs: Heatsink, acknowledged: dict[bytes, UUID]) -> None:
    found = {body: await hs.log.get("conv", id) for body, id in acknowledged.items()}
    lost = [body for body, entry in found.items() if entry is None or entry.body != body]
    assert not lost, f"get does not find {len(lost)} of {len(found)} acknowledged rows"
    paged = [entry.body for entry in await everything(hs, "conv", limit=1_000)]
    assert len(paged) == len(set(paged))
    assert acknowledged.keys() <= set(paged)
    stores = hs.parts.stores
    assert (await check(stores.log, stores.counters, stores.registry, Uuid7())).clean
