"""One table under one combination of remedies. Every request of the trace passes through it.

The remedies run the production code, and their clock is the time of the trace: tracker, aggregator
and bucket policy for hot keys, and near caches for hot reads. The capacity model of the emulator
simulates how the store itself adapts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from random import Random

import msgspec

from heatsink.emulator.capacity.limits import SplitSettings
from heatsink.emulator.capacity.table import AdaptiveTable
from heatsink.emulator.rows import token_of
from heatsink.emulator.units import WRITE_UNIT_BYTES, read_units, write_units
from heatsink.heat.count import NO_KEYS, Tracker, thinned
from heatsink.heat.fleet import Aggregator
from heatsink.heat.heat import Report, WindowHeat
from heatsink.heat.report import KEYS_MAX, LOOK_S, ReportSettings
from heatsink.primitives.keys import partition_of
from heatsink.reads.near_cache import NearCache, ReadSettings
from heatsink.reads.policy import NearPolicy, ReadObservation
from heatsink.registry.closed_time import HORIZON_MS
from heatsink.registry.decisions import Decision, SpreadKeys
from heatsink.registry.layouts import COLD, Layout
from heatsink.spread.policy import BucketPolicy, BucketRules, KeyObservation

from .settings import Period, PlanSettings
from .traces import TraceRequest

Choose = Callable[[str, list[int]], int]
SERVER = "all"
QUIET_S = 3_600.0  # after this time without a request nothing more changes
WINDOW_S_MAX = 60.0
WEIGHT_A_SECOND = 8  # so a window holds a hundred requests for a key that fills a bucket


class Absorbing:
    """The remedy for hot reads: each app server caches the values that it reads for a short time.

    The caches and the policy are the production code. A load takes no time here, so readers never
    wait for each other's loads. A write invalidates the key in the cache of the app server that
    writes, as production does for pages of a log. That server sees the write immediately, other
    servers after `fresh_for`. In a sampled trace a key is read `weight` times less often than in
    reality, so cached values age `weight` times more slowly.
    """

    def __init__(self, settings: PlanSettings, weight: int, rng: Random) -> None:
        self.near: dict[str, Decision] = {}
        self.absorbed = 0
        self._settings = settings
        self._policy = NearPolicy(settings.near)
        self._caches = [NearCache(ReadSettings().capacity) for _ in range(settings.servers)]
        self._jitter_s = ReadSettings().jitter * settings.fresh_for * weight
        self._weight = weight
        self._chance = rng.random

    def decide(self, windows: list[WindowHeat]) -> None:
        for window in windows:
            if window.complete:
                seen = ReadObservation(window, self._settings.servers, self.near)
                for decision in self._policy.decide(seen):
                    self._apply(decision)

    def _apply(self, decision: Decision) -> None:
        if decision.value is None:
            self.near.pop(decision.key, None)
        else:
            self.near[decision.key] = decision

    def read(self, key: str, now_s: float, load: Callable[[], bool]) -> bool:
        """Read `key` on a random app server. Return whether the reader gets a value.

        `load` returns whether the store serves the read. A value older than `fresh_for` is loaded
        again. If this load fails, the reader still gets the cached value, up to the age
        `stale_for`.
        """
        cache = self._cache()
        entry = cache.entries.get(key)
        age_s = inf if entry is None else (now_s - entry.aged_from_s) / self._weight
        if entry is not None and age_s < self._settings.stale_for:
            entry.hits += 1
            if age_s < self._kept_s(key) or now_s < entry.rests_until_s:
                self.absorbed += 1
            elif load():
                self._keep(cache, key, now_s)
            else:
                entry.rests_until_s = now_s + self._settings.fresh_for * self._weight
            return True
        if not load():
            return False
        self._keep(cache, key, now_s)
        return True

    def _cache(self) -> NearCache:
        return self._caches[int(self._chance() * len(self._caches))]

    def _keep(self, cache: NearCache, key: str, now_s: float) -> None:
        cache.put(key, True, now_s - self._jitter_s * self._chance(), key in self.near)

    def _kept_s(self, key: str) -> float:
        """Return for how many seconds a cached value of `key` is served without a load.

        For a near key this may be longer than `fresh_for`.
        """
        decision = self.near.get(key)
        if decision is None or decision.value is None:
            return self._settings.fresh_for
        return max(self._settings.fresh_for, decision.value / 1_000)

    def wrote(self, key: str) -> None:
        cache = self._cache()
        if key in cache.entries:
            cache.forget(key)


def by_chance(rng: Random) -> Choose:
    """Return a function that chooses a bucket at random, as the hash of an id does."""
    chance = rng.random
    return lambda _key, tokens: tokens[int(chance() * len(tokens))]


def in_turn() -> Choose:
    """Return a function that chooses the buckets of a key in turn, for samples.

    A request of a sample stands for many requests, which would be spread evenly.
    """
    turns: dict[str, int] = {}

    def choose(key: str, tokens: list[int]) -> int:
        turns[key] = turn = turns.get(key, -1) + 1
        return tokens[turn % len(tokens)]

    return choose


class Spreading:
    """The remedy for hot keys: writes go to as many buckets as production would decide.

    The production policy decides from the fleet's heat, and a new epoch begins after the registry's
    horizon. `bucket_hours` leaves out the first bucket of each key: a key that has three buckets
    for three hours has six bucket hours.
    """

    def __init__(self, rules: BucketRules) -> None:
        self.layouts: dict[str, Layout] = {}
        self.buckets_max = 1
        self.bucket_hours = 0.0
        self.keys: set[str] = set()
        self._policy = BucketPolicy(rules)
        self._spread = SpreadKeys(self.layouts)
        self._extra = 0
        self._counted_s: float | None = None
        self._tokens: dict[str, list[int]] = {}

    def decide(self, windows: list[WindowHeat], now_s: float) -> None:
        decided = self._policy.decide(KeyObservation(windows, self.layouts, {}, self._spread))
        for decision in decided:
            layout = self.layouts.get(decision.key, COLD)
            if not layout.full:
                self.count(now_s)
                self._change(decision.key, layout, decision.value or 1, now_s)

    def _change(self, key: str, layout: Layout, buckets: int, now_s: float) -> None:
        start_ms = max(int(now_s * 1000) + HORIZON_MS, layout.epochs[-1].start_ms + 1)
        self.layouts[key] = longer = layout.then(start_ms, buckets)
        self._spread.note(key, layout, longer)
        self._extra += buckets - layout.buckets
        self.buckets_max = max(self.buckets_max, buckets)
        self.keys.add(key)

    def count(self, now_s: float) -> None:
        """Bring `bucket_hours` up to date at the time `now_s`.

        Since the last call of `count`, every bucket except the first of each key has added its
        hours.
        """
        if self._counted_s is not None:
            self.bucket_hours += self._extra * (now_s - self._counted_s) / 3_600
        self._counted_s = now_s

    def tokens(self, key: str, now_s: float) -> list[int] | None:
        """Return the hashes of the key's buckets; None while the key has only one bucket.

        The hash of a bucket determines its partition.
        """
        layout = self.layouts.get(key)
        if layout is None:
            return None
        buckets = layout.epoch_at(int(now_s * 1000)).buckets
        if buckets == 1:
            return None
        known = self._tokens.setdefault(key, [])
        while len(known) < buckets:
            known.append(token_of(partition_of(key, len(known))))
        return known if len(known) == buckets else known[:buckets]


class Watch:
    """The fleet's heat as a coordinator sees it, on the time of the trace.

    This class runs the production tracker, reports and aggregator with their timing. Counts are
    read ten times per window, keys with rising load are reported early, and a window is complete a
    little after its end. One tracker stands for all app servers, since the sum of their reports
    would be the same. `early` says whether rising keys are reported early. Only a whole trace
    allows this: a sample has too few requests.
    """

    def __init__(self, window_s: float, bucket_units_s: int, early: bool, now_s: float) -> None:
        alarm_units = max(int(bucket_units_s * window_s / 2), 1)
        self.tracker = Tracker(alarm_units=alarm_units, rng=Random(1))
        self.next_look_s = now_s
        self._settings = ReportSettings(window_s=window_s, bucket_units_s=bucket_units_s)
        floor_s = self._settings.floor_share * bucket_units_s
        self._aggregator = Aggregator(window_s, listed_s=floor_s)
        self._early = early
        self._look_s = LOOK_S * window_s
        self._window = int(now_s / window_s)
        self._since_s = now_s

    def look(self) -> list[WindowHeat]:
        """Advance to the coordinator's next turn, and return the heat that it learns then."""
        now_s = self.next_look_s
        self.next_look_s += self._look_s
        report = self._report(now_s)
        if report is not None:
            self._aggregator.add(report, now_s)
        return self._aggregator.take(now_s)

    def _report(self, now_s: float) -> Report | None:
        window, elapsed_s = int(now_s / self._settings.window_s), now_s - self._since_s
        if window == self._window:
            rising = self.tracker.alarms() if self._early else {}
            return Report(SERVER, window, elapsed_s, False, 1, rising) if rising else None
        ended, self._window, self._since_s = self._window, window, now_s
        listed = self.tracker.roll().listed(NO_KEYS, self.tracker.rng)
        keys, tau = thinned(listed, KEYS_MAX, self.tracker.rng)
        return Report(SERVER, ended, elapsed_s, True, tau, keys)


class Remedy(msgspec.Struct, frozen=True):
    """A combination of measures against throttling, which a plan tries on the same traffic.

    `adaptive` is the adaptive capacity of the store itself. `spread` (buckets for hot keys) and
    `absorb` (near caches for hot reads) are Heatsink's measures.
    """

    name: str
    adaptive: bool = False
    spread: bool = False
    absorb: bool = False


NOTHING = Remedy("nothing")
REMEDIES = (
    NOTHING,
    Remedy("adaptive", adaptive=True),
    Remedy("spread", spread=True),
    Remedy("absorb", absorb=True),
    Remedy("spread + absorb", spread=True, absorb=True),
    Remedy("all three", adaptive=True, spread=True, absorb=True),
)


class PlanStage(msgspec.Struct, frozen=True):
    """How all lanes start: the weight of a request, the time of the first one, and the partitions.

    Lanes count requests in periods of `period_s`. For a sample, windows of heat are longer than for
    a whole trace.
    """

    weight: int
    start_s: float
    partitions: int
    period_s: float

    @property
    def is_sample(self) -> bool:
        return self.weight > 1

    @property
    def window_s(self) -> float:
        return min(max(self.weight / WEIGHT_A_SECOND, 1.0), WINDOW_S_MAX)


class PlanLane:
    """A table under one remedy. Call `take` with every request, in order of time."""

    def __init__(
        self, remedy: Remedy, settings: PlanSettings, stage: PlanStage, rng: Random
    ) -> None:
        self.remedy = remedy
        self.periods: list[Period] = []
        self.table = AdaptiveTable(
            _split_settings(remedy, settings, stage),
            settings.capacity,
            stage.partitions,
            stage.start_s - stage.window_s,  # the table existed before, and was quiet
        )
        self.partitions_at_first = stage.partitions
        watched = remedy.spread or remedy.absorb
        units_s = settings.buckets.bucket_units_s
        self._watch = (
            Watch(stage.window_s, units_s, not stage.is_sample, stage.start_s) if watched else None
        )
        self.spreading = Spreading(settings.buckets) if remedy.spread else None
        self._choose = in_turn() if stage.is_sample else by_chance(rng)
        self.absorbing = Absorbing(settings, stage.weight, rng) if remedy.absorb else None
        self._settings = settings
        self._weight = stage.weight
        self._start_s = stage.start_s
        self._window_s = stage.window_s
        self._review_s = stage.start_s
        self._period_s = stage.period_s
        self._period = Period(-1)
        self._period_ends_s = stage.start_s

    def take(self, request: TraceRequest, token: int) -> None:
        now_s, key, is_write, size = request
        if now_s >= self._review_s:
            self._review(now_s)
        if self._watch is not None and now_s >= self._watch.next_look_s:
            self._look(self._watch, now_s)
        if now_s >= self._period_ends_s:
            self._begin_period(now_s)
        self._period.requests += 1
        serve = self._write if is_write else self._read
        if not serve(key, token, size, now_s):
            self._period.throttled += 1

    def end(self, now_s: float) -> None:
        if self.spreading is not None:
            self.spreading.count(now_s)

    def _write(self, key: str, token: int, size: int, now_s: float) -> bool:
        units = write_units(size)
        if self._watch is not None:
            counted_bytes = int(units) * WRITE_UNIT_BYTES * self._weight
            self._watch.tracker.record(key, self._weight, counted_bytes)
        if self.absorbing is not None:
            self.absorbing.wrote(key)
        if self.spreading is not None:
            tokens = self.spreading.tokens(key, now_s)
            token = token if tokens is None else self._choose(key, tokens)
        accepted = self.table.charge(token, units * self._weight, 0.0, now_s).accepted
        if accepted:
            self._period.write_units += units
            self._period.plain_writes += units
        elif self._watch is not None:
            self._watch.tracker.record_throttle(key, self._weight)
        return accepted

    def _read(self, key: str, token: int, size: int, now_s: float) -> bool:
        units = read_units(size, self._settings.consistent_reads)
        if self.absorbing is None or self._watch is None:
            served = self._load(key, token, size, units, now_s)
        else:
            self._watch.tracker.record_read(key, self._weight)
            load = partial(self._load, key, token, size, units, now_s)
            served = self.absorbing.read(key, now_s, load)
        if served:
            self._period.plain_reads += units
        return served

    def _load(self, key: str, token: int, size: int, units: float, now_s: float) -> bool:
        tokens = None if self.spreading is None else self.spreading.tokens(key, now_s)
        if tokens is None:
            return self._charge_reads([token], units, now_s)
        if self._settings.all_buckets:
            part = read_units(-(-size // len(tokens)), self._settings.consistent_reads)
            return self._charge_reads(tokens, part, now_s)
        return self._charge_reads([self._choose(key, tokens)], units, now_s)

    def _charge_reads(self, tokens: list[int], units: float, now_s: float) -> bool:
        """Charge a read to each bucket in `tokens`. Return False if any of them throttles it."""
        weighed, charge = units * self._weight, self.table.charge
        accepted = sum([charge(token, 0.0, weighed, now_s).accepted for token in tokens])
        self._period.read_units += units * accepted
        return accepted == len(tokens)

    def _review(self, now_s: float) -> None:
        self._review_s = now_s + self._window_s
        if self.remedy.adaptive:
            self.table.review(now_s)

    def _look(self, watch: Watch, now_s: float) -> None:
        """Play the turns that a coordinator would have taken since the last request.

        In a long pause without requests, only the turns of the first QUIET_S seconds are played.
        """
        until_s = min(now_s, watch.next_look_s + QUIET_S)
        while watch.next_look_s <= until_s:
            at_s = watch.next_look_s
            windows = watch.look()
            if self.spreading is not None:
                self.spreading.decide(windows, at_s)
            if self.absorbing is not None:
                self.absorbing.decide(windows)
        watch.next_look_s = max(watch.next_look_s, now_s)

    def _begin_period(self, now_s: float) -> None:
        number = int((now_s - self._start_s) / self._period_s)
        self._period = Period(number, self._period_s)
        self._period_ends_s = self._start_s + (number + 1) * self._period_s
        self.periods.append(self._period)


def _split_settings(remedy: Remedy, settings: PlanSettings, stage: PlanStage) -> SplitSettings:
    """Return the settings of partitions. Without adaptive capacity, they do not lend or split."""
    ceiling_s = settings.split.ceiling_s * stage.window_s
    changed = msgspec.structs.replace(settings.split, ceiling_s=ceiling_s)
    if remedy.adaptive:
        return changed
    return msgspec.structs.replace(changed, lend=False, split_after_s=None, merge_after_s=None)
