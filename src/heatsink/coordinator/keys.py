"""The control loop for hot keys: what the leader observes, and what it shows to others.

Where the store tells which of its partitions took a row (our emulator does, DynamoDB does not),
servers report the heat of partitions along with that of keys. `taken_apart` separates the two
before the policy sees them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from heatsink.errors import HeatsinkError
from heatsink.heat.count import Tracker
from heatsink.heat.fleet import Aggregator, FleetHeat, HeatBoard
from heatsink.heat.heat import KeyHeat, PartitionHeat, WindowHeat, write_units
from heatsink.heat.report import HeatBus
from heatsink.primitives.clock import Clock
from heatsink.primitives.keys import key_of
from heatsink.primitives.subjects import OWN, Kind, Subject, subject_of
from heatsink.registry.decisions import BUCKETS, Decision
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff
from heatsink.spread.policy import BucketPolicy, BucketRules, KeyObservation
from heatsink.stores.stores import ConsumptionNotes, Stores

from .lease import Leadership, Lease, TurnLog, leadership_of
from .loops import ControlLoop, Coordinator

SILENT_WINDOWS = 3
SHOWN_MAX = 256


class StorePartitions:
    """Where this process's latest writes went, and what they cost beyond what was foreseen."""

    def __init__(self, tracker: Tracker, meter: ConsumptionNotes) -> None:
        self._tracker = tracker
        self._notes = meter.notes

    def count(self) -> None:
        """Take away what the store has noted since."""
        notes, places, units_in = self._notes, dict[str, int](), Counter[int]()
        while notes:
            name, body_bytes, units, partition = notes.popleft()
            if units > 1:
                self._count_surplus(name, int(units) - write_units(1, body_bytes))
            if partition is not None:
                units_in[partition] += int(units)
                places[name] = partition
        for partition, taken in units_in.items():
            self._tracker.record(Subject(Kind.PARTITION, str(partition)).text, taken)
        if places:
            self._tracker.note_places({key_of(name)[0]: at for name, at in places.items()})

    def _count_surplus(self, name: str, units: int) -> None:
        """Names and stamps weigh too: a body just under a kilobyte costs two units."""
        if units > 0:
            self._tracker.record_units(key_of(name)[0], units)


def taken_apart(window: WindowHeat) -> tuple[WindowHeat, tuple[PartitionHeat, ...]]:
    """The heat of keys, and that of partitions, the hottest first."""
    own = ((key, subject_of(key)) for key in window.keys if key.startswith(OWN))
    numbers = {key: int(subject.name) for key, subject in own if subject.kind is Kind.PARTITION}
    partitions = [
        PartitionHeat(number, window.keys[key].write_units_s) for key, number in numbers.items()
    ]
    partitions.sort(key=lambda heat: -heat.write_units_s)
    units_in = {each.partition: each.write_units_s for each in partitions}
    keys = {
        key: _placed(heat, window, units_in)
        for key, heat in window.keys.items()
        if key not in numbers
    }
    return replace(window, keys=keys), tuple(partitions)


def _placed(heat: KeyHeat, window: WindowHeat, units_in: dict[int, float]) -> KeyHeat:
    """With what its partition took: no more than was left unsaid, if nothing was said of it."""
    if heat.partition is None or not window.complete:
        return heat
    in_all_s = units_in.get(heat.partition, window.unreported_s)
    return replace(heat, partition_units_s=in_all_s)


class HotKey(msgspec.Struct, frozen=True):
    """`buckets` are those of rows written now."""

    key: str
    buckets: int
    heat: KeyHeat


class Hottest(msgspec.Struct, frozen=True):
    """The fleet's hottest keys in its last complete window.

    The leader hears of them and shows them to others, where there is a Redis for news. `start_s`
    is None where they are not known: it does not lead and is shown nothing, or hears of nobody.
    No key that is not listed had more than `unreported_s` a second; None: there is no bound.
    """

    leads: bool
    leader: str
    window_s: float
    start_s: float | None = None
    unreported_s: float | None = None
    keys: tuple[HotKey, ...] = ()
    partitions: tuple[PartitionHeat, ...] = ()
    """Of a store that says where its rows lie: the hottest first."""
    nobody_leads: str | None = None
    """Since when nobody leads, in words; None while somebody does."""


class KeyWatch:
    """Observes the fleet's heat together with the layouts and pins in force.

    Every server reports every window, this one too. When not even its own reports arrive, the bus
    is broken rather than the fleet calm, and there is nothing to decide from.
    """

    def __init__(self, bus: HeatBus, registry: Registry, lease: Lease, window_s: float) -> None:
        self.window_s = window_s
        self.seen: FleetHeat | None = None
        self._bus = bus
        self._registry = registry
        self._lease = lease
        self._heard_s = float("-inf")
        self._aggregator = Aggregator(window_s)

    async def observe(self) -> KeyObservation:
        now_s = self._registry.fleet_now_s()
        for report in await self._bus.receive():
            self._aggregator.add(report, now_s)
            self._heard_s = now_s
        taken = self._aggregator.take(now_s)
        if now_s - self._heard_s > SILENT_WINDOWS * self.window_s:
            taken = []
        windows = [self._of_keys(window) for window in taken]
        self._lease.servers = self._aggregator.servers
        view = self._registry.view
        pins = {key: pin for key, pin in view.pins.items() if pin.subject.has_layout}
        return KeyObservation(windows, view.layouts, pins, view.version)

    def _of_keys(self, window: WindowHeat) -> WindowHeat:
        keys, partitions = taken_apart(window)
        if window.complete:
            self.seen = FleetHeat(self._lease.holder, self.window_s, keys, partitions)
        return keys

    @property
    def holder(self) -> str:
        return self._lease.holder

    @property
    def latest(self) -> WindowHeat | None:
        """The last complete window."""
        return self.seen.window if self.seen else None

    @property
    def servers(self) -> int:
        """How many reported in that window."""
        return self._aggregator.servers


class HeatShow:
    """Shows others each complete window that the watch has observed."""

    def __init__(self, watch: KeyWatch, board: HeatBoard) -> None:
        self._watch = watch
        self._board = board
        self._shown = -1

    async def run_once(self) -> list[Decision]:
        seen = self._watch.seen
        if seen is not None and seen.window.window != self._shown:
            self._shown = seen.window.window
            with suppress(HeatsinkError):  # the next window comes soon
                await self._board.show(seen.hottest(SHOWN_MAX))
        return []


@dataclass(frozen=True)
class Coordination:
    coordinator: Coordinator
    watch: KeyWatch
    registry: Registry
    board: HeatBoard | None
    loop: ControlLoop[KeyObservation]
    backoff: Backoff

    async def fleet_heat(self, deadline_s: float) -> FleetHeat | None:
        """What this process hears while it leads, else what the leader shows. None: not known."""
        known = self.watch.seen if self.coordinator.leads else await self._shown(deadline_s)
        return known if known and known.is_recent(self.registry.fleet_now_s()) else None

    async def _shown(self, deadline_s: float) -> FleetHeat | None:
        if self.board is None:
            return None
        with suppress(HeatsinkError), self.backoff.cut(deadline_s):
            return await self.board.look()
        return None

    async def hottest(self, limit: int) -> Hottest:
        deadline_s = self.backoff.deadline_s()
        leads, heat = self.coordinator.leads, await self.fleet_heat(deadline_s)
        if heat is None:
            found = await self.look_who_leads(deadline_s)
            window_s = self.watch.window_s
            return Hottest(leads, found.leader, window_s, nobody_leads=found.vacancy)
        hottest = heat.hottest(limit)
        window = hottest.window
        return Hottest(
            leads=leads,
            leader=heat.leader,
            nobody_leads=self.leadership().vacancy,
            window_s=heat.window_s,
            start_s=window.start_s,
            unreported_s=window.unreported_s,
            keys=tuple(HotKey(key, self._buckets(key), heat) for key, heat in window.keys.items()),
            partitions=hottest.partitions,
        )

    def wanted(self, key: str) -> Decision | None:
        """The buckets that this process, which leads, has decided and the store did not take."""
        return self.loop.wanted(subject_of(key), BUCKETS) if self.coordinator.leads else None

    async def look_who_leads(self, deadline_s: float) -> Leadership:
        """As META has it now: with news, this process reads it seldom."""
        if self.registry.has_news and not self.coordinator.leads:
            with suppress(HeatsinkError), self.backoff.cut(deadline_s):
                await self.registry.renew()
        return self.leadership()

    def leadership(self) -> Leadership:
        """Who leads, as far as this process knows."""
        registry = self.registry
        now_ms = int(registry.fleet_now_s() * 1000)
        if self.coordinator.leads:
            return Leadership(self.watch.holder, now_ms, now_ms)
        return leadership_of(registry.meta, now_ms, registry.led_until_ms())

    def _buckets(self, key: str) -> int:
        layout = self.registry.view.layout(key)
        return layout.epoch_at(self.registry.now_ms()).buckets


def coordinate_keys(
    stores: Stores,
    registry: Registry,
    lease: Lease,
    clock: Clock,
    backoff: Backoff,
    rules: BucketRules,
    window_s: float,
) -> Coordination:
    watch = KeyWatch(stores.bus, registry, lease, window_s)
    coordinator = Coordinator(registry, lease, clock, TurnLog(clock).note)
    loop = ControlLoop(watch.observe, BucketPolicy(rules), coordinator.publish)
    coordinator.loops.append(loop)
    if stores.board is not None:
        coordinator.loops.append(HeatShow(watch, stores.board))
    return Coordination(coordinator, watch, registry, stores.board, loop, backoff)
