"""Heatsink's queue on a cluster: its partitions' slots move, and a batch does not notice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from redis.crc import key_slot

import heatsink
from heatsink.bulk.actions import Actions, Context
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.settings import BulkSettings
from heatsink.client.queue import connect_queue
from heatsink.cluster.keys import queue_slots
from heatsink.cluster.mover import SlotMover
from heatsink.cluster.nodes import ClusterNodes
from heatsink.cluster.policy import SlotMove
from heatsink.cluster.rules import MoveLimits, SlotSettings
from heatsink.cluster.slots import SLOTS
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.subjects import Kind
from heatsink.server.api.calls.cluster import cluster_of
from heatsink.server.api.metrics import metrics_of
from heatsink.testing.redis import RedisCluster
from tests.servers import real
from tests.waiting import soon

PARTITIONS = 4
ITEMS = 2_000
SETTINGS = BulkSettings(partitions=PARTITIONS, durability="relaxed")
STATISTICS = {"cluster-slot-stats-enabled": "yes"}


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """A new one for each test, because slots rest after a move."""
    with real(lambda: RedisCluster(options=STATISTICS)) as running:
        yield running


async def move(nodes: ClusterNodes, slots: list[int]) -> None:
    """Move these slots to the next node, each by a migration of its own."""
    mover = SlotMover(nodes, MoveLimits(), SystemClock())
    for slot in slots:
        topology = await mover.check()
        ids = sorted(node.id for node in topology.primaries)
        source = topology.owners[slot]
        target = ids[(ids.index(source) + 1) % len(ids)]
        await mover.carry_out(SlotMove((slot,), source, target, 1_000, "a test"), topology)


class Counting:
    """An action that counts its items, and takes longer while slots move."""

    def __init__(self) -> None:
        self.done: Counter[int] = Counter()
        self.moved = asyncio.Event()
        self.actions = Actions()
        self.actions.action("count")(self._count)

    async def _count(self, item: int, _: Context) -> None:
        self.done[item] += 1
        for _wait in range(0 if self.done.total() < ITEMS / 4 else 10):
            if self.moved.is_set():
                return
            await asyncio.sleep(0.1)


async def ends_well(bulk: Bulk, batch: str, counting: Counting) -> None:
    progress = await bulk.wait(batch, timeout_s=60)
    assert (progress.state, progress.done, progress.failed) == ("done", ITEMS, 0)
    assert set(counting.done) == set(range(ITEMS))


async def test_a_batch_does_not_notice_that_the_slots_of_its_partitions_move(
    cluster: RedisCluster,
) -> None:
    counting = Counting()
    nodes = ClusterNodes(cluster.url, SystemClock(), Random(1))
    slots = [key_slot(f"partition_{number}".encode()) for number in range(PARTITIONS)]
    others = sorted(queue_slots(PARTITIONS) - set(slots))[:5]
    assert set(slots) <= queue_slots(PARTITIONS)
    async with connect_queue(cluster.url, SETTINGS) as queue:
        worker = queue.worker(counting.actions, workers=8)
        running = asyncio.ensure_future(worker.run())
        batch = await queue.bulk.submit("count", range(ITEMS))
        await soon(lambda: counting.done.total() > 50, "items run")
        before = (await nodes.topology()).owners
        await move(nodes, [*slots, *others])
        assert counting.done.total() < ITEMS, "the slots moved while the batch ran"
        counting.moved.set()
        after = (await nodes.topology()).owners
        assert all(before[slot] != after[slot] for slot in slots)
        await ends_well(queue.bulk, batch.id, counting)
        worker.stop()
        await running
    await nodes.close()


@pytest.mark.full("plain runs balance a cluster by the command")
async def test_the_coordinator_balances_the_cluster_of_its_queue(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    counting = Counting()
    slots = SlotSettings(balance=True, window_s=0.3, idle=0.0, start=1.01, stop=1.0)
    url = f"sqlite:///{tmp_path}/store.db"
    async with heatsink.connect(
        url, queue=cluster.url, cluster=cluster.url, slots=slots, bulk=SETTINGS
    ) as hs:
        worker = hs.worker(counting.actions, workers=8, workers_max=8)
        running = asyncio.ensure_future(worker.run())
        batch = await hs.bulk.submit("count", range(ITEMS))

        async def slots_have_moved() -> list[str]:
            entries = await hs.decisions()
            made = [decision for entry in entries for decision in entry.decisions]
            return [each.reason for each in made if each.subject.kind is Kind.SLOTS]

        await soon(slots_have_moved, "the leader moves slots")
        assert "takes" in (await slots_have_moved())[0]
        counting.moved.set()
        watch = hs.cluster_watch
        assert watch is not None
        assert watch.balancer.totals.slots > 0
        shown = cluster_of(hs)
        assert (len(shown.nodes), len(shown.heat), shown.balances) == (3, SLOTS, True)
        for ranges in (shown.owners, shown.owners_before):
            assert sum(each.last - each.first + 1 for each in ranges) == SLOTS
        assert "takes" in shown.moves[0].reason
        metrics = metrics_of(hs).text().decode()
        lines = [each for each in metrics.splitlines() if each.startswith("heatsink_cluster_")]
        assert len([each for each in lines if "node_used" in each]) == 3
        assert "heatsink_cluster_slots_moved_total 0.0" not in lines
        await ends_well(hs.bulk, batch.id, counting)
        worker.stop()
        await running


async def test_a_coordinator_leaves_the_slots_of_its_queue_where_they_are(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    counting = Counting()
    slots = SlotSettings(
        balance=True, window_s=0.2, idle=0.0, start=1.01, stop=1.0, leave_queue=PARTITIONS
    )
    url = f"sqlite:///{tmp_path}/store.db"
    async with heatsink.connect(
        url, queue=cluster.url, cluster=cluster.url, slots=slots, bulk=SETTINGS
    ) as hs:
        worker = hs.worker(counting.actions, workers=8, workers_max=8)
        running = asyncio.ensure_future(worker.run())
        batch = await hs.bulk.submit("count", range(ITEMS))
        watch = hs.cluster_watch
        assert watch is not None
        uneven: set[float] = set()

        def seen_uneven() -> bool:
            state = watch.balancer.state
            if state is not None and state.plan.before > 1.2:
                uneven.add(state.load.at_s)
            return len(uneven) >= 8

        await soon(seen_uneven, "the load is uneven in eight windows")
        state = watch.balancer.state
        assert state is not None
        queue = queue_slots(PARTITIONS)
        planned = {slot for move in state.plan.moves for slot in move.slots}
        moved = {slot for report in state.reports for slot in report.job.slots}
        assert queue.isdisjoint(planned | moved)
        counting.moved.set()
        await ends_well(hs.bulk, batch.id, counting)
        worker.stop()
        await running
