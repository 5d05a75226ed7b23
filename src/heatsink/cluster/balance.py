"""Measures a cluster, plans moves, and moves slots: once, or repeatedly under a lease.

`ClusterMeter` reads the counters once a window. `Balancer` is a loop for the coordinator: only the
leader runs it, and it records every migration as a decision with its reason.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Protocol

import msgspec

from heatsink.coordinator.loops import Leader
from heatsink.errors import HeatsinkError, Misconfigured, Unavailable
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import NO_HOOKS, Hooks
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Decision

from .answers import Server, Topology
from .keys import queue_slots
from .load import WINDOWS, ClusterCounters, ClusterLoad, SlotRates
from .mover import MoveReport, SlotMover, carry_out_each
from .nodes import ClusterNodes
from .policy import Plan, SlotMove, SlotPolicy
from .rules import SlotRules, SlotSettings
from .slots import ranges_of

NET_MAX_S = 125e6
WINDOW_S = 5.0
MOVED = "moved"
REPORTS = 200
NAME_MAX = 120
LEASE_MS = 30_000
END_S = 2.0
ROUNDS = 3
SLOTS_TOGETHER = 256  # measured by one call


class MeasuredCluster(Protocol):
    """What a meter needs of a cluster."""

    async def topology(self) -> Topology: ...

    async def snapshot(self, topology: Topology, cores: Mapping[str, float]) -> ClusterCounters: ...


class ClusterMeter:
    """Reads the counters of a cluster and returns its load."""

    def __init__(
        self,
        cluster: MeasuredCluster,
        clock: Clock,
        cores: Mapping[str, float] | None = None,
        net_max_s: float = NET_MAX_S,
    ) -> None:
        """`cores` is the CPU capacity of nodes by address. A node that is not named has 1."""
        self._cluster = cluster
        self._clock = clock
        self.cores = cores or {}
        self._rates = SlotRates(net_max_s)
        self.topology: Topology | None = None

    async def read(self) -> ClusterLoad | None:
        """Read the counters. Returns the load since the last reading; None the first time."""
        self.topology = await self._cluster.topology()
        return self._rates.add(await self._cluster.snapshot(self.topology, self.cores))

    async def measure(
        self, window_s: float, windows: int = WINDOWS, tick: Callable[[], None] = lambda: None
    ) -> ClusterLoad:
        """Measure for some windows, and return the load. `tick` is called after each window."""
        load = await self.read()
        for _ in range(windows):
            await self._clock.sleep(window_s)
            load = await self.read()
            tick()
        assert load is not None, "there is a load from the second reading on"
        return load


class ClusterLease:
    """The right to balance a cluster. It is a key in the cluster, so that one process has it.

    The lease only saves work. Safety does not depend on it: if two balancers run at once, they find
    each other's migrations and stop.
    """

    def __init__(self, nodes: ClusterNodes, name: str, clock: Clock) -> None:
        self._nodes = nodes
        self._name = name
        self._clock = clock
        self.is_held = False

    async def take(self) -> bool:
        """Take or renew the lease. Returns whether this process holds it."""
        topology = await self._nodes.topology()
        self.is_held = await self._nodes.lead(self._name, LEASE_MS, topology)
        return self.is_held

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Renew the lease in the background during the block, which may take long."""
        renewing = asyncio.ensure_future(self._renew())
        try:
            yield
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing

    async def end(self) -> None:
        """Give the lease back, so that another process takes over at once."""
        if self.is_held:
            self.is_held = False
            with suppress(HeatsinkError, TimeoutError):  # then it ends by itself
                async with asyncio.timeout(END_S):
                    await self._nodes.lead(self._name, 1, await self._nodes.topology())

    async def _renew(self) -> None:
        while self.is_held:
            await self._clock.sleep(LEASE_MS / 3_000)
            with suppress(Unavailable):  # it may still be ours: the next attempt will tell
                await self.take()


class BalanceState(msgspec.Struct, frozen=True):
    """What the last turn saw and planned, and what has moved lately."""

    load: ClusterLoad
    plan: Plan
    reports: tuple[MoveReport, ...]
    trouble: str = ""
    """Why no slot can move now; empty if slots can move."""
    before: Mapping[int, str] = msgspec.field(default_factory=dict)
    """The owners of the slots before the first of `reports`."""


class Totals(msgspec.Struct):
    """What a balancer has done since its start."""

    slots: int = 0
    size: int = 0
    migrations: int = 0
    failures: int = 0


class Balancer:
    """Keeps a cluster balanced: measures, plans, moves. The leader calls `run_once` in each turn.

    A turn takes as long as its migrations. So run it in a `BackgroundLoop`, beside the other loops.
    """

    def __init__(
        self,
        meter: ClusterMeter,
        policy: SlotPolicy,
        mover: SlotMover,
        publish: Callable[[list[Decision]], Awaitable[list[Decision]]],
        clock: Clock,
        window_s: float = WINDOW_S,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._meter = meter
        self._policy = policy
        self._mover = mover
        self._publish = publish
        self._clock = clock
        self._window_s = window_s
        self._hooks = hooks
        self._read_s = float("-inf")
        self._reports: deque[MoveReport] = deque(maxlen=REPORTS)
        self._before: Mapping[int, str] = {}
        self.state: BalanceState | None = None
        self.totals = Totals()

    @property
    def running(self) -> SlotMove | None:
        """The migration that runs now."""
        return self._mover.running

    def adopt(self, window_s: float) -> None:
        """Take turns at this interval from now on."""
        self._window_s = window_s

    @property
    def is_due(self) -> bool:
        """Whether the last turn was at least a window ago."""
        return self._clock.monotonic_s() - self._read_s >= self._window_s

    async def run_once(
        self, may_move: bool = True, leads: Callable[[], bool] = lambda: True
    ) -> list[Decision]:
        """Take a turn if the last one was at least a window ago. Returns what has moved.

        If this balancer may not move slots, it only measures and plans. If it does not lead any
        more, it starts no further migration.
        """
        if not self.is_due:
            return []
        self._read_s = self._clock.monotonic_s()
        load = await self._meter.read()
        topology = self._meter.topology
        if load is None or topology is None:
            return []
        if may_move:
            self._policy.note(await self._mover.recent())
        load = self._mover.sized(load)
        plan = self._policy.decide(load)
        if may_move:
            plan = await measured(self._mover, load, plan, topology, self._policy.again)
        self._before = self._before or topology.owners
        self._show(load, plan, topology.trouble)
        if not may_move:
            return []
        published: list[Decision] = []
        async for report in carry_out_each(self._mover, plan.moves, self._clock, leads):
            self._count(report)
            self._show(moved_in(self.state.load, report) if self.state else load, plan)
            if not report.error:
                published += await self._publish([decision_of(report)])
        return published

    def _show(self, load: ClusterLoad, plan: Plan, trouble: str = "") -> None:
        self.state = BalanceState(load, plan, tuple(self._reports), trouble, self._before)

    def _count(self, report: MoveReport) -> None:
        self._reports.append(report)
        if report.error:
            self.totals.failures += 1
            self._hooks.event("cluster.failed", report.error)
            return
        self.totals.migrations += 1
        self.totals.slots += len(report.job.slots)
        self.totals.size += report.moved
        self._policy.note(dict.fromkeys(report.job.slots, self._clock.monotonic_s()))


async def measured(
    mover: SlotMover,
    load: ClusterLoad,
    plan: Plan,
    topology: Topology,
    again: Callable[[ClusterLoad], Plan],
) -> Plan:
    """Measure the slots that a plan would move, and return the plan with their sizes.

    `again` plans with measured sizes. The new plan may choose other slots, so the function measures
    and plans a few times. The mover measures every slot once more before the slot moves.
    """
    for _ in range(ROUNDS):
        sizes = {slot.slot: slot.most for slot in load.slots}
        unknown = [(move, [s for s in move.slots if not sizes[s]]) for move in plan.moves]
        if not any(slots for _, slots in unknown):
            break
        for move, slots in unknown:
            for at in range(0, len(slots), SLOTS_TOGETHER):
                await mover.measure(move.source, slots[at : at + SLOTS_TOGETHER], topology)
        load = mover.sized(load)
        plan = again(load)
    return plan


def moved_in(load: ClusterLoad, report: MoveReport) -> ClusterLoad:
    """Return the load as it will be when the moves in a report are done."""
    if report.error:
        return load
    moved, target = frozenset(report.job.slots), report.job.target
    return msgspec.structs.replace(
        load,
        slots=tuple(
            msgspec.structs.replace(slot, node=target) if slot.slot in moved else slot
            for slot in load.slots
        ),
    )


class ClusterWatch:
    """Watches a cluster while this process leads, and balances it if the settings say so.

    A failure is not raised. It is kept in `trouble`, for the dashboard, since a cluster that is
    down must not stop the other work of the leader.
    """

    def __init__(
        self,
        url: str,
        settings: SlotSettings,
        leader: Leader,
        name: str,
        clock: Clock,
        hooks: Hooks,
    ) -> None:
        self.settings = settings
        self.nodes = ClusterNodes(url, clock, Random(), round(1e6 * settings.node_megabytes))
        self._leader = leader
        self._lease = ClusterLease(self.nodes, name, clock)
        self._hooks = hooks
        self._is_able = False
        self._policy = SlotPolicy(rules_of(settings))
        self._mover = SlotMover(self.nodes, settings.limits, clock)
        self._meter = ClusterMeter(self.nodes, clock, settings.capacities)
        self.balancer = Balancer(
            self._meter, self._policy, self._mover, leader.publish, clock, settings.window_s, hooks
        )
        self.trouble = ""

    @property
    def leads(self) -> bool:
        """Whether this process leads. If it does not, what this object shows is out of date."""
        return self._leader.leads

    def adopt(self, settings: SlotSettings) -> None:
        """Use these settings from now on. A migration that is running continues."""
        self.settings = settings
        self.nodes.node_bytes = round(1e6 * settings.node_megabytes)
        self._meter.cores = settings.capacities
        self._policy.adopt(rules_of(settings))
        self._mover.adopt(settings.limits)
        self.balancer.adopt(settings.window_s)

    async def run_once(self) -> list[Decision]:
        """Take a turn if one is due. Never raises a `HeatsinkError`."""
        if not self.balancer.is_due:
            return []
        try:
            may_move = await self._may_move()
            async with self._lease.kept():
                moved = await self.balancer.run_once(may_move, self._still_leads)
        except HeatsinkError as error:
            if str(error) != self.trouble:
                self._hooks.event("cluster.trouble", str(error))
            self.trouble = str(error)
            return []
        self.trouble = ""
        return moved

    async def _may_move(self) -> bool:
        """Whether this process may move slots now: it leads, and it holds the cluster's lease."""
        self._lease.is_held = False
        if not self.settings.balance or not self._leader.leads:
            return False
        if not self._is_able:
            await check_able(self.nodes)
            self._is_able = True
        return await self._lease.take()

    def _still_leads(self) -> bool:
        return self._leader.leads and self._lease.is_held

    async def close(self) -> None:
        await self._lease.end()
        await self.nodes.close()


def rules_of(settings: SlotSettings) -> SlotRules:
    """Return the rules of the planner. They pin the slots of a queue if the settings say so."""
    rules, partitions = settings.rules, settings.leave_queue
    if not partitions:
        return rules
    return msgspec.structs.replace(rules, pinned=rules.pinned | queue_slots(partitions))


async def check_able(nodes: ClusterNodes) -> Server:
    """Return the kind of server. Raises `Misconfigured` if Heatsink cannot move slots there.

    Raises `NoAccess` if the user lacks a permission that is needed after a migration.
    """
    topology = await nodes.topology()
    server = await nodes.server(topology)
    if server.way != "migrateslots":
        raise Misconfigured(
            f"moving slots needs Valkey 9.0 or newer on all nodes, not {server.name}: "
            "`heatsink cluster balance URL` shows the plan, and the commands that carry it out"
        )
    await nodes.check_user(topology)
    return server


def decision_of(report: MoveReport) -> Decision:
    """Return the decision that records a migration in the registry's history."""
    name = ranges_of(report.job.slots, NAME_MAX)
    return Decision(Subject(Kind.SLOTS, name), MOVED, len(report.job.slots), report.job.reason)
