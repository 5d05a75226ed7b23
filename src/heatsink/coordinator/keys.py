"""The control loop for hot keys: what the leader observes, and what it shows to other processes.

Some stores name the partition that holds a row: our emulator does, DynamoDB does not. With such a
store, servers report the heat of partitions along with the heat of keys. `taken_apart` separates
the two before the policy sees them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from msgspec.structs import replace

from heatsink.errors import HeatsinkError
from heatsink.heat.count import Tracker
from heatsink.heat.fleet import Aggregator, FleetHeat, HeatBoard
from heatsink.heat.heat import KeyHeat, PartitionHeat, WindowHeat, write_units
from heatsink.heat.report import HeatBus
from heatsink.primitives.clock import breathe
from heatsink.primitives.keys import key_of
from heatsink.primitives.subjects import OWN, Kind, Subject, subject_of
from heatsink.registry.decisions import Decision
from heatsink.registry.registry import Registry
from heatsink.spread.policy import KeyObservation
from heatsink.stores.stores import ConsumptionNotes

SILENT_WINDOWS = 3
SHOWN_MAX = 256
REPORTS_AT_ONCE = 200
LISTED_SHARE = 0.1  # of a limit: colder keys are not listed in a window
NOTABLE_SHARE = 0.5  # of a bucket's limit: colder keys wait for the end of the window


class StorePartitions:
    """What the store reports about this process's writes: the partition and the cost of each."""

    def __init__(self, meter: ConsumptionNotes) -> None:
        self._notes = meter.notes

    def count(self, tracker: Tracker) -> None:
        """Record in `tracker` everything that the store has reported since the last call."""
        notes, places, units_in = self._notes, dict[str, int](), Counter[int]()
        while notes:
            name, body_bytes, units, partition = notes.popleft()
            if units > 1:
                surplus = int(units) - write_units(1, body_bytes)
                if surplus > 0:  # names and stamps weigh too: a body of 1,020 bytes costs 2 units
                    tracker.record_units(key_of(name)[0], surplus)
            if partition is not None:
                units_in[partition] += int(units)
                places[name] = partition
        for partition, taken in units_in.items():
            tracker.record(Subject(Kind.PARTITION, str(partition)).text, taken)
        if places:
            tracker.note_places({key_of(name)[0]: at for name, at in places.items()})


def taken_apart(window: WindowHeat) -> tuple[WindowHeat, tuple[PartitionHeat, ...]]:
    """Separate the heat of keys from the heat of partitions.

    Returns the window with the heat of keys only, and the heat of the partitions, hottest first.
    """
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
    """The key's heat, with the load of its partition.

    If the load of the partition was not reported, an upper bound stands in for it.
    """
    if heat.partition is None or not window.complete:
        return heat
    in_all_s = units_in.get(heat.partition, window.unreported_s)
    return replace(heat, partition_units_s=in_all_s)


class KeyWatch:
    """Observes the fleet's heat together with the layouts and pins in force.

    Every server reports in every window, including this one. If even this server's own reports do
    not arrive, the heat bus is broken. The leader then decides nothing, since missing reports do
    not mean that the load is low.
    """

    def __init__(self, bus: HeatBus, registry: Registry, name: str, window_s: float) -> None:
        """`name` is the name under which other processes know this process.

        Call `adopt` to say which keys matter. Before that, all reported keys do.
        """
        self.name = name
        self.window_s = window_s
        self.seen: FleetHeat | None = None
        self._bus = bus
        self._registry = registry
        self._heard_s = float("-inf")
        self._aggregator = Aggregator(window_s)

    def adopt(self, window_s: float, bucket_units_s: float, hot_reads_s: float) -> None:
        """Count heat in windows of this length from now on.

        Observe only keys that may matter to rules with these limits.
        """
        self.window_s = window_s
        self._aggregator.adopt(window_s, self._registry.fleet_now_s())
        listed_s = LISTED_SHARE * min(bucket_units_s, hot_reads_s)
        self._aggregator.leave_out(listed_s, NOTABLE_SHARE * bucket_units_s)

    async def observe(self) -> KeyObservation:
        now_s = self._registry.fleet_now_s()
        for number, report in enumerate(await self._bus.receive()):
            if number % REPORTS_AT_ONCE == REPORTS_AT_ONCE - 1:
                await breathe()  # the lease must not wait for thousands of reports
            self._aggregator.add(report, now_s)
            self._heard_s = now_s
        taken = self._aggregator.take(now_s)
        if now_s - self._heard_s > SILENT_WINDOWS * self.window_s:
            taken = []
        windows = [self._of_keys(window) for window in taken]
        view = self._registry.view
        pins = {key: pin for key, pin in view.pins.items() if pin.subject.has_layout}
        return KeyObservation(windows, view.layouts, pins, view.version)

    def _of_keys(self, window: WindowHeat) -> WindowHeat:
        keys, partitions = taken_apart(window)
        if window.complete:
            self.seen = FleetHeat(self.name, self.window_s, keys, partitions)
        return keys

    @property
    def latest(self) -> WindowHeat | None:
        """The heat of keys in the last complete window; None before the first one."""
        return self.seen.window if self.seen else None

    @property
    def servers(self) -> int:
        """The number of servers that reported heat in the last complete window."""
        return self._aggregator.servers


class HeatShow:
    """Publishes every complete window of the `KeyWatch`, so that other processes can show it."""

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
