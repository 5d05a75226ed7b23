"""Forgotten keys reach every other process that is linked, in memory as over Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from heatsink.errors import Unavailable
from heatsink.primitives.clock import SystemClock
from heatsink.reads import Reads
from heatsink.reads.invalidation import OUTBOX_MAX, Ear, Invalidation, Wire
from heatsink.stores.memory.messages import MemoryWire
from heatsink.stores.redis import news as redis_wire
from heatsink.stores.redis.address import RedisKeys, parse
from heatsink.stores.redis.connection import Connection
from heatsink.stores.redis.news import RedisWire
from heatsink.testing.redis import RedisCluster, RedisServer
from tests.servers import patient, real
from tests.waiting import soon

CLOCK = SystemClock()
MakeWire = Callable[[], Wire]


class Listener:
    def __init__(self) -> None:
        self.links = 0
        self.keys: list[Sequence[str]] = []

    def linked(self) -> None:
        self.links += 1

    def heard(self, keys: Sequence[str]) -> None:
        self.keys.append(list(keys))


@asynccontextmanager
async def listening(wire: Wire, ear: Ear) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(wire.listen(ear))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Unavailable):
            await task


@pytest.fixture(params=["memory", "server", "cluster"])
async def make_wire(request: pytest.FixtureRequest, keys: RedisKeys) -> AsyncIterator[MakeWire]:
    if request.param == "memory":
        ends: list[MemoryWire] = []
        yield lambda: MemoryWire(ends)
        return
    address, rng = patient(request.getfixturevalue(request.param).url), Random()
    connection = Connection(address, CLOCK, rng)
    yield lambda: RedisWire(connection, address, keys, CLOCK, rng)
    await connection.close()


async def test_the_others_hear_what_one_sends_and_it_does_not_hear_itself(
    make_wire: MakeWire,
) -> None:
    wires, ears = [make_wire() for _ in range(3)], [Listener() for _ in range(3)]
    async with (
        listening(wires[0], ears[0]),
        listening(wires[1], ears[1]),
        listening(wires[2], ears[2]),
    ):
        await soon(lambda: all(ear.links == 1 for ear in ears))
        await wires[0].send(["a", "ü"])
        await wires[0].send([])
        await soon(lambda: len(ears[1].keys) == len(ears[2].keys) == 2)
    assert ears[1].keys == ears[2].keys == [["a", "ü"], []]
    assert ears[0].keys == []


async def test_in_a_cluster_all_listen_where_all_send(
    cluster: RedisCluster, keys: RedisKeys
) -> None:
    """Nodes of a young cluster lose messages that they pass on to each other."""
    address, rng, ears = patient(cluster.url), Random(), [Listener() for _ in range(4)]
    connection = Connection(address, CLOCK, rng)
    wires = [RedisWire(connection, address, keys, CLOCK, rng) for _ in ears]
    tasks = [asyncio.ensure_future(wire.listen(ear)) for wire, ear in zip(wires, ears, strict=True)]
    await soon(lambda: all(ear.links for ear in ears))
    counts = [master.command("PUBSUB", "NUMSUB", keys.forgotten) for master in cluster.masters]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    (home,) = await connection.nodes(keys.forgotten)
    await connection.close()
    homes = [m for m, said in zip(cluster.masters, counts, strict=True) if said.endswith(":4")]
    assert [str(home)] == [master.address for master in homes]


def process(invalidation: Invalidation) -> tuple[Reads, asyncio.Task[None]]:
    reads = Reads()
    invalidation.tie(reads)
    return reads, asyncio.ensure_future(invalidation.run())


async def test_what_one_process_forgets_the_others_forget(make_wire: MakeWire) -> None:
    invalidations = [Invalidation(make_wire(), CLOCK, Random()) for _ in range(2)]
    (one, run_one), (two, run_two) = (process(invalidation) for invalidation in invalidations)
    await soon(lambda: one.is_linked and two.is_linked)
    version = 1

    async def load() -> int:
        return version

    for key in ("k", "other"):
        assert await two.get(key, load, fresh_for=600, stale_for=600) == 1
    version = 2
    one.forget("k")
    entry = two._find("k")
    await soon(lambda: two._find("k") is not entry)
    assert await two.get("k", load, fresh_for=600, stale_for=600) == 2
    assert await two.get("other", load, fresh_for=600, stale_for=600) == 1
    for number in range(OUTBOX_MAX + 1):
        one.forget(f"many-{number}")
    other = two._find("other")
    await soon(lambda: two._find("other") is not other)
    assert await two.get("other", load, fresh_for=600, stale_for=600) == 2
    late = Reads()
    invalidations[0].tie(late)
    assert late.is_linked, "the link is there already"
    for run in (run_one, run_two):
        run.cancel()
    await asyncio.gather(run_one, run_two, return_exceptions=True)
    assert not one.is_linked


@pytest.mark.parametrize("trouble", ["killed", "frozen"])
async def test_a_process_knows_when_its_link_is_down(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_wire, "PING_S", 0.1)
    monkeypatch.setattr(redis_wire, "SILENCE_S", 0.4)
    with real(RedisServer) as server:
        address, rng = parse(server.url), Random()
        connection = Connection(address, CLOCK, rng)
        wire = RedisWire(connection, address, RedisKeys(), CLOCK, rng)
        reads, run = process(Invalidation(wire, CLOCK, rng))
        await soon(lambda: reads.is_linked)

        async def load() -> int:
            return 1

        await reads.get("k", load, fresh_for=600, stale_for=600)
        entry = reads._find("k")
        if trouble == "killed":
            server.kill()
            await soon(lambda: not reads.is_linked)
            server.restart_empty()
        else:
            with server.stopped():
                await soon(lambda: not reads.is_linked)
        assert reads._find("k") is entry, "what is fresh is still served"
        await soon(lambda: reads.is_linked)
        assert reads._find("k") is not entry, "something may have been missed"
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await connection.close()
