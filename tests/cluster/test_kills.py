"""kill -9 of mover, source and target during moves: nothing is lost, no slot stays half-way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from redis import Redis
from redis import exceptions as redis_errors
from redis.asyncio import RedisCluster as Client
from redis.crc import key_slot

from heatsink.cluster.mover import Mover, Unsafe
from heatsink.cluster.nodes import ClusterNodes, Migration, Topology, migration
from heatsink.cluster.policy import Move, MoveLimits
from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import SystemClock
from heatsink.testing.redis import RedisCluster, RedisServer
from tests.servers import real
from tests.waiting import soon, until

from .clients import ConfirmedWriter

OPTIONS = {
    "cluster-node-timeout": "5000",
    "repl-diskless-sync-delay": "0",
    "slot-migration-max-failover-repl-bytes": "-1",
}
TAG = "{moved}"
SLOT = key_slot(TAG.encode())
LISTS = [f"{TAG}:{number}" for number in range(8)] + [f"other:{number}" for number in range(8)]
PIECES, PIECE = 16, 1_000_000


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """A new cluster for each test: servers that a test restarts end with the test's threads."""
    with real(lambda: RedisCluster(replicas=1, options=OPTIONS, append_only=True)) as running:
        yield running


@pytest.fixture
async def client(cluster: RedisCluster) -> AsyncIterator[Client]:
    opened = Client(host="127.0.0.1", port=cluster.masters[0].port)
    yield opened
    await opened.aclose()


class Arena:
    """A cluster with a large slot that moves to and fro, and a writer that goes on."""

    def __init__(self, cluster: RedisCluster, rng: Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.caught = 0
        """How many kills hit a running migration."""

    async def healthy(self) -> Topology:
        """Wait until the cluster is well and no migration runs; return its topology."""
        found: list[Topology] = []

        async def is_well() -> bool:
            nodes = self._nodes()
            try:
                found.append(await Mover(nodes, MoveLimits(), SystemClock()).check())
            except HeatsinkError:
                return False
            finally:
                await nodes.close()
            return len([node for node in found[-1].nodes if not node.is_primary]) == 3

        await soon(is_well, "the cluster is well", look_s=0.1)
        return found[-1]

    def _nodes(self) -> ClusterNodes:
        """All nodes are named, since any of them may be down."""
        url = "redis+cluster://" + ",".join(node.address for node in self.cluster.nodes)
        return ClusterNodes(url, SystemClock(), Random(1))

    def server(self, topology: Topology, id: str) -> RedisServer:
        port = topology.known(id).port
        return next(node for node in self.cluster.nodes if node.port == port)

    async def kill_during_a_move(self, who: str, waits_for_promotion: bool) -> None:
        topology = await self.healthy()
        source = topology.owners[SLOT]
        target = self.rng.choice([node.id for node in topology.primaries if node.id != source])
        url = "redis+cluster://" + ",".join(node.address for node in self.cluster.nodes)
        words = [sys.executable, "-m", "tests.cluster.mover_process", url, str(SLOT), target]
        mover = await asyncio.to_thread(subprocess.Popen, words, stderr=subprocess.DEVNULL)
        try:
            await asyncio.to_thread(self._until_it_moves, self.server(topology, source), mover)
            if who == "mover":
                mover.kill()
            else:
                victim = source if who == "source" else target
                await self._kill_node(topology, victim, waits_for_promotion)
        finally:
            mover.kill()
            await asyncio.to_thread(mover.wait)

    def _until_it_moves(self, source: RedisServer, mover: subprocess.Popen[bytes]) -> None:
        """Wait until the source migrates, then a random part of the time that this takes."""
        with Redis(port=source.port) as connection:
            before = {each.name for each in _jobs(connection)}

            def moves() -> bool:
                new = [each for each in _jobs(connection) if each.name not in before]
                return mover.poll() is not None or bool(new)

            until(moves, "the source migrates", look_s=0.001)
            for _ in range(self.rng.randrange(200)):
                if any(each.has_ended for each in _jobs(connection) if each.name not in before):
                    return
            self.caught += 1

    async def _kill_node(self, topology: Topology, id: str, waits_for_promotion: bool) -> None:
        server = self.server(topology, id)
        await asyncio.to_thread(server.kill)
        if waits_for_promotion:
            others = [each for each in self.cluster.nodes if each is not server]
            await soon(lambda: _has_failed_over(others[0], id), "a replica is promoted", 0.1)
        await asyncio.to_thread(server.start)

    async def next_run_moves_the_slot(self) -> None:
        """The next run finds a cluster that it can work with, and moves the slot."""
        topology = await self.healthy()
        for node in self.cluster.nodes:
            assert "[" not in await asyncio.to_thread(node.command, "CLUSTER", "NODES")
        source = topology.owners[SLOT]
        target = next(node.id for node in topology.primaries if node.id != source)
        nodes = self._nodes()
        mover = Mover(nodes, MoveLimits(), SystemClock())
        for _ in range(10):  # nodes may still disagree for a moment after a fail-over
            with suppress(Unsafe):
                await mover.carry_out(
                    Move((SLOT,), source, target, 1_000, "a test"), await mover.check()
                )
                break
        after = await nodes.topology()
        await nodes.close()
        assert after.owners[SLOT] == target


def _jobs(connection: Any) -> list[Migration]:
    try:
        answer: Any = connection.execute_command("CLUSTER", "GETSLOTMIGRATIONS")
    except (redis_errors.RedisError, OSError):
        return []
    return [migration(each) for each in answer]


def _has_failed_over(node: RedisServer, old: str) -> bool:
    """Whether another node has the slots of `old`. A line has eight words, then its slots."""
    lines = [line for line in node.command("CLUSTER", "NODES").splitlines() if old in line[:40]]
    return bool(lines) and len(lines[0].split()) == 8


async def killed(cluster: RedisCluster, client: Client, kills: list[tuple[str, bool]]) -> Arena:
    """Carry out the kills under writes, and check what is left after each."""
    arena = Arena(cluster, Random(5))
    writer = ConfirmedWriter([node.port for node in cluster.nodes], LISTS)
    for number in range(PIECES):
        await client.set(f"{TAG}:piece:{number}", arena.rng.randbytes(PIECE))
    stop = asyncio.Event()
    writing = asyncio.ensure_future(writer.run(stop))
    try:
        for who, waits in kills:
            await arena.kill_during_a_move(who, waits)
            await arena.next_run_moves_the_slot()
    finally:
        stop.set()
        await writing
    assert len(writer.confirmed) > 10 * len(kills)
    assert await writer.missing(client) == []
    assert await client.strlen(f"{TAG}:piece:{PIECES - 1}") == PIECE
    await writer.close()
    sys.stdout.write(
        f"{arena.caught} of {len(kills)} kills hit a running migration; "
        f"{len(writer.confirmed)} confirmed writes, none missing\n"
    )
    return arena


async def test_a_kill_of_mover_source_or_target_leaves_no_slot_half_way(
    cluster: RedisCluster, client: Client
) -> None:
    arena = await killed(cluster, client, [(who, False) for who in ("mover", "source", "target")])
    assert arena.caught > 0


@pytest.mark.full("thirty kills, half of them with a fail-over")
@pytest.mark.timeout(1_500)
async def test_ten_kills_of_each_lose_nothing_that_was_confirmed(
    cluster: RedisCluster, client: Client
) -> None:
    kills = [
        (who, number % 2 == 1) for number in range(10) for who in ("mover", "source", "target")
    ]
    arena = await killed(cluster, client, kills)
    assert arena.caught >= 20
