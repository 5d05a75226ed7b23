"""When partitions should get a Redis of their own, and what a consumer counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

import heatsink
from heatsink.bulk.plan import LEGACY
from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.store import Outcome, ServerHealth, Slice
from heatsink.bulk.work.pump import OTHERS, TENANTS_MAX, WorkMeter
from heatsink.coordinator.workers import OWN_REDIS, READINGS, Advisor
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.subjects import Kind, Subject
from heatsink.stores.redis.queue import open_queue
from heatsink.testing.redis import RedisCluster, RedisServer
from tests.servers import real
from tests.waiting import soon

SPIN = b"EVAL 'for i=1,7000 do redis.sha1hex(\\'\\') end' 0\r\n"


def health(cpu_used_s: float = 0.0, memory: int = 0, latency_ms: float = 0.1) -> ServerHealth:
    return ServerHealth("queue:6379", cpu_used_s, memory, 1_000, latency_ms, (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (lambda turn: health(cpu_used_s=7.2 * turn), "72% of a core"),
        (lambda _: health(memory=800), "80% of its maxmemory"),
        (lambda _: health(latency_ms=25), "25 ms to answer"),
    ],
)
def test_a_server_that_stays_busy_should_share(reading: object, reason: str) -> None:
    assert callable(reading)
    advisor = Advisor()
    turns = [advisor.advise(10.0 * turn, [reading(turn)]) for turn in range(READINGS + 3)]
    advice = [decision for decisions in turns for decision in decisions]
    assert len(advice) == 1, "it is said once"
    assert (advice[0].subject, advice[0].setting, advice[0].value) == (
        Subject(Kind.REDIS, "queue:6379"),
        OWN_REDIS,
        2,
    )
    assert reason in advice[0].reason


def test_a_busy_moment_is_nothing_and_room_takes_the_advice_back() -> None:
    advisor = Advisor()
    assert not any(advisor.advise(10.0 * n, [health(memory=900)]) for n in range(READINGS - 1))
    assert not advisor.advise(100.0, [health()])
    for turn in range(READINGS):
        decisions = advisor.advise(200.0 + turn, [health(memory=900)])
    assert [decision.value for decision in decisions] == [2]
    assert [decision.value for decision in advisor.advise(300.0, [health()])] == [None]


@pytest.mark.parametrize("make", [RedisServer, RedisCluster])
async def test_servers_tell_how_they_are(make: type[RedisServer]) -> None:
    with real(make) as server:
        stores = open_queue(
            server.url, SystemClock(), Random(1), BulkSettings(durability="relaxed")
        )
        (found,) = await stores.health([LEGACY, 0, 1])
        await stores.close()
    assert found.partitions == (LEGACY, 0, 1)
    assert found.memory > 0
    assert found.cpu_used_s > 0
    assert 0 < found.latency_ms < 60_000, "in milliseconds"


@asynccontextmanager
async def kept_busy(port: int, connections: int = 8) -> AsyncIterator[None]:
    """The server computes all the time: one script ends and the next one begins."""

    async def spin() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                writer.write(SPIN)
                assert not (await reader.readline()).startswith(b"-")
        finally:
            writer.close()

    spinning = [asyncio.ensure_future(spin()) for _ in range(connections)]
    try:
        yield
    finally:
        for each in spinning:
            each.cancel()
        await asyncio.gather(*spinning, return_exceptions=True)


@pytest.mark.timeout(180)
async def test_a_loaded_redis_is_advised_to_share_and_told_when_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real server, which is examined every 0.2 s here, instead of every 10 s.

    Beside other programs the server may get less than 60 % of a core. Then it answers late, which
    is another reason for the same advice.
    """
    monkeypatch.setattr("heatsink.coordinator.workers.TURN_S", 0.1)
    monkeypatch.setattr("heatsink.coordinator.workers.HEALTH_S", 0.2)
    with real(RedisServer) as server:
        bulk = BulkSettings(partitions=4, durability="relaxed")
        url = f"sqlite:///{tmp_path}/x.db"
        async with heatsink.connect(url, queue=server.url, bulk=bulk) as hs:
            await hs.bulk.open()
            place = Subject(Kind.REDIS, server.address)

            async def advised(value: int | None) -> list[str]:
                decisions = [each for entry in await hs.decisions(20) for each in entry.decisions]
                ours = [each for each in decisions if each.subject == place]
                return [each.reason for each in ours if each.value == value]

            async with kept_busy(server.port):
                await soon(lambda: advised(2))
            (reason,) = await advised(2)
            assert "of a core (5 readings" in reason or "ms to answer (5 readings" in reason
            assert "move half of its queue partitions" in reason
            await soon(lambda: advised(None))


def one_slice(tenant: str) -> Slice:
    return Slice("x:0", "part", "batch", tenant, "mail", "mail/x", False, 1_000, 0, 4, 0, b"")


def test_the_meter_counts_every_mark_once() -> None:
    meter = WorkMeter()
    meter.claimed([one_slice("ada")], 3.0)
    first, second = Outcome("x:0", "d.r.", 50), Outcome("x:0", "ddrf", 70)
    meter.sent(one_slice("ada"), None, first)
    meter.sent(one_slice("ada"), first, second)
    tally = meter.tallies["mail", "ada"]
    assert (tally.claimed, tally.done, tally.failed, tally.retried) == (4, 2, 1, 1)
    assert tally.busy_s == pytest.approx(120e-6)
    assert tally.waited_s == pytest.approx(8.0)


def test_tenants_beyond_a_bound_share_a_label() -> None:
    meter = WorkMeter()
    meter.claimed([one_slice(f"tenant-{number}") for number in range(TENANTS_MAX + 5)], 1.0)
    labels = {tenant for _, tenant in meter.tallies}
    assert len(labels) == TENANTS_MAX + 1
    assert meter.tallies["mail", OTHERS].claimed == 20
