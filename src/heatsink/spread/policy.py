"""Decide how many buckets each key should have."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

import msgspec

from heatsink.heat.heat import KeyHeat, WindowHeat
from heatsink.primitives.checks import CheckedStruct, check_kind, check_number, check_whole
from heatsink.primitives.damping import RecentPeak, forecast
from heatsink.primitives.subjects import Kind
from heatsink.primitives.words import counted
from heatsink.registry.decisions import BUCKETS, PINNED, Decision, SpreadKeys, for_key
from heatsink.registry.layouts import COLD, Layout

Culprit = Literal["key", "partition"]
THROTTLED_SHARE = 0.01
MOST = 0.5
PRECISE = 0.2  # of a rate: how far a precise rate may be too high, with a confidence of 99.9 %
CHANCE = 3.0  # standard deviations: how far a count of independent writes may be above its mean
FORECAST_GROWTH_MAX = 2.0  # a sudden jump is not extrapolated
SHRINK_TO_MAX = 0.75  # shrink only by a quarter or more: each change costs a layout
BLIND_WINDOWS = 3  # if more windows than this are missing in a row, cool-downs restart
SETTLE_S = 20.0  # how long a layout must last before buckets made for a forecast are taken back
KNOWN_PEAK = 1.05  # a rate up to this multiple of a known need is not extrapolated beyond that need
REVIEWS, REVIEWS_MAX = 1_000, 2_500  # spread keys that one window reviews, for fewer buckets
EPOCHS_PER_DOUBLING = 16  # the cool-down doubles with every so many epochs of a key


class BucketRules(CheckedStruct, frozen=True):
    """When a key gets more or fewer buckets, and how many.

    With `BucketRules(bucket_units_s=400)`, half of the default, a key gets twice as many buckets.
    An invalid value raises `InvalidSetting`.
    """

    bucket_units_s: int = 800
    """Write units per second that a bucket should carry: 80 % of a partition's limit."""
    buckets_max: int = 64
    """Maximum number of buckets of one key, up to 1,024."""
    forecast_s: float = 3.0
    """How far ahead to forecast a rising rate; 0 switches forecasting off.

    The default covers the window in which the rise shows, the horizon until a new epoch starts, and
    a spare second.
    """
    cool_down_s: float = 300.0
    """How long the load must stay low before a key gets fewer buckets.

    The time doubles with every 16 epochs of a key. So a key whose load comes and goes does not use
    up its 256 epochs.
    """
    shrink: bool = True
    """Whether a key may get fewer buckets. If False, only a pin reduces its buckets."""
    shrink_fill: float = 0.5
    """A key loses buckets only if each remaining bucket would then get at most this share of
    `bucket_units_s`."""
    extra_buckets_max: int = 100_000
    """Maximum number of buckets of all keys together, not counting the first bucket of each key."""

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

    def cool_down_after(self, epochs: int) -> float:
        """Return the cool-down, in seconds, of a key whose layout has this many epochs."""
        return self.cool_down_s * 2.0 ** (epochs // EPOCHS_PER_DOUBLING)


def suffers_from(heat: KeyHeat, rules: BucketRules, buckets: int = 1) -> Culprit | None:
    """Return why a key is throttled: "key" (its own load) or "partition" (the load of other keys).

    Returns None if the key is hardly throttled. A key that fills less than half a bucket normally
    does not make a partition hot. The exception is a key that makes up most of its partition's
    load, according to the store. If other keys in the same partition are the cause, more buckets
    for this key do not help. Then only the store can help, by splitting the partition.
    """
    if heat.throttles_s <= THROTTLED_SHARE * heat.writes_s:
        return None
    fills = heat.write_units_s >= rules.bucket_units_s / 2
    return "key" if fills or _is_most_of_its_partition(heat, buckets) else "partition"


def _is_most_of_its_partition(heat: KeyHeat, buckets: int) -> bool:
    in_all_s = heat.partition_units_s
    return in_all_s is not None and heat.write_units_s / buckets >= MOST * in_all_s


class KeyObservation(msgspec.Struct, frozen=True):
    """The input of the policy: heat windows, oldest first, and current layouts and pins.

    `spread` names the keys of `layouts` that have more than one bucket. None means that the policy
    looks for them in `layouts`, which takes long if there are many.
    """

    windows: list[WindowHeat]
    layouts: Mapping[str, Layout]
    pins: Mapping[str, Decision]
    spread: SpreadKeys | None = None


@dataclass(slots=True)
class _Memory:
    """What the policy remembers of a key between windows.

    `last_most_s` is the upper end of the interval of the last rate. `needed` is the highest rate
    for which the key has needed buckets since its number of buckets last decreased. This is a
    measured rate, or a higher one if the store throttled the key. Forecasts are not included.
    `refused_s` is the lowest rate per bucket at which the store throttled the key for its own load.
    """

    peak: RecentPeak
    since_s: float
    last_s: float
    last_units_s: float
    last_most_s: float = 0.0
    needed: float = 0.0
    refused_s: float = inf


class BucketPolicy:
    """Adds buckets when a rate or its forecast needs them, and removes them after a cool-down.

    A forecast may ask for more buckets than the rate needs in the end. `_trim` removes such buckets
    as soon as the rate no longer rises. Pinned keys keep their number of buckets.
    """

    def __init__(self, rules: BucketRules) -> None:
        self._rules = rules
        self._memory: dict[str, _Memory] = {}
        self._spread = SpreadKeys({})
        self._forecast_buckets: dict[str, int] = {}  # what forecasts chose, until it is trimmed
        self._swept_s = 0.0
        self._unreviewed: deque[str] = deque()
        self._reviews = REVIEWS
        self._last_window = 0

    def adopt(self, rules: BucketRules) -> None:
        """Decide by these rules from now on."""
        self._rules = rules

    def decide(self, observation: KeyObservation) -> list[Decision]:
        self._spread = observation.spread or SpreadKeys(observation.layouts)
        wanted: dict[str, Decision] = {}
        for window in observation.windows:
            self._notice_blindness(window)
            wanted.update(self._shrink(window, observation.layouts))
            wanted.update(self._trim(window, observation.layouts))
            for key, decision in self._grow(window, observation.layouts).items():
                if (decision.value or 0) > (wanted[key].value or 0 if key in wanted else 0):
                    wanted[key] = decision
        for key in observation.pins:
            wanted.pop(key, None)
        allowed = self._within_budget(list(wanted.values()), observation.layouts) if wanted else []
        return [*_pinned(observation), *allowed]

    def _notice_blindness(self, window: WindowHeat) -> None:
        """Restart all cool-downs if windows are missing.

        A lost report does not mean that the load is low.
        """
        if window.complete:
            if window.window - self._last_window > BLIND_WINDOWS:
                self._memory.clear()
            self._last_window = window.window

    def _grow(self, window: WindowHeat, layouts: Mapping[str, Layout]) -> dict[str, Decision]:
        grown = {}
        for key, heat in window.keys.items():
            layout = layouts.get(key, COLD)
            demand, why = self._demand(key, heat, window)
            if self._suffers(heat, window, layout):
                relief = 1.25 * layout.buckets * self._rules.bucket_units_s
                self._remember_refusal(key, heat, layout, relief)
                demand = max(demand, relief)
                where = counted(layout.buckets, "bucket")
                why = f"{heat.throttles_s:,.0f} throttled/s on {where}; {why}"
            needed = self._rules.buckets_for(demand)
            if needed > layout.buckets and self._is_sure(heat, layout.buckets):
                self._remember_forecast(key, needed)
                reason = f"{why}; a bucket should get at most {self._rules.bucket_units_s:,}"
                grown[key] = for_key(key, BUCKETS, needed, reason)
        if window.complete:
            self._forget(window.start_s)
        return grown

    def _is_sure(self, heat: KeyHeat, buckets: int) -> bool:
        """Whether the rate is accurate enough to add buckets.

        If it is not, the key gets no buckets before a precise window. There is one exception: even
        at the lowest rate in the interval, the last of the key's present buckets would be more than
        half full.
        """
        is_precise = heat.below_s <= PRECISE * heat.write_units_s
        least_s = heat.write_units_s - heat.below_s
        return is_precise or least_s > (buckets - 0.5) * self._rules.bucket_units_s

    def _demand(self, key: str, heat: KeyHeat, window: WindowHeat) -> tuple[float, str]:
        """Return the rate for which a key needs buckets, and the reason in words.

        After a complete window the rate is the forecast, otherwise the measured rate.
        """
        rate = heat.write_units_s
        why = f"{rate:,.0f} write units/s"
        if not window.complete:
            return rate, why
        ahead = self._ahead(self._memory.get(key), heat, window.start_s)
        self._remember(key, rate, window.start_s, heat.bound_s or 0.0)
        if ahead > rate:
            why += f", {ahead:,.0f} expected in {self._rules.forecast_s:g} s"
        return ahead, why

    def _ahead(self, memory: _Memory | None, heat: KeyHeat, start_s: float) -> float:
        """The forecast of a key's rate. Below half a bucket's load it is the measured rate.

        The slope of such a low rate is noise. A rise is noise, too, if the intervals of the two
        rates overlap. (A key's rate is a rough estimate until servers watch the key, and even an
        exact count varies by chance.) If a rate returns to an earlier peak, the forecast does not
        exceed that peak. So neither noise nor another burst of the same size adds buckets.
        """
        rate = heat.write_units_s
        by_chance_s = CHANCE * rate / max(heat.writes_s, 1.0) ** 0.5
        least_s = rate - max(heat.below_s, by_chance_s)
        if memory is None or memory.last_s >= start_s:
            return rate
        if least_s < self._rules.bucket_units_s / 2 or least_s <= memory.last_most_s:
            return rate
        interval_s = start_s - memory.last_s
        ahead = forecast(memory.last_units_s, rate, interval_s, self._rules.forecast_s)
        if rate <= KNOWN_PEAK * memory.needed:
            ahead = min(ahead, max(rate, memory.needed))
        return min(ahead, FORECAST_GROWTH_MAX * rate)

    def _remember(self, key: str, rate: float, start_s: float, bound_s: float = 0.0) -> None:
        memory = self._memory.get(key)
        if memory is None:
            memory = _Memory(RecentPeak(self._rules.cool_down_s), start_s, start_s, rate)
            self._memory[key] = memory
        memory.peak.add(start_s, rate)
        memory.needed = max(memory.needed, rate)
        memory.last_s, memory.last_units_s, memory.last_most_s = start_s, rate, rate + bound_s

    def _remember_forecast(self, key: str, buckets: int) -> None:
        memory = self._memory.get(key)
        if memory is not None and buckets > self._rules.buckets_for(memory.needed) + 1:
            self._forecast_buckets[key] = buckets

    def _suffers(self, heat: KeyHeat, window: WindowHeat, layout: Layout) -> bool:
        """Return whether the key was throttled for its own load during its last epoch.

        The heat of a window that still runs is partly from before the epoch's start.
        """
        since_s = window.start_s if window.since_s is None else window.since_s
        in_force = window.complete and layout.epochs[-1].start_ms <= since_s * 1000
        return in_force and suffers_from(heat, self._rules, layout.buckets) == "key"

    def _remember_refusal(self, key: str, heat: KeyHeat, layout: Layout, relief: float) -> None:
        """Remember the rate at which the store throttled the key.

        `_shrink` uses the rate to leave enough buckets.
        """
        memory = self._memory.get(key)
        if memory is None:
            return
        memory.needed = max(memory.needed, relief)
        if _is_most_of_its_partition(heat, layout.buckets):
            memory.refused_s = min(memory.refused_s, heat.write_units_s / layout.buckets)

    def _shrink(self, window: WindowHeat, layouts: Mapping[str, Layout]) -> dict[str, Decision]:
        """The decisions that give keys fewer buckets after their cool-down.

        All spread keys are reviewed twenty times in a cool-down. If they are many, each window
        reviews up to `REVIEWS_MAX` of them, so that no turn takes long.
        """
        if not (self._rules.shrink and window.complete):
            return {}
        between_s = self._rules.cool_down_s / 20
        if not self._unreviewed and window.start_s - self._swept_s >= between_s:
            self._swept_s = window.start_s
            self._unreviewed = deque(self._spread.keys)
            in_time = ceil(len(self._spread.keys) / max(between_s, 1))
            self._reviews = min(max(REVIEWS, in_time), REVIEWS_MAX)
        fewer = {}
        for _ in range(min(self._reviews, len(self._unreviewed))):
            key = self._unreviewed.popleft()
            if key in self._spread.keys and (found := self._fewer(key, window, layouts[key])):
                fewer[key] = found
        return fewer

    def _fewer(self, key: str, window: WindowHeat, layout: Layout) -> Decision | None:
        if key not in self._memory:
            self._remember(key, 0.0, window.start_s)
        memory = self._memory[key]
        cool_down_s = self._rules.cool_down_after(len(layout.epochs))
        memory.peak.span_s = cool_down_s
        calm_since_s = max(layout.epochs[-1].start_ms / 1000, memory.since_s)
        if window.start_s - calm_since_s < cool_down_s:
            return None
        now = window.keys[key].write_units_s if key in window.keys else 0.0
        peak = max(memory.peak.at(window.start_s), now)
        takes = min(1.0, memory.refused_s / self._rules.bucket_units_s)
        buckets = self._rules.buckets_for(peak / self._rules.shrink_fill / takes)
        if buckets > SHRINK_TO_MAX * layout.buckets:
            return None
        memory.needed = peak
        calm = f"at most {peak:,.0f} write units/s for {cool_down_s:,.0f} s"
        fill = f"{counted(buckets, 'bucket')} would be at most {self._rules.shrink_fill:.0%} full"
        return for_key(key, BUCKETS, buckets, f"{calm}: {fill}")

    def _trim(self, window: WindowHeat, layouts: Mapping[str, Layout]) -> dict[str, Decision]:
        """The decisions that remove buckets that only a forecast needed.

        One such bucket may stay. A new leader does not know the forecasts of the leader before it.
        So a new leader removes such buckets only after a cool-down.
        """
        if not (self._rules.shrink and window.complete):
            return {}
        trimmed = {}
        for key, buckets in list(self._forecast_buckets.items()):
            memory, layout = self._memory.get(key), layouts.get(key, COLD)
            lasted_s = window.start_s - layout.epochs[-1].start_ms / 1000
            if lasted_s < SETTLE_S:
                continue
            del self._forecast_buckets[key]
            if memory is None or layout.buckets != buckets:
                continue
            needed = self._rules.buckets_for(memory.needed)
            if needed + 1 < buckets:
                level = f"the rate levelled off at {memory.needed:,.0f} write units/s"
                reason = f"{level}; {counted(buckets, 'bucket')} were made for a forecast"
                trimmed[key] = for_key(key, BUCKETS, needed, reason)
        return trimmed

    def _forget(self, start_s: float) -> None:
        """Forget the keys with one bucket that were not in the latest window."""
        stale = [key for key, memory in self._memory.items() if memory.last_s < start_s]
        for key in stale:
            if key not in self._spread.keys:
                del self._memory[key]

    def _within_budget(
        self, decisions: list[Decision], layouts: Mapping[str, Layout]
    ) -> list[Decision]:
        """The decisions, with fewer new buckets if `extra_buckets_max` would be exceeded.

        That setting bounds the cost of reads.
        """
        left = self._rules.extra_buckets_max - self._spread.extra
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
    """The reason to show for a pin: `pinned: ` and the pin's own reason.

    An author's mode is stored as a pin even if a rule chose it. The pin's own reason names the rule
    or the operator, so it is shown without `pinned: `.
    """
    return pin.reason if pin.subject.kind is Kind.AUTHOR else PINNED + pin.reason
