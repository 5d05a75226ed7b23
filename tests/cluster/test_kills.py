"""kill -9 of mover, source and target during moves: nothing is lost, no slot stays half-way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from redis import Redis
from redis import exceptions as redis_errors
from redis.asyncio import RedisCluster as Client
from redis.crc import key_slot

from heatsink.cluster.answers import SlotMigration, Topology, migration
from heatsink.cluster.mover import SlotMover, Unsafe
from heatsink.cluster.nodes import ClusterNodes
from heatsink.cluster.policy import SlotMove
from heatsink.cluster.rules import MoveLimits
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
TRIES = 20


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """A new cluster for each test: servers that a test restarts end with the test's threads."""
    with real(lambda: RedisCluster(replicas=1, options=OPTIONS, append_only=True)) as running:
        yield running


class Arena:
    """A cluster with a large slot that moves to and fro, and a writer that goes on."""

    def __init__(self, cluster: RedisCluster, rng: Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.caught = self.missed = 0
        """How many kills hit a running migration, and how many came when it had ended."""
        self.looks_max = 200
        """The most looks at a running migration before a kill."""
        self.refusals: list[str] = []
        """Why runs after a kill moved nothing."""

    async def healthy(self) -> Topology:
        """Wait until the cluster is well and no migration runs; return its topology."""
        found: list[Topology] = []

        async def is_well() -> bool:
            nodes = self._nodes()
            try:
                found.append(await SlotMover(nodes, MoveLimits(), SystemClock()).check())
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
        """Kill until a kill hits a running migration. Other kills came too late."""
        for _ in range(TRIES):
            if await self._kill_hits(who, waits_for_promotion):
                self.caught += 1
                return
            self.missed += 1
            self.looks_max = max(self.looks_max // 2, 1)
        raise AssertionError(f"no kill of the {who} hit a running migration")

    async def _kill_hits(self, who: str, waits_for_promotion: bool) -> bool:
        """Start a mover, and kill one of the three. Returns whether the migration was running."""
        topology = await self.healthy()
        source = topology.owners[SLOT]
        target = self.rng.choice([node.id for node in topology.primaries if node.id != source])
        url = "redis+cluster://" + ",".join(node.address for node in self.cluster.nodes)
        words = [sys.executable, "-m", "tests.cluster.mover_process", url, str(SLOT), target]
        mover = await asyncio.to_thread(subprocess.Popen, words, stderr=subprocess.DEVNULL)
        try:
            origin = self.server(topology, source)
            job = await asyncio.to_thread(self._until_it_moves, origin, mover)
            if not job:
                return False
            if who == "mover":
                mover.kill()
                return not self._found(origin, job).has_ended
            victim, witness = (source, target) if who == "source" else (target, source)
            await self._kill_node(topology, victim, waits_for_promotion)
            return await self._was_broken(self.server(topology, witness), job)
        finally:
            mover.kill()
            await asyncio.to_thread(mover.wait)

    def _until_it_moves(self, source: RedisServer, mover: subprocess.Popen[bytes]) -> str:
        """Wait until the source migrates, then a random part of the time that this takes.

        Returns the name of the migration; empty if it has ended, or if the mover began none.
        """
        with Redis(port=source.port) as connection:
            before = {each.name for each in _jobs(connection)}

            def new() -> list[SlotMigration]:
                return [each for each in _jobs(connection) if each.name not in before]

            until(lambda: mover.poll() is not None or new(), "the source migrates", look_s=0.001)
            for _ in range(self.rng.randrange(self.looks_max)):
                if any(each.has_ended for each in new()):
                    break
            return next((each.name for each in new() if not each.has_ended), "")

    def _found(self, node: RedisServer, job: str) -> SlotMigration:
        """Return what a node knows of a migration. Without an entry, it has not begun there."""
        with Redis(port=node.port) as connection:
            answer: Any = connection.execute_command("CLUSTER", "GETSLOTMIGRATIONS")
            unknown = SlotMigration(job, "", "", frozenset(), "unknown")
            return next((each for each in map(migration, answer) if each.name == job), unknown)

    async def _was_broken(self, witness: RedisServer, job: str) -> bool:
        """Whether a migration failed on the node that was not killed: then the kill hit it."""
        found: list[SlotMigration] = []

        async def has_ended() -> bool:
            found.append(await asyncio.to_thread(self._found, witness, job))
            return found[-1].has_ended or found[-1].state == "unknown"

        await soon(has_ended, "the migration ends on the node that was not killed")
        return found[-1].state != "success"

    async def _kill_node(self, topology: Topology, id: str, waits_for_promotion: bool) -> None:
        server = self.server(topology, id)
        await asyncio.to_thread(server.kill)
        if waits_for_promotion:
            others = [each for each in self.cluster.nodes if each is not server]
            await soon(lambda: _has_failed_over(others[0], id), "a replica is promoted", 0.1)
        await asyncio.to_thread(server.start)

    async def next_runs_move_the_slot(self) -> None:
        """The next runs find a cluster that they can work with, and one moves the slot.

        A run may refuse: nodes may disagree for a moment after a fail-over, or fail over only now.
        """
        await soon(self._one_run_moves_it, "a run moves the slot", look_s=0.1)

    async def _one_run_moves_it(self) -> bool:
        topology = await self.healthy()
        for node in self.cluster.nodes:
            assert "[" not in await asyncio.to_thread(node.command, "CLUSTER", "NODES")
        source = topology.owners[SLOT]
        target = next(node.id for node in topology.primaries if node.id != source)
        nodes = self._nodes()
        mover = SlotMover(nodes, MoveLimits(), SystemClock())
        try:
            move = SlotMove((SLOT,), source, target, 1_000, "a test")
            await mover.carry_out(move, await mover.check())
            return (await nodes.topology()).owners[SLOT] == target
        except Unsafe as refusal:
            self.refusals.append(str(refusal))
            return False
        finally:
            await nodes.close()


def _jobs(connection: Any) -> list[SlotMigration]:
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
            await arena.next_runs_move_the_slot()
    finally:
        stop.set()
        await writing
    assert len(writer.confirmed) > 10 * len(kills)
    assert await writer.missing(client) == []
    assert await client.strlen(f"{TAG}:piece:{PIECES - 1}") == PIECE
    await writer.close()
    sys.stdout.write(
        f"{arena.caught} of {len(kills)} kills hit a running migration, {arena.missed} more came "
        f"when it had ended; {len(writer.confirmed)} confirmed writes, none missing\n"
        f"runs that refused: {arena.refusals}\n"
    )
    return arena


@pytest.mark.full("real kills; plain runs play those of the simulation")
async def test_a_kill_of_mover_source_or_target_leaves_no_slot_half_way(
    cluster: RedisCluster, client: Client
) -> None:
    arena = await killed(cluster, client, [(who, False) for who in ("mover", "source", "target")])
    assert arena.caught == 3


@pytest.mark.full("thirty kills, half of them with a fail-over")
@pytest.mark.timeout(1_500)
async def test_ten_kills_of_each_lose_nothing_that_was_confirmed(
    cluster: RedisCluster, client: Client
) -> None:
    kills = [
        (who, number % 2 == 1) for number in range(10) for who in ("mover", "source", "target")
    ]
    arena = await killed(cluster, client, kills)
    assert arena.caught == 30
