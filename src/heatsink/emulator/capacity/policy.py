"""Decides how to relieve a hot partition, and says why. The input is measurements, not events.

    hot for long enough ─┬─ it holds one key ──────────────▶ CannotHelp: spread the key
                         ├─ no more partitions allowed ────▶ CannotHelp
                         ├─ one key causes most of it ─────▶ Isolate that key
                         └─ else ──────────────────────────▶ Split at the median of the heat
    both neighbours calm for long enough ──────────────────▶ Merge

Lending needs no decision: a partition that has used up its share borrows with each request. `Lend`
only reports that a partition has begun to borrow.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec

from .limits import SplitSettings

KEYS_MAX = 256
BINS = 64
NOTHING = 1e-6


class HottestKey(NamedTuple):
    """The hottest key of a partition, and its share of the partition's heat."""

    key: int
    share: float


class HeatSketch:
    """Estimates, in bounded memory, which keys cause the heat of one partition.

    A heat of 1.0 is what one partition may serve in a second. The sketch counts at most twice
    `KEYS_MAX` keys. When there are more, the sketch drops all but the `KEYS_MAX` hottest keys. The
    partition's range is divided into `BINS` bins, and the heat of a dropped key is added to its
    bin. All counts halve every second, so the sketch shows the last few seconds.
    """

    __slots__ = ("_bins", "_start", "_width", "keys")

    def __init__(self, start: int, end: int) -> None:
        self._start = start
        self._width = -(-(end - start) // BINS)
        self._bins: dict[int, float] = {}
        self.keys: dict[int, float] = {}

    def add(self, key: int, heat: float) -> None:
        keys = self.keys
        keys[key] = keys.get(key, 0.0) + heat
        if len(keys) > 2 * KEYS_MAX:
            self._let_go()

    def _let_go(self) -> None:
        by_heat = sorted(self.keys.items(), key=lambda item: item[1], reverse=True)
        self.keys = dict(by_heat[:KEYS_MAX])
        for key, heat in by_heat[KEYS_MAX:]:
            place = self._start + (key - self._start) // self._width * self._width
            self._bins[place] = self._bins.get(place, 0.0) + heat

    def fade(self, elapsed_s: float) -> None:
        """Halve all counts for each second in `elapsed_s`."""
        left = 0.5**elapsed_s
        self.keys = _faded(self.keys, left)
        self._bins = _faded(self._bins, left)

    def points(self) -> list[tuple[int, float]]:
        """Return pairs of hash and heat, by hash. Dropped keys count at the start of their bin."""
        merged = dict(self._bins)
        for key, heat in self.keys.items():
            merged[key] = merged.get(key, 0.0) + heat
        return sorted(merged.items())

    def hottest(self) -> HottestKey | None:
        if not self.keys:
            return None
        key = max(self.keys, key=self.keys.__getitem__)
        total = sum(self.keys.values()) + sum(self._bins.values())
        if not total:  # after a long time without requests, the counts have faded to 0.0
            return None
        return HottestKey(key, self.keys[key] / total)

    def median(self) -> int | None:
        """Return the hash at which a split divides the heat most equally.

        Returns None if all heat is at one hash.
        """
        points = self.points()
        total, before = sum(heat for _, heat in points), 0.0
        best, place = total, None
        for (_, heat), (following, _) in pairwise(points):
            before += heat
            if abs(total - 2 * before) < best:
                best, place = abs(total - 2 * before), following
        return place

    def part(self, start: int, end: int) -> dict[int, float]:
        """Return the heat of the counted keys in [start, end), by hash.

        A new partition of this range starts with this heat.
        """
        return {key: heat for key, heat in self.keys.items() if start <= key < end}


def _faded(counts: dict[int, float], left: float) -> dict[int, float]:
    return {place: heat * left for place, heat in counts.items() if heat > NOTHING}


class Lend(msgspec.Struct, frozen=True, tag=True):
    """Reports that the partition began to use throughput that other partitions leave unused."""

    partition: int
    reason: str


class Split(msgspec.Struct, frozen=True, tag=True):
    """Splits a partition in two. The second one starts with the hash `at`."""

    partition: int
    at: int
    reason: str


class Isolate(msgspec.Struct, frozen=True, tag=True):
    """Gives the key with the hash `key` a partition of its own."""

    partition: int
    key: int
    reason: str


class Merge(msgspec.Struct, frozen=True, tag=True):
    """Merges `partition` with `other`, the partition that follows it."""

    partition: int
    other: int
    reason: str


class CannotHelp(msgspec.Struct, frozen=True, tag=True):
    """Reports that a partition stays over its limit and that the table cannot relieve it."""

    partition: int
    reason: str


Change = Lend | Split | Isolate | Merge | CannotHelp


class PartitionLook(msgspec.Struct, frozen=True):
    """Measurements of one partition.

    `hot_for_s` and `calm_for_s` say for how long the partition has been hot or calm without a
    break. `since_change_s` is the time since the partition was made by a split, isolation or merge.
    """

    number: int
    is_one_key: bool
    writes_s: float
    reads_s: float
    hot_for_s: float
    calm_for_s: float
    since_change_s: float
    heat: HeatSketch


def load(writes_s: float, reads_s: float, settings: SplitSettings) -> float:
    """Return how full a partition is. 1.0 means that the partition is at a limit.

    The load is `writes_s` as a share of the limit for writes or `reads_s` as a share of the limit
    for reads, whichever is larger.
    """
    return max(writes_s / settings.write_units, reads_s / settings.read_units)


def is_calm(full: float, settings: SplitSettings) -> bool:
    """Return whether the load `full` is at most half of `merge_share`.

    Two such partitions can be merged into one.
    """
    return full <= settings.merge_share / 2


def relieve(
    look: PartitionLook, partitions: int, settings: SplitSettings
) -> Split | Isolate | CannotHelp | None:
    """Return the change that relieves a hot partition, or a report that none can.

    Returns None if the partition was not hot for long enough, or changed a short time ago.
    `partitions` is the table's number of partitions.
    """
    if settings.split_after_s is None or look.hot_for_s < max(settings.split_after_s, 0.001):
        return None
    if look.since_change_s < settings.cool_down_s:
        return None
    hottest = look.heat.hottest()
    if look.is_one_key or hottest is None:
        return _cannot(look, settings, "it holds one key, and a key is never split: spread it")
    if partitions >= settings.partitions_max:
        most = f"the table has its maximum of {settings.partitions_max:,} partitions"
        return _cannot(look, settings, most)
    median = look.heat.median()
    if median is None or hottest.share > settings.isolate_share:
        reason = f"{_measured(look, settings)}; one key has {hottest.share:.0%} of it"
        return Isolate(look.number, hottest.key, reason)
    reason = f"{_measured(look, settings)}; no key has more than {hottest.share:.0%} of it"
    return Split(look.number, median, reason)


def _cannot(look: PartitionLook, settings: SplitSettings, why: str) -> CannotHelp | None:
    """Return a report that the table cannot relieve the partition.

    Returns None if the partition's load is within its limit.
    """
    if load(look.writes_s, look.reads_s, settings) <= 1:
        return None
    return CannotHelp(look.number, f"{_measured(look, settings)}; {why}")


def _measured(look: PartitionLook, settings: SplitSettings) -> str:
    if look.writes_s / settings.write_units >= look.reads_s / settings.read_units:
        rate, limit, what = look.writes_s, settings.write_units, "write"
    else:
        rate, limit, what = look.reads_s, settings.read_units, "read"
    return f"{rate:,.0f} {what} units/s (limit {limit:,.0f}) for {look.hot_for_s:,.0f} s"


def unite(left: PartitionLook, right: PartitionLook, settings: SplitSettings) -> Merge | None:
    """Return the merge of two neighbouring partitions.

    Returns None unless both have been calm for long enough and neither changed a short time ago.
    """
    if settings.merge_after_s is None:
        return None
    calm_for_s = min(left.calm_for_s, right.calm_for_s)
    if calm_for_s < max(settings.merge_after_s, 0.001):
        return None
    if min(left.since_change_s, right.since_change_s) < settings.cool_down_s:
        return None
    share = settings.merge_share
    reason = f"together under {share:.0%} of a partition's limit for {calm_for_s:,.0f} s"
    return Merge(left.number, right.number, reason)
