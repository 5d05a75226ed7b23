"""On a cluster whose slots have very different sizes: no target is filled, the rate is held."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from random import Random

import pytest
from click.testing import CliRunner
from redis.asyncio import RedisCluster as Client
from redis.crc import key_slot

from heatsink.cli import main
from heatsink.cluster.nodes import ClusterNodes
from heatsink.cluster.sizes import ROOM
from heatsink.testing.redis import RedisCluster
from tests.servers import real

MB = 1_000_000
LIMIT = 18 * MB
RATE_S = 8 * MB
SMALL, LARGE = 30_000, 3_000_000
HOT = 40
OPTIONS = {"cluster-slot-stats-enabled": "yes"}
POLICIES = [
    "allkeys-lru",
    pytest.param("noeviction", marks=pytest.mark.full("allkeys-lru shows what is too much")),
]


@pytest.fixture(params=POLICIES)
def cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """Two of the nodes have little memory, and evict keys or refuse writes when it is full."""
    options = OPTIONS | {"maxmemory-policy": request.param}
    with real(lambda: RedisCluster(options=options)) as running:
        for master in running.masters[1:]:
            master.command("CONFIG", "SET", "maxmemory", str(LIMIT))
        yield running


async def fill(client: Client, rng: Random) -> list[str]:
    """Cold data on all nodes, and hot keys on the first. One in five of these is 100 × as large.

    Thousands of small keys beside them hide this from the mean size of a key.
    """
    names = [f"k{number}" for number in range(4_000)]
    first = [name for name in names if key_slot(name.encode()) < 5_461]
    hot = first[:HOT]
    async with client.pipeline() as pipeline:
        for name in names:
            pipeline.set(name, rng.randbytes(3_000 if name not in first else 50))
        await pipeline.execute()
    for number, name in enumerate(hot):
        await client.set(name, rng.randbytes(LARGE if number % 5 == 0 else SMALL))
    return hot


async def test_uneven_slots_fill_no_target_and_keep_to_the_rate(
    cluster: RedisCluster, client: Client, nodes: ClusterNodes
) -> None:
    hot = await fill(client, Random(1))
    keys = sum([int(master.command("DBSIZE")) for master in cluster.masters])
    stop = asyncio.Event()

    async def load() -> None:
        while not stop.is_set():
            async with client.pipeline() as pipeline:
                for name in hot:
                    pipeline.getrange(name, 0, 10)
                await pipeline.execute()
            await asyncio.sleep(0.01)

    loading = asyncio.ensure_future(load())
    words = ["--window", "0.3", "--idle", "0", "--rate", f"{RATE_S / MB}", "--apply", "--json"]
    words += ["--start", "1", "--stop", "1"]
    runner = CliRunner()
    result = await asyncio.to_thread(
        runner.invoke, main, ["cluster", "balance", cluster.url, *words]
    )
    stop.set()
    await loading
    topology = await nodes.topology()
    memories = [await nodes.memory(node.id, topology) for node in topology.primaries]
    evicted = [
        m.command("INFO", "stats").partition("evicted_keys:")[2][:2] for m in cluster.masters
    ]
    answer = json.loads(result.stdout)
    errors = [each["error"] for each in answer["reports"] if each["error"]]
    assert all(each.startswith("left out") for each in errors), "a node may be too full by now"
    assert evicted == ["0\r"] * 3
    assert sum([int(master.command("DBSIZE")) for master in cluster.masters]) >= keys
    assert all(each.used < 0.85 * each.limit for each in memories), f"{ROOM:.0%}, and noise"
    moved = [report for report in answer["reports"] if report["moved"]]
    assert sum(each["moved"] for each in moved) == sum(each.received or 0 for each in memories)
    assert sum(each["moved"] for each in moved) > LARGE
    assert all(each["moved"] <= each["job"]["most"] for each in moved)
    began_s = [each["at_s"] - each["took_s"] for each in moved]
    for each, from_s, to_s in zip(moved, began_s, began_s[1:], strict=False):
        assert each["moved"] <= 1.02 * RATE_S * (to_s - from_s)
    assert len(moved) > 1
    assert answer["busiest_to_mean"] < 0.8 * answer["plan"]["before"]
