"""Planner, mover, lease and loop among failures: two processes balance one cluster.

They are the production code, on a `Cluster` that checks every order. Nodes die, others move slots,
and the processes are killed and started again.

After the faults, the load changes every minute, and no slot may follow it back and forth. At the
end the load is steady, and the cluster must become balanced.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

from heatsink.cluster.answers import Topology
from heatsink.cluster.balance import Balancer, ClusterLease, ClusterMeter
from heatsink.cluster.load import usage_of
from heatsink.cluster.mover import SlotMover
from heatsink.cluster.policy import SlotMove, SlotPolicy, plan_moves
from heatsink.errors import HeatsinkError
from heatsink.registry.decisions import Decision
from heatsink.testing.clocks import SkewedClock, run_on_virtual_time
from tests.simulation.history import Violation

from .checked_cluster import RULES, Cluster

WINDOW_S = 5.0
CALM_S = 900.0
STORMY_S = 900.0
FLAPPING_S = 600.0
MISJUDGED = 0.1  # of a node's load, by noise
LEAST = 0.01  # of a core


class Seen:
    """The cluster, as one process sees it. `life` is the number of the process."""

    def __init__(self, cluster: Cluster, life: int) -> None:
        self._cluster = cluster
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def start(self, move: SlotMove, topology: Topology) -> None:
        await self._cluster.start(move, topology, self._life)


class Restless:
    """A balancer that is killed at any moment and started again, without memory."""

    def __init__(self, cluster: Cluster, clock: SkewedClock, rng: Random, name: str) -> None:
        self._cluster = cluster
        self._clock = clock
        self._rng = rng
        self._name = name
        self.errors: list[str] = []

    async def run(self, until_s: float, killed: bool) -> None:
        while self._clock.monotonic_s() < until_s:
            life = self._cluster.born()
            left_s = until_s - self._clock.monotonic_s()
            lives_s = min(self._rng.uniform(5, 300), left_s) if killed else left_s
            with suppress(TimeoutError):
                async with asyncio.timeout(lives_s):
                    await self._live(life)
            self._cluster.alive.discard(life)
            if killed:
                self._cluster.events["balancers were killed"] += 1

    async def _live(self, life: int) -> None:
        name = f"{self._name}-{life}"
        seen: Any = Seen(self._cluster, life)
        meter = ClusterMeter(seen, self._clock)
        mover = SlotMover(seen, self._cluster.orders, self._clock)
        balancer = Balancer(meter, SlotPolicy(RULES), mover, published, self._clock, WINDOW_S)
        lease = ClusterLease(seen, name, self._clock)
        while True:
            try:
                if await lease.take():
                    async with lease.kept():
                        await balancer.run_once(leads=lambda: lease.is_held)
                else:
                    self._cluster.events["a balancer waited for another"] += 1
            except HeatsinkError as error:
                self.errors.append(str(error))
            await self._clock.sleep(WINDOW_S / 2)


async def published(decisions: list[Decision]) -> list[Decision]:
    return decisions


def simulate(seed: int) -> Cluster:
    """Play one seed. Raises `Violation`."""
    return run_on_virtual_time(_simulate(Random(seed)))


async def _simulate(rng: Random) -> Cluster:
    clock = SkewedClock()
    cluster = Cluster(rng, clock)
    balancers = [Restless(cluster, clock, rng, name) for name in ("one", "two")]

    async def run(lasts_s: float, killed: bool) -> None:
        until_s = clock.monotonic_s() + lasts_s
        async with asyncio.TaskGroup() as group:
            for each in balancers:
                group.create_task(each.run(until_s, killed))

    trouble = asyncio.ensure_future(cluster.misbehave())
    try:
        await run(STORMY_S, killed=True)
        trouble.cancel()
        with suppress(asyncio.CancelledError):
            await trouble
        cluster.failing.clear()
        await clock.sleep(600.0)  # slow migrations end by themselves
        cluster._advance()
        cluster.is_steady = cluster.flaps = True
        await run(FLAPPING_S, killed=False)
        cluster.flaps = False
        cluster.left.clear()
        await run(CALM_S, killed=False)
        await _check_end(cluster, clock)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return cluster


async def _check_end(cluster: Cluster, clock: SkewedClock) -> None:
    if cluster.running:
        raise Violation("a migration was left running")
    load = await ClusterMeter(cluster, clock).measure(WINDOW_S)
    pairs = [(f"{node.id} uses", cluster.used(node.id), node.used) for node in usage_of(load)]
    pairs += [("reads on replicas use", cluster.reads, sum(slot.reads_cpu for slot in load.slots))]
    for what, true, measured in pairs:
        if abs(measured - true) > max(MISJUDGED * true, LEAST):
            raise Violation(f"{what} {true:.1%} of a core, and {measured:.1%} was measured")
    if cluster.is_bound:
        return
    cluster.check_relief()
    plan = plan_moves(load, RULES)
    best = max(RULES.start, plan.ceiling.ratio if plan.ceiling else 0.0)
    may_balance = not (cluster.is_tight or cluster.is_crowded or cluster.is_uneven)
    if plan.before > best * 1.08 and may_balance:
        raise Violation(f"the busiest node still has {plan.before:.2f} × the mean, not {best:.2f}")
