"""What a process that does not lead knows of the fleet's heat."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from time import monotonic

import pytest

import heatsink
from heatsink import Heatsink, Retries, Settings
from heatsink.coordinator.coordination import Hottest
from heatsink.coordinator.explainer import Explanation
from heatsink.heat.fleet import FleetHeat
from heatsink.heat.heat import KeyHeat, PartitionHeat, WindowHeat
from heatsink.primitives.clock import SystemClock
from heatsink.stores.memory import memory_stores
from heatsink.stores.redis.address import RedisKeys
from heatsink.stores.redis.connection import Connection
from heatsink.stores.redis.heat import RedisBoard
from heatsink.testing import SkewedClock, run_on_virtual_time
from heatsink.testing.redis import RedisServer
from tests.servers import patient, patient_url, real

EACH_S = 1_500  # writes a second of each client


@asynccontextmanager
async def fleet(tmp_path: Path, news: str | None) -> AsyncIterator[tuple[Heatsink, Heatsink]]:
    """One client that leads, and one that never will."""
    url = f"sqlite:///{tmp_path}/x.db"
    async with (
        heatsink.connect(url, news=news, name="boss", window_s=0.2) as leader,
        heatsink.connect(url, news=news, coordinate=False, window_s=0.2) as follower,
    ):
        yield leader, follower


@asynccontextmanager
async def heating(*clients: Heatsink) -> AsyncIterator[None]:
    """All write at the same pace, however slow the machine is."""

    async def write() -> None:
        before_s = monotonic()
        while True:
            await asyncio.sleep(0.02)
            now_s = monotonic()
            for hs in clients:
                hs.record("hot", writes=round(EACH_S * (now_s - before_s)))
            before_s = now_s

    writing = asyncio.ensure_future(write())
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def until_hot(asked: Heatsink) -> Hottest:
    """By what both of them write, not one alone."""
    while True:
        hottest = await asked.hottest()
        if hottest.keys and hottest.keys[0].heat.write_units_s > EACH_S + 200:
            return hottest
        await asyncio.sleep(0.02)


async def until_heat_is_known(asked: Heatsink) -> Explanation:
    """A window that passed while the machine stood still has none."""
    while (explained := await asked.explain("hot")).heat is None:
        await asyncio.sleep(0.02)
    return explained


async def test_the_leader_shows_the_heat_of_the_fleet_to_all(tmp_path: Path) -> None:
    with real(RedisServer) as server:
        async with fleet(tmp_path, patient_url(server.url)) as (leader, follower):
            async with heating(leader, follower):
                hottest = await until_hot(follower)
                assert (hottest.leads, hottest.leader) == (False, leader.status().name)
                assert [hot.key for hot in hottest.keys] == ["hot"]
                hot, cold = await until_heat_is_known(follower), await follower.explain("cold")
            assert hot.heat is not None
            assert hot.heat.writes_s > 0
            assert "heat    too cold to be reported: at most " in str(cold)
            server.kill()
            gone = await follower.hottest()
            assert (gone.start_s, gone.unreported_s, gone.keys) == (None, None, ())
            while "not known here: ask the leader, boss:" not in (
                told := str(await follower.explain("hot"))
            ):
                assert "heat    not known: there is no leader" in told, (
                    "META was not read again yet"
                )
                await asyncio.sleep(0.05)


class Hanging:
    """A board that never answers."""

    async def show(self, heat: FleetHeat) -> None:  # noqa: ARG002
        await asyncio.Event().wait()

    async def look(self) -> FleetHeat | None:
        await asyncio.Event().wait()
        return None


def test_a_redis_that_hangs_is_waited_for_until_the_deadline() -> None:
    async def run() -> tuple[str, Hottest, float]:
        clock = SkewedClock()
        stores = dataclasses.replace(memory_stores(clock), board=Hanging())
        settings = Settings(retries=Retries(deadline_s=1.0), coordinate=False)
        async with Heatsink(stores, settings, clock, Random(1)) as hs:
            began_s = clock.monotonic_s()
            told, hottest = str(await hs.explain("k")), await hs.hottest()
            return told, hottest, clock.monotonic_s() - began_s

    told, hottest, took_s = run_on_virtual_time(run())
    assert "heat    not known" in told
    assert hottest.start_s is None
    assert took_s == pytest.approx(2.0, abs=0.01)


async def test_without_redis_only_the_leader_knows_and_others_say_so(tmp_path: Path) -> None:
    async with fleet(tmp_path, None) as (leader, follower):
        async with heating(leader, follower):
            await until_hot(leader)
            assert "writes/s" in str(await until_heat_is_known(leader))
        unknown = await follower.hottest()
        assert (unknown.start_s, unknown.keys) == (None, ())
        words = f"heat    not known here: ask the leader, {leader.status().name}"
        while words not in str(await follower.explain("hot")):
            await asyncio.sleep(0.05)


async def test_where_nobody_leads_nobody_knows() -> None:
    async with heatsink.connect("memory://", coordinate=False) as hs:
        assert "leader  there has been no leader yet" in str(await hs.explain("k"))


async def test_what_is_shown_is_whole_and_ends_by_itself() -> None:
    window = WindowHeat(7, 7.0, True, {"k": KeyHeat(5, 4, 3, 2, 1)}, 0.5)
    heat = FleetHeat("boss", 1.0, window, (PartitionHeat(3, 9.0),))
    with real(RedisServer) as server:
        connection = Connection(patient(server.url), SystemClock(), Random(1))
        board, keys = RedisBoard(connection, RedisKeys()), RedisKeys()
        assert await board.look() is None
        await board.show(heat)
        assert await board.look() == heat
        assert 0 < await connection.run("PTTL", keys.hottest) <= 7_000
        await connection.run("SET", keys.hottest, b"junk")
        assert await board.look() is None, "input, not truth"
        await connection.close()


def test_only_the_hottest_are_shown_and_the_others_bounded() -> None:
    keys = {str(n): KeyHeat(n, n, 0, 0, 0.5) for n in range(10)}
    partitions = tuple(PartitionHeat(n, 9.0 - n) for n in range(10))
    shown = FleetHeat("boss", 1.0, WindowHeat(7, 7.0, True, keys, 1.0), partitions).hottest(3)
    assert list(shown.window.keys) == ["9", "8", "7"]
    assert shown.window.unreported_s == 6.5
    assert [each.partition for each in shown.partitions] == [0, 1, 2]
    assert (shown.is_recent(14.0), shown.is_recent(14.1)) == (True, False)
