"""Three primaries with replicas under Zipf load: balancing lowers the busiest node's load.

No client gets an error, and no confirmed write is lost.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from random import Random

import msgspec
import pytest
from redis.asyncio import RedisCluster as Client

from heatsink.cluster.balance import Balancer, ClusterMeter
from heatsink.cluster.load import ClusterLoad
from heatsink.cluster.mover import SlotMover
from heatsink.cluster.nodes import ClusterNodes
from heatsink.cluster.policy import SlotPolicy, plan_moves
from heatsink.cluster.rules import MoveLimits, SlotRules
from heatsink.primitives.clock import SystemClock
from heatsink.registry.decisions import Decision
from heatsink.testing.redis import RedisCluster
from tests.servers import real

from .clients import ConfirmedWriter, ZipfLoad, zipf_keys

RULES = SlotRules(idle=0.0, start=1.12, stop=1.05, patience=1)
OPTIONS = {
    "cluster-node-timeout": "5000",
    "cluster-slot-stats-enabled": "yes",
    "repl-diskless-sync-delay": "0",
}
LISTS = [f"confirmed:{number}" for number in range(40)]
BALANCED = 1.15
WITHIN_S = 120.0
LOAD = 0.25  # of what the clients can send


class Balanced(msgspec.Struct):
    """What balancing has brought, and when slots moved."""

    before: float
    after: float
    ceiling: float
    moving_s: float
    ended_s: float
    slots: int

    @property
    def took_s(self) -> float:
        return self.ended_s - self.moving_s


class Outcome(Balanced):
    """What a run has shown."""

    per_s: float
    quiet_p99_ms: float
    moving_p99_ms: float
    confirmed: int
    missing: int
    errors: list[str]

    @property
    def words(self) -> str:
        limit = f"ceiling of the hottest slot {self.ceiling:.2f}" if self.ceiling else "no ceiling"
        return (
            f"busiest ÷ mean {self.before:.2f} → {self.after:.2f} ({limit}) in {self.took_s:.0f} s "
            f"by {self.slots} slots; {self.per_s:.0f} requests/s, "
            f"p99 {self.quiet_p99_ms:.1f} ms before, "
            f"{self.moving_p99_ms:.1f} ms while slots moved; {self.confirmed} writes confirmed, "
            f"{self.missing} missing; {len(self.errors)} errors"
        )


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with real(lambda: RedisCluster(replicas=1, options=OPTIONS)) as running:
        yield running


async def balance_under_load(
    cluster: RedisCluster, client: Client, per_s: float, window_s: float, within_s: float
) -> Outcome:
    """Run the load, wait for its imbalance, balance, and look at the result.

    On a busy machine, the load is less than `per_s`: a part of what the clients can send there.
    """
    rng = Random(11)
    crowded = await asyncio.to_thread(asyncio.run, slots_of_one_node(cluster.url))
    load = ZipfLoad(client, zipf_keys(rng, crowded), rng)
    writer = ConfirmedWriter([node.port for node in cluster.masters], LISTS)
    await load.fill()
    per_s = min(per_s, LOAD * await load.capacity())
    stop = asyncio.Event()
    running = [asyncio.ensure_future(each) for each in (load.run(per_s, stop), writer.run(stop))]
    try:
        # In a thread: otherwise clients would wait while the balancer computes.
        done = await asyncio.to_thread(asyncio.run, balance(cluster.url, window_s, within_s))
    finally:
        stop.set()
        await asyncio.gather(*running)
    missing = await writer.missing(client)
    await writer.close()
    return Outcome(
        **msgspec.structs.asdict(done),
        per_s=per_s,
        quiet_p99_ms=load.p99_ms(last_s=done.moving_s),
        moving_p99_ms=load.p99_ms(done.moving_s, done.ended_s),
        confirmed=len(writer.confirmed),
        missing=len(missing),
        errors=load.errors + [""] * writer.failed,
    )


async def slots_of_one_node(url: str) -> set[int]:
    nodes = ClusterNodes(url, SystemClock(), Random(1))
    owners = (await nodes.topology()).owners
    await nodes.close()
    return {slot for slot, owner in owners.items() if owner == owners[0]}


async def balance(url: str, window_s: float, within_s: float) -> Balanced:
    """Measure, and balance until the goal is reached, or for `within_s`."""
    clock = SystemClock()
    nodes = ClusterNodes(url, clock, Random(1))

    async def published(decisions: list[Decision]) -> list[Decision]:
        return decisions

    try:
        planned = plan_moves(await ClusterMeter(nodes, clock).measure(window_s), RULES)
        mover, meter = SlotMover(nodes, MoveLimits(), clock), ClusterMeter(nodes, clock)
        balancer = Balancer(meter, SlotPolicy(RULES), mover, published, clock, window_s)
        moving_s = time.monotonic()
        now = planned.before
        ceiling = planned.ceiling.ratio if planned.ceiling else 0.0
        while now > max(BALANCED, ceiling * 1.05) and time.monotonic() < moving_s + within_s:
            await balancer.run_once()
            if balancer.totals.migrations and balancer.state:
                now = ratio_of(await ClusterMeter(nodes, clock).measure(window_s))
            await asyncio.sleep(0.1)
        ended_s = time.monotonic()
    finally:
        await nodes.close()
    return Balanced(planned.before, now, ceiling, moving_s, ended_s, balancer.totals.slots)


def ratio_of(load: ClusterLoad) -> float:
    return plan_moves(load, RULES).before


@pytest.mark.full("load on six servers; plain runs balance three: test_live.py")
async def test_balancing_a_short_load_lowers_the_busiest_node_and_loses_nothing(
    cluster: RedisCluster, client: Client
) -> None:
    outcome = await balance_under_load(cluster, client, 200.0, 1.0, 30.0)
    sys.stdout.write(f"{outcome.words}\n")
    assert outcome.before > 1.4
    assert outcome.after < outcome.before - 0.2, outcome.words
    assert outcome.errors == []
    assert outcome.confirmed > 100
    assert outcome.missing == 0


@pytest.mark.full("two minutes of load on six servers")
@pytest.mark.timeout(400)
async def test_zipf_load_is_balanced_within_two_minutes(
    cluster: RedisCluster, client: Client
) -> None:
    outcome = await balance_under_load(cluster, client, 300.0, 5.0, WITHIN_S)
    sys.stdout.write(f"{outcome.words}\n")
    assert outcome.after <= max(BALANCED, outcome.ceiling * 1.05), outcome.words
    assert outcome.took_s <= WITHIN_S
    assert outcome.errors == []
    assert outcome.missing == 0
