"""The control loop for hot keys, put together: what a coordinator turns while it leads."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from heatsink.clock import Clock
from heatsink.control.coordinator import Coordinator
from heatsink.control.lease import Lease
from heatsink.control.loop import ControlLoop
from heatsink.control.turn_log import TurnLog
from heatsink.detect.aggregator import Aggregator
from heatsink.detect.bus import HeatBus
from heatsink.detect.heat import KeyHeat, WindowHeat
from heatsink.registry.registry import Registry
from heatsink.spread.policy import BucketPolicy, BucketRules, Observation, suffers_from
from heatsink.stores.stores import Stores

from .queue.watch import is_worker_pin
from .settings import Settings
from .store_partitions import PartitionHeat, taken_apart

SILENT_WINDOWS = 3


class HotKey(msgspec.Struct, frozen=True):
    """`buckets` are those of rows written now."""

    key: str
    buckets: int
    heat: KeyHeat


class Hottest(msgspec.Struct, frozen=True):
    """The fleet's hottest keys in its last complete window, which only the leader knows.

    No key that is not listed had more than `unreported_s` a second. `start_s` is None before the
    first window is complete, and where this process does not lead.
    """

    leads: bool
    leader: str
    window_s: float
    start_s: float | None = None
    unreported_s: float = 0.0
    keys: tuple[HotKey, ...] = ()
    partitions: tuple[PartitionHeat, ...] = ()
    """Of a store that says where its rows lie: the hottest first."""


class KeyWatch:
    """Observes the fleet's heat together with the layouts and pins in force.

    Every server reports every window, this one too. When not even its own reports arrive, the bus
    is broken rather than the fleet calm, and there is nothing to decide from.
    """

    def __init__(self, bus: HeatBus, registry: Registry, lease: Lease, window_s: float) -> None:
        self._bus = bus
        self._registry = registry
        self._lease = lease
        self._window_s = window_s
        self._heard_s = float("-inf")
        self._aggregator = Aggregator(window_s)
        self.latest: WindowHeat | None = None
        self.partitions: dict[int, PartitionHeat] = {}

    async def observe(self) -> Observation:
        now_s = self._registry.fleet_now_s()
        for report in await self._bus.receive():
            self._aggregator.add(report, now_s)
            self._heard_s = now_s
        windows = [self._of_keys(window) for window in self._aggregator.take(now_s)]
        if now_s - self._heard_s > SILENT_WINDOWS * self._window_s:
            windows = []
        self._lease.servers = self._aggregator.servers
        self.latest = next((w for w in reversed(windows) if w.complete), self.latest)
        view = self._registry.view
        pins = {key: pin for key, pin in view.pins.items() if not is_worker_pin(key)}
        return Observation(windows, view.layouts, pins, view.version)

    def _of_keys(self, window: WindowHeat) -> WindowHeat:
        keys, partitions = taken_apart(window)
        if window.complete:
            self.partitions = partitions
        return keys

    def heat_of(self, key: str) -> KeyHeat | None:
        """The key's heat in the last complete window, if it was reported."""
        return self.latest.keys.get(key) if self.latest else None

    def crowded(self, rules: BucketRules) -> set[str]:
        """Keys that met the heat of others in that window: their partitions are hot."""
        keys = self.latest.keys if self.latest else {}
        return {key for key, heat in keys.items() if suffers_from(heat, rules) == "partition"}

    @property
    def servers(self) -> int:
        """How many reported in that window."""
        return self._aggregator.servers

    def hottest(self, limit: int, leads: bool) -> Hottest:
        leader, window = self._registry.meta.leader, self.latest
        if not leads or window is None:
            return Hottest(leads, leader, self._window_s)
        ranked = sorted(window.keys.items(), key=lambda item: -_cost_s(item[1]))
        unlisted = [_cost_s(heat) + heat.bound_s for _, heat in ranked[limit:]]
        return Hottest(
            leads=True,
            leader=leader,
            window_s=self._window_s,
            start_s=window.start_s,
            unreported_s=max([window.unreported_s, *unlisted]),
            keys=tuple(HotKey(key, self._buckets(key), heat) for key, heat in ranked[:limit]),
            partitions=tuple(self._hottest_partitions()[:limit]),
        )

    def _hottest_partitions(self) -> list[PartitionHeat]:
        return sorted(self.partitions.values(), key=lambda heat: -heat.write_units_s)

    def _buckets(self, key: str) -> int:
        layout = self._registry.view.layout(key)
        return layout.epoch_at(self._registry.now_ms()).buckets


def _cost_s(heat: KeyHeat) -> float:
    return heat.write_units_s + heat.reads_s + heat.throttles_s


@dataclass(frozen=True)
class Coordination:
    coordinator: Coordinator
    watch: KeyWatch

    def heat_of(self, key: str) -> KeyHeat | None:
        """Only the leader hears of heat; what it heard before it lost the lead is stale."""
        return self.watch.heat_of(key) if self.coordinator.leads else None

    def crowded(self, rules: BucketRules) -> set[str]:
        return self.watch.crowded(rules) if self.coordinator.leads else set()

    def partition_heat(self, number: int | None) -> PartitionHeat | None:
        known = self.watch.partitions if self.coordinator.leads else {}
        return None if number is None else known.get(number)

    def hottest(self, limit: int) -> Hottest:
        return self.watch.hottest(limit, self.coordinator.leads)


def coordinate_keys(
    stores: Stores, registry: Registry, settings: Settings, name: str, clock: Clock
) -> Coordination:
    lease = Lease(stores.lease, name, clock, settings.lease_s)
    watch = KeyWatch(stores.bus, registry, lease, settings.window_s)
    coordinator = Coordinator(registry, lease, clock, TurnLog(clock).note)
    policy = BucketPolicy(settings.rules)
    coordinator.loops.append(ControlLoop(watch.observe, policy, coordinator.publish))
    return Coordination(coordinator, watch)
