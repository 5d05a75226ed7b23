"""The control loop for hot keys: what the leader observes, and what it shows to other processes.

Some stores name the partition that holds a row: the emulator does, DynamoDB does not. If the store
names partitions, servers report the heat of partitions along with the heat of keys. `taken_apart`
separates the two before the policy sees them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from heatsink.errors import HeatsinkError
from heatsink.heat.count import Tracker
from heatsink.heat.fleet import Aggregator, FleetHeat, HeatBoard
from heatsink.heat.heat import KeyHeat, PartitionHeat, WindowHeat, write_units
from heatsink.heat.report import HeatBus, ReportSettings, Sampling
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
NOTABLE_SHARE = 0.5  # of a bucket's limit: from this load on, a key is watched
COLD_SHARE = 0.4  # of a bucket's limit: below this load, a key is watched for a while only
COLD_WINDOWS = 10
WATCHED_MAX = 1_024
WATCH_SAMPLES = 512  # of a watched key in a window: a standard deviation of 4 %
ENTRIES_S = 70_000.0  # sampled keys per second in all reports, which set the tau of a large fleet
NOTICES_S = 2_000.0  # notices per second that all servers together get, unless one is urgent
URGENT_SHARE = 0.75  # of a bucket's limit: all servers should watch such a key at once
URGENT_TAU = 8  # a watched key that needs a tau so many times larger is reported too often


class StorePartitions:
    """What the store reports about each write of this process: the partition and the cost."""

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
    """Split a window into the heat of keys and the heat of physical partitions, the hottest first.

    Reports have both in one list.
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
    """Return a key's heat with the load of its partition added; `units_in` has loads by partition.

    If the load of the partition was not reported, an upper bound stands in for it.
    """
    if heat.partition is None or not window.complete:
        return heat
    in_all_s = units_in.get(heat.partition, window.unreported_s)
    return replace(heat, partition_units_s=in_all_s)


class Watchlist:
    """The keys that all servers watch and report precisely, each with its own tau.

    A key joins the list when it has half a bucket's load, so that its buckets are decided from
    precise windows. The key leaves the list when it has been colder for a while. A key has about
    `WATCH_SAMPLES` samples in a window, however hot it is. So the cost of watching a key is
    bounded.
    """

    def __init__(self) -> None:
        self.taus: dict[str, int] = {}
        self._cold: dict[str, int] = {}

    def observe(self, window: WindowHeat, bucket_units_s: float, window_s: float) -> None:
        for key, heat in window.keys.items():
            if heat.write_units_s >= NOTABLE_SHARE * bucket_units_s:
                self._note_hot(key, heat.write_units_s * window_s / WATCH_SAMPLES)
        if window.complete:
            self._let_go(window, COLD_SHARE * bucket_units_s)

    def _note_hot(self, key: str, tau: float) -> None:
        self._cold.pop(key, None)
        known = self.taus.get(key)
        if known is None and len(self.taus) >= WATCHED_MAX:
            return
        if known is None or not known / 2 <= max(tau, 1) < known * 4:  # seldom: it is news to all
            self.taus[key] = 1 << max(int(tau), 1).bit_length() - 1

    def _let_go(self, window: WindowHeat, cold_units_s: float) -> None:
        for key in list(self.taus):
            heat = window.keys.get(key)
            if heat is not None and heat.write_units_s >= cold_units_s:
                self._cold.pop(key, None)
                continue
            self._cold[key] = self._cold.get(key, 0) + 1
            if self._cold[key] >= COLD_WINDOWS:
                del self.taus[key], self._cold[key]

    def urgent(self, window: WindowHeat, bucket_units_s: float, told: Mapping[str, int]) -> bool:
        """Return whether servers should get this list immediately, and not with the next notice.

        `told` is the list that they have.
        """
        for key in window.keys:
            tau = self.taus.get(key, 0)
            known = told.get(key)
            if known is None and tau:
                if window.keys[key].write_units_s >= URGENT_SHARE * bucket_units_s:
                    return True
            elif known is not None and tau >= URGENT_TAU * known:
                return True
        return False


class KeyWatch:
    """Observes the fleet's heat together with the layouts and pins in force.

    Every server reports in every window, and so does this server. If even the reports of this
    server do not arrive, the transport of heat reports is broken. Then the leader decides nothing,
    since missing reports do not mean that the load is low.
    """

    def __init__(
        self, bus: HeatBus, registry: Registry, name: str, settings: ReportSettings
    ) -> None:
        """`name` is the name under which other processes know this process."""
        self.name = name
        self.window_s = settings.window_s
        self.seen: FleetHeat | None = None
        self._bus = bus
        self._registry = registry
        self._heard_s = float("-inf")
        self._aggregator = Aggregator(settings.window_s)
        self._watchlist = Watchlist()
        self._told: tuple[Sampling, float] = settings.sampling, float("-inf")
        self.adopt(settings)

    def adopt(self, settings: ReportSettings) -> None:
        """From now on, expect reports of servers that have these settings, and count heat
        accordingly.
        """
        self._settings = settings
        self.window_s = settings.window_s
        self._aggregator.adopt(settings.window_s, self._registry.fleet_now_s())
        listed_s = settings.floor_share * min(settings.bucket_units_s, settings.hot_reads_s)
        self._aggregator.leave_out(listed_s, NOTABLE_SHARE * settings.bucket_units_s)

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
        self._tell_how_to_sample(windows, now_s)
        view = self._registry.view
        pins = {key: pin for key, pin in view.pins.items() if pin.subject.has_layout}
        return KeyObservation(windows, view.layouts, pins, view.spread)

    def _tell_how_to_sample(self, windows: list[WindowHeat], now_s: float) -> None:
        """Tell all servers the taus and the keys to watch.

        In a large fleet each notice is costly, so small changes wait for the next one.
        """
        settings, fleet = self._settings, self._aggregator
        is_urgent = False
        for window in windows:
            self._watchlist.observe(window, settings.bucket_units_s, settings.window_s)
            is_urgent |= self._watchlist.urgent(window, settings.bucket_units_s, fleet.watched)
        least = settings.sampling
        tau = _steps(least.tau, fleet.units_s * settings.window_s / ENTRIES_S)
        tau_reads = _steps(least.tau_reads, fleet.reads_s * settings.window_s / ENTRIES_S)
        known, told_s = self._told
        is_urgent |= (tau, tau_reads) != (known.tau, known.tau_reads)
        is_due = not 0 <= now_s - told_s < fleet.servers / NOTICES_S
        if windows and (is_urgent or is_due):
            fleet.watched = dict(self._watchlist.taus)
            sampling = Sampling(tau, tau_reads).watching(fleet.watched)
            self._told = sampling, now_s
            self._registry.say(sampling.encoded())

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


def _steps(least: int, wanted: float) -> int:
    """Return the smallest of `least`, 2 × `least`, 4 × `least`, … that is at least `wanted`.

    Small changes of the fleet's rate do not change the result.
    """
    tau = least
    while tau < wanted:
        tau *= 2
    return tau


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
