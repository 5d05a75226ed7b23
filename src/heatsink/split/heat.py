"""The heat inside one partition: which keys it comes from and where its middle lies.

Heat is in partitions' worth: 1.0 is what one partition may do in a second. Keys are counted up to a
bound; the coldest are then let go, and only the part of the range they lie in is remembered. Counts
halve with every second, so that what is seen is the last few seconds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

KEYS_MAX = 256
BINS = 64
NOTHING = 1e-6


class Hottest(NamedTuple):
    """The hottest key of a partition, and how much of its heat is that key's."""

    key: int
    share: float


class HeatSketch:
    """Bounded: at most twice `KEYS_MAX` keys and `BINS` bins, whatever is added."""

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
        """Time has passed: counts halve with every second of it."""
        left = 0.5**elapsed_s
        self.keys = _faded(self.keys, left)
        self._bins = _faded(self._bins, left)

    def points(self) -> list[tuple[int, float]]:
        """Heat by place, in order. Keys that were let go lie at the beginning of their bin."""
        merged = dict(self._bins)
        for key, heat in self.keys.items():
            merged[key] = merged.get(key, 0.0) + heat
        return sorted(merged.items())

    def hottest(self) -> Hottest | None:
        if not self.keys:
            return None
        key = max(self.keys, key=self.keys.__getitem__)
        total = sum(self.keys.values()) + sum(self._bins.values())
        return Hottest(key, self.keys[key] / total)

    def median(self) -> int | None:
        """The place that leaves heat on both sides, as equal as can be; None if there is none."""
        points = self.points()
        total, before = sum(heat for _, heat in points), 0.0
        best, place = total, None
        for (_, heat), (following, _) in pairwise(points):
            before += heat
            if abs(total - 2 * before) < best:
                best, place = abs(total - 2 * before), following
        return place

    def part(self, start: int, end: int) -> dict[int, float]:
        """The keys of a range: what a new partition knows of its own heat."""
        return {key: heat for key, heat in self.keys.items() if start <= key < end}


def _faded(counts: dict[int, float], left: float) -> dict[int, float]:
    return {place: heat * left for place, heat in counts.items() if heat > NOTHING}
