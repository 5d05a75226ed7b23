"""One table under one combination of remedies: every request of the trace comes through here."""

from __future__ import annotations

from functools import partial
from random import Random

import msgspec

from heatsink.dynamo.capacity import WRITE_UNIT_BYTES, read_units, write_units
from heatsink.split.settings import SplitSettings
from heatsink.split.table import AdaptiveTable

from .absorbing import Absorbing
from .settings import PlanSettings
from .spreading import Spreading, by_chance, in_turn
from .tally import MINUTE_S, Minute
from .traces.trace import Request
from .watch import Watch

QUIET_S = 3_600.0  # longer than this without a request, and nothing changes any more
WINDOW_S_MAX = 60.0
WEIGHT_A_SECOND = 8  # so a window holds a hundred requests for a key that fills a bucket


class Remedy(msgspec.Struct, frozen=True):
    """What is switched on: the store's own adaptive capacity, and what Heatsink does."""

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


class Stage(msgspec.Struct, frozen=True):
    """What all lanes begin with. A sample is judged over longer windows than the whole."""

    weight: int
    start_s: float
    partitions: int

    @property
    def is_sample(self) -> bool:
        return self.weight > 1

    @property
    def window_s(self) -> float:
        return min(max(self.weight / WEIGHT_A_SECOND, 1.0), WINDOW_S_MAX)


class Lane:
    """`take` is called with every request, in the order of time."""

    def __init__(self, remedy: Remedy, settings: PlanSettings, stage: Stage, rng: Random) -> None:
        self.remedy = remedy
        self.minutes: list[Minute] = []
        self.table = AdaptiveTable(
            _split_settings(remedy, settings, stage),
            settings.capacity,
            stage.partitions,
            stage.start_s - stage.window_s,  # the table was there before, and quiet
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
        self._minute = Minute(-1)
        self._minute_ends_s = stage.start_s

    def take(self, request: Request, token: int) -> None:
        now_s, key, is_write, size = request
        if now_s >= self._review_s:
            self._review(now_s)
        if self._watch is not None and now_s >= self._watch.next_look_s:
            self._look(self._watch, now_s)
        if now_s >= self._minute_ends_s:
            self._begin_minute(now_s)
        self._minute.requests += 1
        serve = self._write if is_write else self._read
        if not serve(key, token, size, now_s):
            self._minute.throttled += 1

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
            self._minute.write_units += units
            self._minute.plain_writes += units
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
            self._minute.plain_reads += units
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
        """All are asked at once, and all must answer."""
        weighed, charge = units * self._weight, self.table.charge
        accepted = sum([charge(token, 0.0, weighed, now_s).accepted for token in tokens])
        self._minute.read_units += units * accepted
        return accepted == len(tokens)

    def _review(self, now_s: float) -> None:
        self._review_s = now_s + self._window_s
        if self.remedy.adaptive:
            self.table.review(now_s)

    def _look(self, watch: Watch, now_s: float) -> None:
        """Look as often as the coordinator would have, since the request before this one."""
        until_s = min(now_s, watch.next_look_s + QUIET_S)
        while watch.next_look_s <= until_s:
            at_s = watch.next_look_s
            windows = watch.look()
            if self.spreading is not None:
                self.spreading.decide(windows, at_s)
            if self.absorbing is not None:
                self.absorbing.decide(windows)
        watch.next_look_s = max(watch.next_look_s, now_s)

    def _begin_minute(self, now_s: float) -> None:
        number = int((now_s - self._start_s) / MINUTE_S)
        self._minute = Minute(number)
        self._minute_ends_s = self._start_s + (number + 1) * MINUTE_S
        self.minutes.append(self._minute)


def _split_settings(remedy: Remedy, settings: PlanSettings, stage: Stage) -> SplitSettings:
    """Without adaptive capacity partitions neither lend nor split."""
    ceiling_s = settings.split.ceiling_s * stage.window_s
    changed = msgspec.structs.replace(settings.split, ceiling_s=ceiling_s)
    if remedy.adaptive:
        return changed
    return msgspec.structs.replace(changed, lend=False, split_after_s=None, merge_after_s=None)
