"""A trace by its parameters: keys by Zipf's law, a rate that rises and falls with the day."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, cos, pi, sin, sqrt
from random import Random

import msgspec

from heatsink.checks import check_number, check_whole
from heatsink.testing.traffic import Zipf

from .trace import Request

DAY_S = 86_400.0
MIDNIGHT_S = 20_833 * DAY_S  # of a day in 2027: windows and epochs need a time that is not zero
GOLDEN, SILVER = (sqrt(5) - 1) / 2, sqrt(2) - 1


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`peak` requests a second at noon, `trough` of that at midnight; the two are as of one curve.

    A request reads with the chance `read_share`, else it writes; items have `item_bytes`.
    """

    keys: int = 100_000
    skew: float = 0.99
    peak: float = 20_000.0
    trough: float = 0.3
    read_share: float = 0.5
    item_bytes: int = 500
    hours: float = 24.0

    def __post_init__(self) -> None:
        check_whole("keys", self.keys, 1, 10**12)
        check_number("skew", self.skew, 0, 10)
        check_number("peak", self.peak, 0.001, 10**9)
        check_number("trough", self.trough, 0.001, 1)
        check_number("read_share", self.read_share, 0, 1)
        check_whole("item_bytes", self.item_bytes, 0, 400 * 1_024)
        check_number("hours", self.hours, 0.001, 24 * 31)

    def rate(self, second: float) -> float:
        return self.peak * (
            self.trough + (1 - self.trough) * (1 - cos(2 * pi * second / DAY_S)) / 2
        )

    @property
    def total(self) -> float:
        """The integral of the rate."""
        seconds, swing = self.hours * 3_600, (1 - self.trough) / 2
        waves = seconds - DAY_S / (2 * pi) * sin(2 * pi * seconds / DAY_S)
        return self.peak * (self.trough * seconds + swing * waves)


class SyntheticTrace:
    """At most about `requests_max` of them: if the load has more, each stands for several.

    What stands for one comes by chance. What stands for many comes evenly, in time and over the
    keys, since the many whom it stands for would: chance would be overdone by a small sample.
    """

    def __init__(self, load: Load, requests_max: int, seed: int, name: str = "synthetic") -> None:
        self.name = name
        self.weight = ceil(load.total / check_whole("requests", requests_max, 1_000, 10**9))
        self._load = load
        self._seed = seed
        self._done = 0.0

    def done(self) -> float:
        return self._done

    def requests(self) -> Iterator[Request]:
        load, end_s = self._load, self._load.hours * 3_600
        keys, second = Zipf(load.keys, load.skew), 0.0
        rate, weight, read_share, size = load.rate, self.weight, load.read_share, load.item_bytes
        for gap, place, chance in self._draws():
            second += gap * weight / rate(second)
            if second >= end_s:
                return
            self._done = second / end_s
            key = f"key-{keys.at(place)}"
            yield Request(MIDNIGHT_S + second, key, chance >= read_share, size)

    def _draws(self) -> Iterator[tuple[float, float, float]]:
        """For each request the gap before it (1 on average), and two numbers from 0 up to 1."""
        rng = Random(self._seed)
        if self.weight == 1:
            while True:
                yield rng.expovariate(1.0), rng.random(), rng.random()
        place, chance = rng.random(), rng.random()
        while True:
            place, chance = (place + GOLDEN) % 1, (chance + SILVER) % 1
            yield 1.0, place, chance
