"""A cluster on virtual time, in which nodes die, others move slots, and balancers are killed.

The production planner, mover and loop run against it. The cluster checks every order that it gets.
After the faults, the load changes every minute, and no slot may follow it back and forth. At the
end the load is steady, and the cluster must become balanced.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from random import Random

import msgspec

from heatsink.cluster.balance import Balancer, ClusterMeter
from heatsink.cluster.load import NodeCounters, SlotCounters, Snapshot
from heatsink.cluster.mover import Mover
from heatsink.cluster.nodes import Migration, Node, Topology
from heatsink.cluster.policy import Move, MoveLimits, SlotPolicy, SlotRules, plan_moves
from heatsink.errors import HeatsinkError, Unavailable
from heatsink.registry.decisions import Decision
from heatsink.testing.clocks import SkewedClock, run_on_virtual_time
from tests.simulation.history import Violation

SLOTS = 256  # a real cluster has 64 times as many
WINDOW_S = 5.0
BUSY_SLOTS = 200
CALM_S = 900.0
STORMY_S = 900.0
FLAPPING_S = 600.0
FLAP_S = 60.0
JUST_NOW_S = 1.0  # between a check and an order, a node may fail or a replica be promoted
FOREIGN = "somebody else"
RULES = SlotRules(rest_s=600.0)


class Cluster:
    """Three to five primaries. Migrations take time and are atomic, as in Valkey 9."""

    def __init__(self, rng: Random, clock: SkewedClock) -> None:
        self.rng = rng
        self.clock = clock
        self.events: Counter[str] = Counter()
        count = rng.randint(3, 5)
        self.primaries = [f"n{number}" for number in range(count)]
        self.owner = {slot: self.primaries[slot * count // SLOTS] for slot in range(SLOTS)}
        self.cpu = self._load()
        self.counted = dict.fromkeys(range(SLOTS), 0.0)
        self.read_s = 0.0
        self.jobs: list[Migration] = []
        self.ends_s: dict[str, float] = {}
        self.by: dict[str, str] = {}
        self.failing: set[str] = set()
        self.failed_s: dict[str, float] = {}
        self.unconfirmed: set[int] = set()
        self.left: dict[int, set[str]] = {}
        self.made = 0
        self.is_steady = False
        self.flaps = False
        self.moved_s: dict[int, float] = {}
        self.demoted_s: dict[str, float] = {}

    def _load(self) -> dict[int, float]:
        cpu = dict.fromkeys(range(SLOTS), 0.0)
        skew = self.rng.uniform(0.7, 1.4)
        for rank in range(BUSY_SLOTS):
            cpu[self.rng.randrange(SLOTS)] += 1 / (rank + 1) ** skew
        scale = self.rng.uniform(0.1, 0.5) * len(self.primaries) / sum(cpu.values())
        return {slot: each * scale for slot, each in cpu.items()}

    # -- what production asks --------------------------------------------------------------

    async def topology(self) -> Topology:
        await self._answer()
        nodes = []
        for id in self.primaries:
            flags = {"master", *(["fail?"] if id in self.failing else [])}
            owned = tuple((slot, slot) for slot, owner in self.owner.items() if owner == id)
            nodes.append(Node(id, id, 1, frozenset(flags), "", 1, True, owned))
        failing = ", ".join(sorted(self._failing_primaries()))
        return Topology(tuple(nodes), f"{failing} is failing" if failing else "")

    async def snapshot(self, _: Topology, __: Mapping[str, float]) -> Snapshot:
        await self._answer()
        now_s = self.clock.monotonic_s()
        burst = 8.0 if not self.is_steady and self.rng.random() < 0.1 else 1.0
        bursting = self.rng.choice(self.primaries)
        for slot, cpu in self.cpu.items():
            noise = self.rng.uniform(0.95, 1.05) if cpu else 0.0
            more = burst if self.owner[slot] == bursting else 1.0
            if self.flaps and (now_s // FLAP_S) % 2 == slot % 2:
                more *= 10.0
            self.counted[slot] += cpu * noise * more * (now_s - self.read_s) * 1e6
        self.read_s = now_s
        nodes = tuple(NodeCounters(id, id, 10**6, 10**6, 0) for id in self.primaries)
        slots = {
            slot: SlotCounters(self.owner[slot], 1, int(self.counted[slot]), 0, 0)
            for slot in range(SLOTS)
        }
        return Snapshot(now_s, nodes, slots)

    async def migrations(self, _: Topology) -> list[Migration]:
        await self._answer()
        return list(self.jobs)

    async def start(self, move: Move, _: Topology) -> None:
        await self._answer()
        self._check_start(move)
        for slot in move.slots:
            self.left.setdefault(slot, set()).add(move.source)
        self._begin(move.source, move.target, frozenset(move.slots), "us")
        if self.rng.random() < 0.1 and not self.is_steady:
            self.events["answers to start were lost"] += 1
            raise Unavailable("the answer was lost")

    def _failing_primaries(self) -> set[str]:
        return self.failing & {*self.primaries}

    def _check_start(self, move: Move) -> None:
        now_s = self.clock.monotonic_s()
        if self.running:
            raise Violation("a migration began beside another one")
        if any(now_s - self.failed_s[node] >= JUST_NOW_S for node in self._failing_primaries()):
            raise Violation("slots moved while a node was failing")
        if self.unconfirmed:
            raise Violation("a migration began before the last one was confirmed")
        if {self.owner[slot] for slot in move.slots} != {move.source}:
            raise Unavailable("the source does not own these slots")
        if move.target not in self.primaries:
            if now_s - self.demoted_s[move.target] < JUST_NOW_S:
                raise Unavailable("the target is no primary any more")
            raise Violation("slots were to move to a node that is gone")
        for slot in move.slots:
            if self.is_steady and not self.flaps and move.target in self.left.get(slot, ()):
                raise Violation(f"slot {slot} went back although the load was steady")
            if now_s - self.moved_s.get(slot, -RULES.rest_s) < RULES.rest_s - 1:
                raise Violation(f"slot {slot} moved again before it had rested")

    async def cancel(self, source: str, _: Topology) -> None:
        await self._answer()
        for job in self.running:
            if job.source == source:
                if self.by[job.name] == FOREIGN:
                    raise Violation("somebody else's migration was cancelled")
                self._end(job, "canceled")
                self.events["migrations were cancelled"] += 1

    async def confirm(self, owner: str, _: int, __: Topology) -> None:
        await self._answer()
        self.unconfirmed -= {slot for slot in self.unconfirmed if self.owner[slot] == owner}

    async def _answer(self) -> None:
        await self.clock.sleep(self.rng.uniform(0.001, 0.02))
        self._advance()

    # -- what happens in the cluster -------------------------------------------------------

    @property
    def running(self) -> list[Migration]:
        return [job for job in self.jobs if not job.has_ended]

    def _begin(self, source: str, target: str, slots: frozenset[int], by: str) -> None:
        self.made += 1
        name = f"job{self.made}"
        self.jobs.append(Migration(name, source, target, slots, "snapshotting"))
        slow = self.rng.random() < 0.05 and not self.is_steady
        self.ends_s[name] = self.clock.monotonic_s() + (
            500.0 if slow else self.rng.uniform(0.05, 2)
        )
        self.by[name] = by

    def _advance(self) -> None:
        for job in self.running:
            if self.clock.monotonic_s() < self.ends_s[job.name]:
                continue
            ends = {job.source, job.target}
            broken = bool(ends & self.failing) or not ends <= {*self.primaries}
            fails = broken or (not self.is_steady and self.rng.random() < 0.1)
            self._end(job, "failed" if fails else "success")
            if fails:
                self.events["migrations failed"] += 1
                continue
            self.events["migrations succeeded"] += 1
            for slot in job.slots:
                self.owner[slot] = job.target
                self.counted[slot] = 0.0
            self.moved_s |= dict.fromkeys(job.slots, self.clock.monotonic_s())
            if self.by[job.name] == "us":
                self.unconfirmed |= job.slots

    def _end(self, job: Migration, state: str) -> None:
        ended = msgspec.structs.replace(job, state=state, changed_s=self.clock.now_s())
        self.jobs[self.jobs.index(job)] = ended

    async def misbehave(self) -> None:
        """Fail nodes, promote replicas, and move slots by hand, until cancelled."""
        while True:
            await self.clock.sleep(self.rng.uniform(5, 60))
            self._advance()
            what = self.rng.choice([self._fail, self._promote, self._move_by_hand, self._change])
            what()

    def _fail(self) -> None:
        node = self.rng.choice(self.primaries)
        if node not in self.failing:
            self.failed_s[node] = self.clock.monotonic_s()
        self.failing.add(node)
        self.events["nodes failed"] += 1
        later_s = self.rng.uniform(1, 30)
        asyncio.get_running_loop().call_later(later_s, self.failing.discard, node)

    def _promote(self) -> None:
        """A replica takes the place of its primary, under a new id."""
        at = self.rng.randrange(len(self.primaries))
        old, new = self.primaries[at], f"{self.primaries[at].partition('.')[0]}.{self.made}x"
        self.made += 1
        self.primaries[at] = new
        self.demoted_s[old] = self.clock.monotonic_s()
        for job in self.running:
            if old in (job.source, job.target):
                self._end(job, "failed")
        self.owner = {slot: new if own == old else own for slot, own in self.owner.items()}
        self.unconfirmed.clear()
        self.events["replicas were promoted"] += 1

    def _move_by_hand(self) -> None:
        if self.running or self.unconfirmed:
            return
        slot = self.rng.randrange(SLOTS)
        target = self.rng.choice(self.primaries)
        if target != self.owner[slot]:
            self._begin(self.owner[slot], target, frozenset({slot}), FOREIGN)
            self.events["somebody else moved slots"] += 1

    def _change(self) -> None:
        self.cpu = self._load()
        self.events["the load changed"] += 1


class Restless:
    """A balancer that is killed at any moment and started again, without memory."""

    def __init__(self, cluster: Cluster, clock: SkewedClock, rng: Random) -> None:
        self._cluster = cluster
        self._clock = clock
        self._rng = rng
        self.errors: list[str] = []
        self.violation: Violation | None = None

    async def run(self, until_s: float, killed: bool) -> None:
        while self._clock.monotonic_s() < until_s:
            left_s = until_s - self._clock.monotonic_s()
            lives_s = min(self._rng.uniform(5, 300), left_s) if killed else left_s
            with suppress(TimeoutError):
                async with asyncio.timeout(lives_s):
                    await self._live()
            if killed:
                self._cluster.events["balancers were killed"] += 1

    async def _live(self) -> None:
        meter = ClusterMeter(self._cluster, self._clock)
        limits = MoveLimits(slots_per_hour=16_384, timeout_s=60)
        mover = Mover(self._cluster, limits, self._clock)
        balancer = Balancer(meter, SlotPolicy(RULES), mover, self._published, self._clock, WINDOW_S)
        while True:
            try:
                await balancer.run_once()
            except HeatsinkError as error:
                self.errors.append(str(error))
            await self._clock.sleep(1.0)

    async def _published(self, decisions: list[Decision]) -> list[Decision]:
        return decisions


def simulate(seed: int) -> Cluster:
    """Play one seed. Raises `Violation`."""
    return run_on_virtual_time(_simulate(Random(seed)))


async def _simulate(rng: Random) -> Cluster:
    clock = SkewedClock()
    cluster = Cluster(rng, clock)
    balancer = Restless(cluster, clock, rng)
    trouble = asyncio.ensure_future(cluster.misbehave())
    await balancer.run(STORMY_S, killed=True)
    trouble.cancel()
    cluster.failing.clear()
    await clock.sleep(600.0)  # slow migrations end by themselves
    cluster._advance()
    cluster.is_steady = cluster.flaps = True
    await balancer.run(clock.monotonic_s() + FLAPPING_S, killed=False)
    cluster.flaps = False
    cluster.left.clear()
    await balancer.run(clock.monotonic_s() + CALM_S, killed=False)
    await _check_end(cluster, clock)
    return cluster


async def _check_end(cluster: Cluster, clock: SkewedClock) -> None:
    if cluster.running:
        raise Violation("a migration was left running")
    load = await ClusterMeter(cluster, clock).measure(WINDOW_S)
    plan = plan_moves(load, RULES)
    best = max(RULES.start, plan.ceiling.ratio if plan.ceiling else 0.0)
    if plan.before > best * 1.08:
        raise Violation(f"the busiest node still has {plan.before:.2f} × the mean, not {best:.2f}")
