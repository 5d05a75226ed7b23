"""Measures a cluster, plans, and moves slots: once, or again and again under a lease.

`ClusterMeter` reads the counters once a window. `Balancer` is a loop for the coordinator: only the
leader runs it, and it records every migration as a decision with its reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import NO_HOOKS, Hooks
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Decision

from .load import WINDOWS, ClusterLoad, SlotRates, Snapshot
from .mover import Mover, MoveReport, carry_out_all
from .nodes import Topology, ranges_of
from .policy import Plan, SlotPolicy

NET_MAX_S = 125e6
WINDOW_S = 5.0
MOVED = "moved"
REPORTS = 200
NAME_MAX = 120


class MeasuredCluster(Protocol):
    """What a meter needs of a cluster."""

    async def topology(self) -> Topology: ...

    async def snapshot(self, topology: Topology, cores: Mapping[str, float]) -> Snapshot: ...


class ClusterMeter:
    """Reads the counters of a cluster and returns its load."""

    def __init__(
        self,
        cluster: MeasuredCluster,
        clock: Clock,
        cores: Mapping[str, float] | None = None,
        net_max_s: float = NET_MAX_S,
    ) -> None:
        """`cores` has the CPU capacity of nodes by address, 1 for the others."""
        self._cluster = cluster
        self._clock = clock
        self._cores = cores or {}
        self._rates = SlotRates(net_max_s)
        self.topology: Topology | None = None

    async def read(self) -> ClusterLoad | None:
        """Read the counters. Returns the load since the last reading; None the first time."""
        self.topology = await self._cluster.topology()
        return self._rates.add(await self._cluster.snapshot(self.topology, self._cores))

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


class BalanceState(msgspec.Struct, frozen=True):
    """What the last turn saw and planned, and what has moved lately."""

    load: ClusterLoad
    plan: Plan
    reports: tuple[MoveReport, ...]


class Balancer:
    """Keeps a cluster balanced: measures, plans, moves. The leader calls `run_once` in each turn.

    A turn takes as long as its migrations. So run it beside the other loops (`BackgroundLoop`).
    """

    def __init__(
        self,
        meter: ClusterMeter,
        policy: SlotPolicy,
        mover: Mover,
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
        self.state: BalanceState | None = None

    async def run_once(self) -> list[Decision]:
        """Take a turn if the last one was at least a window ago. Returns what has moved."""
        if self._clock.monotonic_s() - self._read_s < self._window_s:
            return []
        self._read_s = self._clock.monotonic_s()
        load = await self._meter.read()
        if load is None:
            return []
        plan = self._policy.decide(load)
        self.state = BalanceState(load, plan, tuple(self._reports))
        if not plan.moves:
            return []
        reports = await carry_out_all(self._mover, plan.moves, self._clock)
        return await self._record(reports, load)

    async def _record(self, reports: Iterable[MoveReport], load: ClusterLoad) -> list[Decision]:
        decisions = []
        for report in reports:
            self._reports.append(report)
            if report.error:
                self._hooks.event("cluster.failed", report.error)
                continue
            self._policy.note(report.job.slots, self._clock.monotonic_s())
            decisions.append(decision_of(report))
        assert self.state is not None, "a turn with reports has a state"
        self.state = msgspec.structs.replace(self.state, reports=tuple(self._reports), load=load)
        return await self._publish(decisions) if decisions else []


def decision_of(report: MoveReport) -> Decision:
    """The decision that records a migration in the registry's history."""
    slots = ranges_of(report.job.slots)
    name = slots if len(slots) <= NAME_MAX else f"{slots[:NAME_MAX]}…"
    return Decision(Subject(Kind.SLOTS, name), MOVED, len(report.job.slots), report.job.reason)
