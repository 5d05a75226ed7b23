"""Traffic as it really is: a few keys get most of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from math import exp, expm1, log, log1p
from random import Random

HEAD = 100_000


class Zipf:
    """Ranks from 0: the n-th of `keys` is drawn in proportion to 1 / n ** skew.

    The first 100,000 are looked up. Beyond, where neighbours hardly differ, the sum is an integral
    and its inverse a formula, so that a billion keys take no more memory than those.
    """

    def __init__(self, keys: int, skew: float) -> None:
        self._keys = keys
        self._skew = skew
        self._head = list(accumulate(1 / rank**skew for rank in range(1, min(keys, HEAD) + 1)))
        tail = self._integral(HEAD + 0.5, keys + 0.5) if keys > HEAD else 0.0
        self._total = self._head[-1] + tail

    def at(self, chance: float) -> int:
        """The rank of a number from 0 up to 1."""
        weight = chance * self._total
        if weight <= self._head[-1]:
            return bisect_left(self._head, weight)
        return min(int(self._inverse(HEAD + 0.5, weight - self._head[-1]) - 0.5), self._keys - 1)

    def share(self, rank: int) -> float:
        """How much of all is drawn of this rank."""
        return float((rank + 1) ** -self._skew / self._total)

    def _integral(self, low: float, high: float) -> float:
        """Of x ** -skew; its limit where the skew is 1."""
        power = 1 - self._skew
        if abs(power) < 1e-9:
            return log(high / low)
        return float(low**power * expm1(power * log(high / low)) / power)

    def _inverse(self, low: float, area: float) -> float:
        """Up to where `_integral` from `low` is `area`."""
        power = 1 - self._skew
        if abs(power) < 1e-9:
            return low * exp(area)
        return low * exp(log1p(area * power / low**power) / power)


def zipf_keys(keys: int, skew: float, rng: Random) -> Iterator[str]:
    """Endless keys `key-0`, `key-1`, …; the n-th is drawn in proportion to 1 / n ** skew."""
    ranks = Zipf(keys, skew)
    while True:
        yield f"key-{ranks.at(rng.random())}"
