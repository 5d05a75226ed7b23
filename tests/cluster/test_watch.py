"""`heatsink cluster` as processes: two that watch, one of them killed, and a live view."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio import RedisCluster as Client
from redis.crc import key_slot

from heatsink.cluster.balance import ClusterMeter
from heatsink.cluster.nodes import ClusterNodes
from heatsink.cluster.policy import plan_moves
from heatsink.cluster.rules import SlotRules
from heatsink.primitives.clock import SystemClock
from heatsink.testing.redis import RedisCluster
from tests.servers import real
from tests.waiting import soon

OPTIONS = {"cluster-slot-stats-enabled": "yes"}
PACE_S = 0.01
ROWS = 4_000
WINDOW_S = 0.5


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with real(lambda: RedisCluster(replicas=1, options=OPTIONS)) as running:
        yield running


@asynccontextmanager
async def running() -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """Processes of `heatsink cluster`, ended after the block. The list may get more."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            await asyncio.to_thread(each.wait)


def command(words: list[str], output: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start `heatsink cluster …`, with its output in a file."""
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "heatsink", "cluster", *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )


@asynccontextmanager
async def load_on(client: Client, names: list[str]) -> AsyncIterator[None]:
    """Writes of these keys, all at the same rate, during the block."""
    stop = asyncio.Event()

    async def write() -> None:
        while not stop.is_set():
            async with client.pipeline() as pipeline:
                for name in names:
                    pipeline.incr(name)
                await pipeline.execute()
            await asyncio.sleep(PACE_S)

    writing = asyncio.ensure_future(write())
    try:
        yield
    finally:
        stop.set()
        await writing


async def names_on(nodes: ClusterNodes, count: int, at: int = 0) -> list[str]:
    """Names of keys in slots of one node."""
    topology = await nodes.topology()
    owner = sorted(node.id for node in topology.primaries)[at]
    names = (f"k{number}" for number in range(10**6))
    found = (name for name in names if topology.owners[key_slot(name.encode())] == owner)
    return [next(found) for _ in range(count)]


async def test_another_process_goes_on_when_the_one_that_balances_is_killed(
    cluster: RedisCluster, nodes: ClusterNodes, client: Client, tmp_path: Path
) -> None:
    words = ["balance", cluster.url, "--apply", "--watch", "--window", f"{WINDOW_S}", "--idle", "0"]
    outputs = [tmp_path / "one", tmp_path / "two"]
    names = await names_on(nodes, 120)
    async with running() as started:
        for output in outputs:
            started.append(command(words, output))

        def waiting() -> list[int]:
            said = "another process balances this cluster"
            return [at for at, output in enumerate(outputs) if said in output.read_text()]

        await soon(waiting, "one process waits")
        (second,) = waiting()
        first = 1 - second
        assert "moved slots" not in outputs[second].read_text()
        async with load_on(client, names):
            await soon(lambda: "moved slots" in outputs[first].read_text(), "slots move")
            started[first].kill()
            assert "moved slots" not in outputs[second].read_text()
        others = await names_on(nodes, 120, at=1)
        async with load_on(client, others):
            moved = "moved slots"
            await soon(lambda: moved in outputs[second].read_text(), "the other one goes on", 0.1)
        assert started[second].poll() is None


async def test_what_has_moved_before_ctrl_c_is_printed(
    cluster: RedisCluster, nodes: ClusterNodes, client: Client, tmp_path: Path
) -> None:
    """The rate cuts the move into migrations of one slot, with a pause after each."""
    output = tmp_path / "once"
    words = ["balance", cluster.url, "--apply", "--window", f"{WINDOW_S}", "--idle", "0"]
    owner = min(node.id for node in (await nodes.topology()).primaries)
    names = await names_on(nodes, 120)
    async with running() as started, load_on(client, names):
        before = await _count_of(nodes, owner)
        started.append(command([*words, "--rate", "0.001"], output))
        await soon(lambda: output.read_text().count("  moved ") >= 2, "slots move")
        started[0].send_signal(signal.SIGINT)
        await soon(lambda: started[0].poll() is not None, "the command ends")
        assert "The servers finish or undo a migration" in output.read_text()
    assert before - await _count_of(nodes, owner) >= output.read_text().count("  moved ") >= 2
    assert "Traceback" not in output.read_text()


async def _count_of(nodes: ClusterNodes, owner: str) -> int:
    return [*(await nodes.topology()).owners.values()].count(owner)


async def test_a_live_view_is_drawn_again_until_it_is_stopped(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    output = tmp_path / "view"
    words = ["look", cluster.url, "--live", "--window", "0.1"]
    async with running() as started:
        started.append(command(words, output, FORCE_COLOR="1", TERM="xterm", COLUMNS="120"))
        await soon(lambda: output.read_text().count("mean load") >= 3, "three views are drawn")
        assert output.read_text().count("÷ mean") >= 3
        started[0].send_signal(signal.SIGINT)
        await soon(lambda: started[0].poll() is not None, "the command ends")
    assert "Traceback" not in output.read_text()


async def test_a_node_that_fails_for_a_while_ends_neither_view_nor_watch(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    """Both say once what is wrong, and go on afterwards."""
    view, watch = tmp_path / "view", tmp_path / "watch"
    shape = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}
    replica = cluster.replicas[0]
    down, drawn = f"{replica.address} does not answer", "mean load"
    async with running() as started:
        started.append(command(["look", cluster.url, "--live", "--window", "0.1"], view, **shape))
        words = ["balance", cluster.url, "--apply", "--watch", "--window", "0.1"]
        started.append(command(words, watch))
        await soon(lambda: drawn in view.read_text(), "the first view is drawn", 0.1)
        await soon(lambda: "too little to act" in watch.read_text(), "the watch is calm", 0.1)
        await asyncio.to_thread(replica.kill)
        await soon(lambda: down in view.read_text(), "the view names the node", 0.1)
        await soon(lambda: down in watch.read_text(), "the watch names the node", 0.1)
        replica.start()  # not in a thread: the server would end with it
        calm = "too little to act"
        await soon(lambda: calm in watch.read_text().rpartition(down)[2], "the watch is calm", 0.1)
        await soon(lambda: drawn in view.read_text().rpartition(down)[2], "the view goes on", 0.1)
        assert [each.poll() for each in started] == [None, None]
    assert watch.read_text().count(down) == 1


async def test_a_live_node_with_other_functions_or_users_gets_no_slot(
    cluster: RedisCluster, nodes: ClusterNodes
) -> None:
    code = "#!lua name=ours\nserver.register_function('f', function() return 1 end)"
    strange = cluster.masters[2]

    async def unlike() -> tuple[str, ...]:
        load = await ClusterMeter(nodes, SystemClock()).measure(0.05, 1)
        return plan_moves(load, SlotRules()).unlike

    assert await unlike() == ()
    driver: Any = Redis(port=strange.port)
    await driver.execute_command("FUNCTION", "LOAD", code)
    assert await unlike() == (strange.address,)
    await driver.execute_command("FUNCTION", "DELETE", "ours")
    assert await unlike() == ()
    await driver.execute_command("ACL", "SETUSER", "guest", "on", ">secret", "~*", "+get")
    assert await unlike() == (strange.address,)
    await driver.execute_command("ACL", "DELUSER", "guest")
    assert await unlike() == ()
    await driver.aclose()


async def test_writes_weigh_as_much_as_reads_of_equal_cost(
    nodes: ClusterNodes, client: Client
) -> None:
    """One node only writes, the others only read. Replicas count the writes again."""
    (written,), *read = [await names_on(nodes, 1, at) for at in range(3)]
    for name in [written, *(each for (each,) in read)]:
        await client.rpush(name, *["x" * 20] * ROWS)
    stop = asyncio.Event()

    async def ask() -> None:
        while not stop.is_set():
            async with client.pipeline() as pipeline:
                for _ in range(10):
                    pipeline.lset(written, ROWS // 2, "y" * 20)
                    for (name,) in read:
                        pipeline.lindex(name, ROWS // 2)
                await pipeline.execute()
            await asyncio.sleep(PACE_S)

    asking = asyncio.ensure_future(ask())
    try:
        before = await nodes.snapshot(await nodes.topology(), {})
        load = await ClusterMeter(nodes, SystemClock()).measure(WINDOW_S)
        after = await nodes.snapshot(await nodes.topology(), {})
    finally:
        stop.set()
        await asking
    slots = {slot.slot: slot for slot in load.slots}
    cost = {
        slot: after.slots[slot].cpu_us - before.slots[slot].cpu_us
        for slot in (key_slot(name.encode()) for name in (written, read[0][0]))
    }
    (write, write_cost), (other, read_cost) = cost.items()
    weights = slots[write].cpu / slots[other].cpu
    assert weights == pytest.approx(write_cost / read_cost, rel=0.3)
    assert slots[write].replicated_cpu > 0
    assert slots[write].reads_cpu == 0
    assert slots[write].heat == slots[write].cpu


async def test_reads_on_a_replica_are_told_from_replicated_writes(
    nodes: ClusterNodes, client: Client
) -> None:
    ((written, read),) = [await names_on(nodes, 2)]
    for name in (written, read):
        await client.rpush(name, *["x" * 20] * ROWS)
    topology = await nodes.topology()
    owner = topology.owners[key_slot(read.encode())]
    replica: Any = Redis(port=topology.replicas(owner)[0].port)
    await replica.execute_command("READONLY")
    stop = asyncio.Event()

    async def ask() -> None:
        while not stop.is_set():
            for _ in range(10):
                await client.lset(written, ROWS // 2, "y" * 20)
                await replica.lindex(read, ROWS // 2)
            await asyncio.sleep(PACE_S)

    asking = asyncio.ensure_future(ask())
    try:
        load = await ClusterMeter(nodes, SystemClock()).measure(WINDOW_S)
    finally:
        stop.set()
        await asking
        await replica.aclose()
    slots = {slot.slot: slot for slot in load.slots}
    there, here = slots[key_slot(read.encode())], slots[key_slot(written.encode())]
    assert there.reads_cpu > 10 * there.cpu
    assert there.reads_s > 0
    assert here.reads_cpu == 0
    assert here.replicated_cpu > 0 < here.cpu


async def test_keys_are_ranked_where_the_server_counts_their_uses(
    cluster: RedisCluster, client: Client
) -> None:
    """The hottest of 300 keys of a slot is found; without counts, nothing is said to be hottest."""
    names = [f"{{tag}}:{number}" for number in range(300)]

    async def looked() -> dict[str, object]:
        words = ["look", cluster.url, "--window", "0.2", "--json"]
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "heatsink", "cluster", *words],
            check=True,
            capture_output=True,
        )
        slots = json.loads(ran.stdout)["slots"]
        found: dict[str, object] = next(s for s in slots if s["slot"] == key_slot(b"{tag}"))
        return found

    async with client.pipeline() as pipeline:
        for name in names:
            pipeline.set(name, 0)
        await pipeline.execute()
    async with load_on(client, [names[77]]):
        assert (await looked())["are_hottest"] is False
        for master in cluster.masters:
            master.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
        try:
            answer = await looked()
        finally:
            for master in cluster.masters:
                master.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert answer["are_hottest"] is True
    assert answer["key_names"][0] == names[77]  # type: ignore[index]
