"""On a real cluster: heat is seen, slots move while clients write, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result
from redis.asyncio import RedisCluster as Client
from redis.crc import key_slot

import heatsink
from heatsink.cli import main
from heatsink.cluster.answers import NoSlotStatistics
from heatsink.cluster.mover import SlotMover, Unsafe
from heatsink.cluster.nodes import ClusterNodes
from heatsink.cluster.policy import SlotMove
from heatsink.cluster.rules import MoveLimits
from heatsink.cluster.slots import SLOTS, key_in
from heatsink.primitives.clock import SystemClock
from heatsink.stores.redis.connection import open_driver
from heatsink.testing.redis import RedisCluster, RedisServer
from tests.servers import real
from tests.tls import HOST, certificate_file, tls_before
from tests.waiting import soon

PACE_S = 0.005


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with real(RedisCluster) as running:
        yield running


async def run(*words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["cluster", *words])


async def test_the_setting_that_is_missing_is_named_and_can_be_turned_on(
    cluster: RedisCluster, nodes: ClusterNodes, client: Client
) -> None:
    for master in cluster.masters:
        master.command("CONFIG", "SET", "cluster-slot-stats-enabled", "no")
    with pytest.raises(NoSlotStatistics, match="--enable"):
        await nodes.snapshot(await nodes.topology(), {})
    refused = await run("look", cluster.url, "--window", "0.1")
    assert refused.exit_code == 1
    assert "cluster-slot-stats-enabled" in refused.stderr
    for number in range(200):
        await client.set("{hot}", f"value {number}")
    shown = await run("look", cluster.url, "--window", "0.1", "--enable", "--json")
    assert shown.exit_code == 0, shown.stderr
    answer = json.loads(shown.stdout)
    owners = {node.id: node.address for node in (await nodes.topology()).primaries}
    assert {node["id"]: node["node"] for node in answer["nodes"]} == owners


async def test_a_terminal_is_asked_whether_to_turn_the_setting_on(cluster: RedisCluster) -> None:
    for master in cluster.masters:
        master.command("CONFIG", "SET", "cluster-slot-stats-enabled", "no")
    assert await asyncio.to_thread(answered, cluster.url, b"n\n") == 1
    assert await asyncio.to_thread(answered, cluster.url, b"y\n") == 0


def answered(url: str, answer: bytes) -> int:
    """Run `heatsink cluster look` at a terminal, where somebody types this answer."""
    ours, terminal = pty.openpty()
    words = [sys.executable, "-m", "heatsink", "cluster", "look", url, "--window", "0.1"]
    try:
        os.write(ours, answer)
        return subprocess.run(
            words, stdin=terminal, stderr=terminal, stdout=subprocess.DEVNULL, check=False
        ).returncode
    finally:
        os.close(ours)
        os.close(terminal)


async def test_a_node_that_loses_the_setting_gets_it_again(
    cluster: RedisCluster, nodes: ClusterNodes
) -> None:
    """The setting ends when a server restarts."""
    for master in cluster.masters[1:]:
        master.command("CONFIG", "SET", "cluster-slot-stats-enabled", "yes")
    lost = cluster.masters[0]
    lost.command("CONFIG", "SET", "cluster-slot-stats-enabled", "no")
    with pytest.raises(NoSlotStatistics, match=lost.address):
        await nodes.snapshot(await nodes.topology(), {})
    nodes.enables = True
    snapshot = await nodes.snapshot(await nodes.topology(), {})
    assert len(snapshot.slots) == SLOTS


async def test_addresses_are_whole_in_a_narrow_terminal(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = await run("look", cluster.url, "--window", "0.1", "--enable")
    assert all(shown.stdout.count(master.address) >= 1 for master in cluster.masters)


async def test_slots_move_while_clients_write_and_every_write_is_kept(
    nodes: ClusterNodes, client: Client
) -> None:
    slot = key_slot(b"{hot}")
    written, stop = 0, asyncio.Event()

    async def write() -> None:
        nonlocal written
        while not stop.is_set():
            await client.rpush("{hot}:list", written)
            written += 1

    writer = asyncio.ensure_future(write())
    mover = SlotMover(nodes, MoveLimits(), SystemClock())
    for _ in range(3):
        began = written
        await soon(lambda: written > began + 20, "clients write")  # noqa: B023
        topology = await mover.check()
        source = topology.owners[slot]
        target = next(node.id for node in topology.primaries if node.id != source)
        await mover.carry_out(SlotMove((slot,), source, target, 1_000, "a test"), topology)
        assert (await nodes.topology()).owners[slot] == target
    stop.set()
    await writer
    kept = [int(each) for each in await client.lrange("{hot}:list", 0, -1)]
    assert kept == list(range(written))


async def test_many_moved_slots_break_no_request_of_our_driver(nodes: ClusterNodes) -> None:
    """Requests are under way in many tasks while a dozen slots get another owner."""
    slots = range(100, 112)
    topology = await nodes.topology()
    source = topology.owners[slots[0]]
    target = next(node.id for node in topology.primaries if node.id != source)
    driver: Any = open_driver(nodes.address)
    asked, stop = Counter[int](), asyncio.Event()

    async def ask(slot: int) -> None:
        while not stop.is_set():
            await driver.rpush(f"{key_in(slot)}:list", 1)
            asked[slot] += 1

    def are_answered() -> bool:
        return len(asked) == len(slots) or any(each.done() for each in asking)

    asking = [asyncio.ensure_future(ask(slot)) for slot in slots for _ in range(3)]
    try:
        mover = SlotMover(nodes, MoveLimits(), SystemClock())
        move = SlotMove(tuple(slots), source, target, 1_000, "a test")
        await soon(are_answered, "requests are under way")
        await mover.carry_out(move, await mover.check())
        asked.clear()
        await soon(are_answered, "requests go on")
        stop.set()
        await asyncio.gather(*asking)
    finally:
        stop.set()
        await asyncio.gather(*asking, return_exceptions=True)
        await driver.aclose()


async def test_a_running_migration_is_cancelled(nodes: ClusterNodes, client: Client) -> None:
    slot, names = key_slot(b"{large}"), [f"{{large}}:{number}" for number in range(40)]
    for name in names:
        await client.set(name, bytes(1_000_000))
    topology = await nodes.topology()
    source = topology.owners[slot]
    target = next(node.id for node in topology.primaries if node.id != source)
    await nodes.start(SlotMove((slot,), source, target, 40_000_000, "a test"), topology)
    await nodes.cancel(source, topology)

    async def has_ended() -> bool:
        return all(each.has_ended for each in await nodes.migrations(topology))

    await soon(has_ended, "the migration has ended")
    states = [each.state for each in await nodes.migrations(topology) if each.slots == {slot}]
    assert states == ["cancelled"]
    assert (await nodes.topology()).owners[slot] == source
    assert await client.exists(*names) == len(names)


async def test_an_order_to_cancel_that_comes_too_late_does_no_harm(nodes: ClusterNodes) -> None:
    topology = await nodes.topology()
    await nodes.cancel(topology.owners[0], topology)


async def test_a_plan_that_is_out_of_date_moves_nothing(nodes: ClusterNodes) -> None:
    mover = SlotMover(nodes, MoveLimits(), SystemClock())
    topology = await mover.check()
    owner = topology.owners[0]
    others = [node.id for node in topology.primaries if node.id != owner]
    with pytest.raises(Unsafe, match="plan again"):
        await mover.carry_out(SlotMove((0,), others[0], others[1], 0, "a test"), topology)
    assert (await nodes.topology()).owners[0] == owner


@asynccontextmanager
async def busy_first_node(nodes: ClusterNodes, client: Client) -> AsyncIterator[None]:
    """Load on keys of one node, during the block."""
    stop = asyncio.Event()

    async def load() -> None:
        while not stop.is_set():
            async with client.pipeline() as pipeline:
                for name in hot:
                    pipeline.incr(name)
                await pipeline.execute()
            await asyncio.sleep(PACE_S)

    owners = (await nodes.topology()).owners
    names = [f"k{number}" for number in range(300)]
    hot = [name for name in names if owners[key_slot(name.encode())] == owners[0]]
    loader = asyncio.ensure_future(load())
    try:
        yield
    finally:
        stop.set()
        await loader


OPTIONS = ("--window", "0.3", "--idle", "0", "--json")


async def test_balance_moves_slots_and_records_why(
    cluster: RedisCluster, nodes: ClusterNodes, client: Client, tmp_path: Path
) -> None:
    await run("look", cluster.url, "--window", "0.1", "--enable")
    store = f"sqlite:///{tmp_path}/history.db"
    async with heatsink.connect(store):
        pass  # the store of a deployment
    async with busy_first_node(nodes, client):
        planned = await run("balance", cluster.url, *OPTIONS, "--commands")
        moved = await run("balance", cluster.url, *OPTIONS, "--apply", "--store", store)
    assert planned.exit_code == moved.exit_code == 0, moved.stderr
    plan = json.loads(planned.stdout)
    assert plan["before"] > 2
    assert all("CLUSTER MIGRATESLOTS SLOTSRANGE" in each for each in plan["commands"])
    assert {each["target"] for each in plan["moves"]} <= plan["nodes"].keys()
    result = json.loads(moved.stdout)
    assert result["busiest_to_mean"] < result["plan"]["before"]
    told = await asyncio.to_thread(
        CliRunner().invoke, main, ["decisions", "--store", store, "--json"]
    )
    assert "takes" in told.stdout


async def test_a_store_that_is_missing_is_named_before_anything_moves(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/none.db"
    result = await run("balance", cluster.url, *OPTIONS, "--apply", "--store", url)
    assert result.exit_code != 0
    assert "none.db" in result.stderr


async def test_a_new_process_keeps_the_budget_of_the_hour(nodes: ClusterNodes) -> None:
    first, second = (SlotMover(nodes, MoveLimits(), SystemClock()) for _ in range(2))
    topology = await first.check()
    source = topology.owners[7]
    target = next(node.id for node in topology.primaries if node.id != source)
    before = first.room()
    await first.carry_out(SlotMove((7,), source, target, 1_000, "a test"), topology)
    assert first.room() == before - 1
    assert 7 in await second.recent()
    assert second.room() == first.room()
    nearly_used = MoveLimits(slots_per_hour=MoveLimits().slots_per_hour - before + 2)
    second.adopt(nearly_used)
    cut = await second.next_job(SlotMove((8, 9), source, target, 0, "a test"), await second.check())
    assert (cut.job.slots, cut.rest.slots) == ((8,), (9,)), "one slot is left of the hour's budget"


async def documented_acl(cluster: RedisCluster, user: str, *less: str) -> str:
    """Make a user with the permissions that the documentation names; return its URL."""
    page = (Path(__file__).parents[2] / "docs/how-to/balance-a-cluster.md").read_text()
    line = next(each for each in page.splitlines() if each.startswith("ACL SETUSER heatsink"))
    words = [*line.split()[3:], "on", f">{user}", *less]
    for master in cluster.masters:
        assert master.command("ACL", "SETUSER", user, *words) == "OK"
    return cluster.url_for(user, user)


@pytest.mark.full("a login on a live cluster; plain runs balance one without")
async def test_the_documented_permissions_suffice(
    cluster: RedisCluster, nodes: ClusterNodes, client: Client
) -> None:
    await run("look", cluster.url, "--window", "0.1", "--enable")
    url = await documented_acl(cluster, "balancer")
    async with busy_first_node(nodes, client):
        looked = await run("look", url, "--window", "0.2", "--json")
        moved = await run("balance", url, *OPTIONS, "--apply", "--start", "1", "--stop", "1")
    assert looked.exit_code == moved.exit_code == 0, looked.stderr + moved.stderr
    assert "refuse" not in looked.stderr + moved.stderr
    assert json.loads(looked.stdout)["slots"][0]["key_names"]


async def test_a_user_who_may_not_confirm_moves_is_refused_before_any(
    cluster: RedisCluster, nodes: ClusterNodes, client: Client
) -> None:
    await run("look", cluster.url, "--window", "0.1", "--enable")
    url = await documented_acl(cluster, "hasty", "-set")
    before = (await nodes.topology()).owners
    async with busy_first_node(nodes, client):
        refused = await run("balance", url, *OPTIONS, "--apply")
    assert refused.exit_code == 1
    assert "refuses SET" in refused.stderr
    assert "docs/how-to/balance-a-cluster.md" in refused.stderr
    assert (await nodes.topology()).owners == before


async def test_a_user_who_may_not_list_keys_sees_the_slots(
    cluster: RedisCluster, nodes: ClusterNodes, client: Client
) -> None:
    await run("look", cluster.url, "--window", "0.1", "--enable")
    url = await documented_acl(cluster, "reader", "-cluster|getkeysinslot")
    async with busy_first_node(nodes, client):
        looked = await run("look", url, "--window", "0.3", "--json")
    assert looked.exit_code == 0, looked.stderr
    answer = json.loads(looked.stdout)
    assert {tuple(each["key_names"]) for each in answer["slots"]} == {()}
    assert {each["node"] for each in answer["slots"]} <= {each["node"] for each in answer["nodes"]}


@pytest.mark.full("one look at a live cluster is enough in plain runs")
async def test_commands_are_sampled_where_there_are_no_statistics(
    cluster: RedisCluster, nodes: ClusterNodes, client: Client
) -> None:
    url = await documented_acl(cluster, "sampler", "-cluster|slot-stats", "+monitor")
    async with busy_first_node(nodes, client):
        looked = await run("look", url, "--window", "0.3", "--json")
    assert looked.exit_code == 0, looked.stderr
    assert "sampled" in looked.stderr
    ratios = [node["ratio"] for node in json.loads(looked.stdout)["nodes"]]
    assert max(ratios) > 2


async def test_a_user_without_permission_is_named(cluster: RedisCluster) -> None:
    url = await documented_acl(cluster, "stranger", "-@all", "+ping")
    result = await run("look", url)
    assert result.exit_code == 1
    assert "permissions in docs/how-to/balance-a-cluster.md" in result.stderr


@pytest.mark.full("tests/stores reaches every master of a cluster by TLS")
async def test_a_cluster_behind_tls_is_measured(tmp_path: Path) -> None:
    authority = trustme.CA()
    async with AsyncExitStack() as stack:
        cluster = stack.enter_context(
            real(lambda: RedisCluster(options={"cluster-slot-stats-enabled": "yes"}))
        )
        ports = []
        for master in cluster.masters:
            ports.append(await stack.enter_async_context(tls_before(master.port, authority)))
            master.command("CONFIG", "SET", "cluster-announce-port", str(ports[-1]))

        def announced() -> bool:
            lines = cluster.masters[0].command("CLUSTER", "NODES")
            return all(f":{port}" in lines for port in ports)

        await soon(announced, "the nodes announce the ports with TLS")
        url = f"rediss+cluster://{HOST}:{ports[0]}"
        authority_file = certificate_file(authority, tmp_path)
        looked = await run("look", f"{url}?ca={authority_file}", "--window", "0.2")
        refused = await run("look", url)
    assert looked.exit_code == 0, looked.stderr
    assert refused.exit_code == 1
    assert "certificate that is not trusted" in refused.stderr


async def test_only_one_of_two_processes_balances(nodes: ClusterNodes) -> None:
    topology = await nodes.topology()
    assert await nodes.lead("one", 5_000, topology)
    assert not await nodes.lead("two", 5_000, topology)
    assert await nodes.lead("one", 1, topology)
    await soon(partial(nodes.lead, "two", 1, topology), "the lease ends")


async def test_nodes_of_equal_speed_have_equal_capacity(nodes: ClusterNodes) -> None:
    speeds = await nodes.speeds(await nodes.topology())
    assert len(speeds) == 3
    assert sum(speeds.values()) == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("balance", "redis+cluster://h", "--watch"), "--apply"),
        (("balance", "redis+cluster://h", "--watch", "--apply", "--json"), "--json"),
        (("balance", "redis+cluster://h", "--pinned", "5,x"), "5,7-9"),
        (("balance", "redis+cluster://h", "--pinned", "16384"), "0 to 16383"),
        (("balance", "redis+cluster://h", "--hours", "25:00-26:00"), "22:00-06:00"),
        (("balance", "redis+cluster://h", "--cores", "h:1"), "10.0.0.1:6379=2"),
        (("balance", "redis+cluster://h", "--start", "1.1", "--stop", "1.5"), "start must be"),
        (("look", "redis+sentinel://h/service"), "redis+cluster://"),
        (("look", "nonsense"), "redis+cluster://"),
        (("look", "redis+cluster://h", "--live", "--json"), "--json"),
    ],
)
async def test_a_mistake_is_named_with_its_cure(words: tuple[str, ...], cure: str) -> None:
    result = await run(*words)
    assert result.exit_code == 2, result.output
    assert cure in result.stderr


async def test_a_server_that_is_no_cluster_is_named() -> None:
    with real(RedisServer) as server:
        result = await run("look", server.url)
    assert result.exit_code == 2, result.output
    assert "is not a node of a cluster" in result.stderr


async def test_nodes_are_reached_at_the_endpoints_for_clients() -> None:
    """A name that does not resolve here does no harm if clients are told to use addresses."""
    with real(lambda: RedisCluster(options={"cluster-announce-hostname": "nowhere.invalid"})) as c:
        looked = await run("look", c.url, "--window", "0.1", "--enable")
    assert looked.exit_code == 0, looked.stderr
