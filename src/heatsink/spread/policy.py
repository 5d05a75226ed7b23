"""Decide how many buckets each key should have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

import msgspec

from heatsink.heat.heat import KeyHeat, WindowHeat
from heatsink.primitives.checks import check_kind, check_number, check_whole
from heatsink.primitives.damping import RecentPeak, forecast
from heatsink.primitives.subjects import Kind, subject_of
from heatsink.registry.decisions import BUCKETS, Decision, for_key
from heatsink.registry.layouts import COLD, Layout

Culprit = Literal["key", "partition"]
THROTTLED_SHARE = 0.01
MOST = 0.5
FORECAST_GROWTH_MAX = 2.0  # a sudden jump is not extrapolated
SHRINK_TO_MAX = 0.75  # shrink only by a quarter or more: each change costs a layout
BLIND_WINDOWS = 3  # if more windows than this are missing in a row, cool-downs restart


class BucketRules(msgspec.Struct, frozen=True):
    """When a key gets more or fewer buckets, and how many.

    `BucketRules(bucket_units_s=400)` spreads keys twice as wide. An invalid value raises
    `InvalidSetting`.
    """

    bucket_units_s: int = 800
    """Write units per second that a bucket should carry: 80 % of a partition's limit."""
    buckets_max: int = 64
    """Maximum number of buckets of one key, up to 1,024."""
    forecast_s: float = 3.0
    """How far ahead to forecast a rising rate; 0 switches forecasting off.

    It covers a window to see the rise, the horizon until a new epoch starts, and a spare second.
    """
    cool_down_s: float = 300.0
    """How long the load must stay low before a key gets fewer buckets."""
    shrink: bool = True
    """`False` never takes buckets away."""
    shrink_fill: float = 0.5
    """How full the fewer buckets may be, as a share of `bucket_units_s`."""
    extra_buckets_max: int = 100_000
    """Maximum number of buckets beyond the first, of all keys together."""

    def __post_init__(self) -> None:
        check_whole("bucket_units_s", self.bucket_units_s, 1, 10**9)
        check_whole("buckets_max", self.buckets_max, 1, 1024)
        check_number("forecast_s", self.forecast_s, 0, 3600)
        check_number("cool_down_s", self.cool_down_s, 0, 10**9)
        check_kind("shrink", self.shrink, bool)
        check_number("shrink_fill", self.shrink_fill, 0.01, 1)
        check_whole("extra_buckets_max", self.extra_buckets_max, 0, 10**9)

    def buckets_for(self, units_s: float) -> int:
        return min(max(ceil(units_s / self.bucket_units_s), 1), self.buckets_max)


def suffers_from(heat: KeyHeat, rules: BucketRules, buckets: int = 1) -> Culprit | None:
    """Why a key is throttled: its own load, or that of other keys in the same partition.

    A key that fills less than half a bucket does not make a partition hot, unless the store reports
    that the key is most of its partition's load. More buckets do not help against other keys; a
    store that splits hot partitions does.
    """
    if heat.throttles_s <= THROTTLED_SHARE * heat.writes_s:
        return None
    fills = heat.write_units_s >= rules.bucket_units_s / 2
    return "key" if fills or _is_most_of_its_partition(heat, buckets) else "partition"


def _is_most_of_its_partition(heat: KeyHeat, buckets: int) -> bool:
    in_all_s = heat.partition_units_s
    return in_all_s is not None and heat.write_units_s / buckets >= MOST * in_all_s


class KeyObservation(msgspec.Struct, frozen=True):
    """Heat windows, oldest first, and the current layouts and pins."""

    windows: list[WindowHeat]
    layouts: Mapping[str, Layout]
    pins: Mapping[str, Decision]
    version: int = 0


@dataclass(slots=True)
class _Memory:
    """What the policy remembers of a key between windows.

    `refused_s` is the lowest rate per bucket at which the store throttled the key for its own load.
    """

    peak: RecentPeak
    since_s: float
    last_s: float
    last_units_s: float
    refused_s: float = inf


class BucketPolicy:
    """Adds buckets at once and by forecast, removes them after a cool-down, and obeys pins."""

    def __init__(self, rules: BucketRules) -> None:
        self._rules = rules
        self._memory: dict[str, _Memory] = {}
        self._spread: dict[str, None] = {}  # in the layouts' order, so that decisions have one too
        self._spread_version = -1
        self._swept_s = 0.0
        self._last_window = 0

    def decide(self, observation: KeyObservation) -> list[Decision]:
        self._note_spread_keys(observation)
        wanted: dict[str, Decision] = {}
        for window in observation.windows:
            self._notice_blindness(window)
            wanted.update(self._shrink(window, observation.layouts))
            for key, decision in self._grow(window, observation.layouts).items():
                if (decision.value or 0) > (wanted[key].value or 0 if key in wanted else 0):
                    wanted[key] = decision
        for key in observation.pins:
            wanted.pop(key, None)
        allowed = self._within_budget(list(wanted.values()), observation.layouts) if wanted else []
        return [*_pinned(observation), *allowed]

    def _notice_blindness(self, window: WindowHeat) -> None:
        """Restart cool-downs after missing windows: a lost report does not mean a low load."""
        if window.complete:
            if window.window - self._last_window > BLIND_WINDOWS:
                self._memory.clear()
            self._last_window = window.window

    def _note_spread_keys(self, observation: KeyObservation) -> None:
        if observation.version != self._spread_version:
            layouts = observation.layouts
            spread = (key for key, layout in layouts.items() if layout.buckets > 1)
            self._spread = {key: None for key in spread if subject_of(key).has_rows}
            self._spread_version = observation.version

    def _grow(self, window: WindowHeat, layouts: Mapping[str, Layout]) -> dict[str, Decision]:
        grown = {}
        for key, heat in window.keys.items():
            layout = layouts.get(key, COLD)
            demand, why = self._demand(key, heat, window)
            if self._suffers(heat, window, layout):
                self._remember_refusal(key, heat, layout)
                demand = max(demand, 1.25 * layout.buckets * self._rules.bucket_units_s)
                why = f"{heat.throttles_s:,.0f} throttled/s on {_count(layout.buckets)}; {why}"
            needed = self._rules.buckets_for(demand)
            if needed > layout.buckets:
                reason = f"{why}; a bucket should get at most {self._rules.bucket_units_s:,}"
                grown[key] = for_key(key, BUCKETS, needed, reason)
        if window.complete:
            self._forget(window.start_s)
        return grown

    def _demand(self, key: str, heat: KeyHeat, window: WindowHeat) -> tuple[float, str]:
        """The rate to provide for: the measured one or, after a complete window, the forecast."""
        rate = heat.write_units_s
        why = f"{rate:,.0f} write units/s"
        if not window.complete:
            return rate, why
        ahead = self._ahead(self._memory.get(key), rate, window.start_s)
        self._remember(key, rate, window.start_s)
        if ahead > rate:
            why += f", {ahead:,.0f} expected in {self._rules.forecast_s:g} s"
        return ahead, why

    def _ahead(self, memory: _Memory | None, rate: float, start_s: float) -> float:
        """The forecast rate, for keys that fill half a bucket; below that a slope is noise."""
        if memory is None or rate < self._rules.bucket_units_s / 2 or memory.last_s >= start_s:
            return rate
        interval_s = start_s - memory.last_s
        ahead = forecast(memory.last_units_s, rate, interval_s, self._rules.forecast_s)
        return min(ahead, FORECAST_GROWTH_MAX * rate)

    def _remember(self, key: str, rate: float, start_s: float) -> None:
        memory = self._memory.get(key)
        if memory is None:
            memory = _Memory(RecentPeak(self._rules.cool_down_s), start_s, start_s, rate)
            self._memory[key] = memory
        memory.peak.add(start_s, rate)
        memory.last_s, memory.last_units_s = start_s, rate

    def _suffers(self, heat: KeyHeat, window: WindowHeat, layout: Layout) -> bool:
        """Whether the key was throttled for its own load, in a window with its current layout."""
        in_force = layout.epochs[-1].start_ms <= window.start_s * 1000
        return in_force and suffers_from(heat, self._rules, layout.buckets) == "key"

    def _remember_refusal(self, key: str, heat: KeyHeat, layout: Layout) -> None:
        """Note a partition that takes less than the rules assume, so as not to shrink too far."""
        memory = self._memory.get(key)
        if memory is not None and _is_most_of_its_partition(heat, layout.buckets):
            memory.refused_s = min(memory.refused_s, heat.write_units_s / layout.buckets)

    def _shrink(self, window: WindowHeat, layouts: Mapping[str, Layout]) -> dict[str, Decision]:
        """Review the spread keys twenty times per cool-down, not in every window."""
        due = window.start_s - self._swept_s >= self._rules.cool_down_s / 20
        if not (self._rules.shrink and window.complete and due):
            return {}
        self._swept_s = window.start_s
        fewer = {key: self._fewer(key, window, layouts[key]) for key in self._spread}
        return {key: decision for key, decision in fewer.items() if decision is not None}

    def _fewer(self, key: str, window: WindowHeat, layout: Layout) -> Decision | None:
        if key not in self._memory:
            self._remember(key, 0.0, window.start_s)
        memory = self._memory[key]
        calm_since_s = max(layout.epochs[-1].start_ms / 1000, memory.since_s)
        if window.start_s - calm_since_s < self._rules.cool_down_s:
            return None
        now = window.keys[key].write_units_s if key in window.keys else 0.0
        peak = max(memory.peak.at(window.start_s), now)
        takes = min(1.0, memory.refused_s / self._rules.bucket_units_s)
        buckets = self._rules.buckets_for(peak / self._rules.shrink_fill / takes)
        if buckets > SHRINK_TO_MAX * layout.buckets:
            return None
        calm = f"at most {peak:,.0f} write units/s for {self._rules.cool_down_s:,.0f} s"
        fill = f"{_count(buckets)} would be at most {self._rules.shrink_fill:.0%} full"
        return for_key(key, BUCKETS, buckets, f"{calm}: {fill}")

    def _forget(self, start_s: float) -> None:
        """Drop keys with one bucket that were not in the latest window."""
        stale = [key for key, memory in self._memory.items() if memory.last_s < start_s]
        for key in stale:
            if key not in self._spread:
                del self._memory[key]

    def _within_budget(
        self, decisions: list[Decision], layouts: Mapping[str, Layout]
    ) -> list[Decision]:
        """Keep growth within the deployment's budget, which bounds the cost of reads."""
        left = self._rules.extra_buckets_max - sum(layouts[key].buckets - 1 for key in self._spread)
        allowed = []
        for decision in decisions:
            buckets = layouts.get(decision.key, COLD).buckets
            growth = min((decision.value or 1) - buckets, max(left, 0))
            if growth:
                left -= growth
                allowed.append(msgspec.structs.replace(decision, value=buckets + growth))
        return allowed


def _pinned(observation: KeyObservation) -> list[Decision]:
    return [
        for_key(key, BUCKETS, pin.value, _reason_of(pin))
        for key, pin in observation.pins.items()
        if observation.layouts.get(key, COLD).buckets != pin.value
    ]


def _reason_of(pin: Decision) -> str:
    """An author's mode is stored as a pin, whether an operator or a rule chose it: it says so."""
    return pin.reason if pin.subject.kind is Kind.AUTHOR else f"pinned: {pin.reason}"


def _count(buckets: int) -> str:
    return "1 bucket" if buckets == 1 else f"{buckets} buckets"
