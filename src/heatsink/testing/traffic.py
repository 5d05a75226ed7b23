"""Skewed traffic: keys drawn from a Zipf distribution."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from math import exp, expm1, log, log1p
from random import Random

HEAD = 100_000


class Zipf:
    """A Zipf distribution over ranks 0 to `keys` - 1: rank n has the weight 1 / (n + 1) ** skew.

    A table holds the first 100,000 ranks. Beyond these, neighbouring ranks hardly differ. So for
    higher ranks, an integral with a simple inverse replaces the sum. A billion keys take no more
    memory than the table.
    """

    def __init__(self, keys: int, skew: float) -> None:
        self._keys = keys
        self._skew = skew
        self._head = list(accumulate(1 / rank**skew for rank in range(1, min(keys, HEAD) + 1)))
        tail = self._integral(HEAD + 0.5, keys + 0.5) if keys > HEAD else 0.0
        self._total = self._head[-1] + tail

    def at(self, chance: float) -> int:
        """Return the rank that `chance`, a random number from 0 up to 1, selects."""
        weight = chance * self._total
        if weight <= self._head[-1]:
            return bisect_left(self._head, weight)
        return min(int(self._inverse(HEAD + 0.5, weight - self._head[-1]) - 0.5), self._keys - 1)

    def share(self, rank: int) -> float:
        """Return the share of all draws that select this rank."""
        return float((rank + 1) ** -self._skew / self._total)

    def _integral(self, low: float, high: float) -> float:
        """Return the integral of x ** -skew from `low` to `high`; a logarithm if the skew is 1."""
        power = 1 - self._skew
        if abs(power) < 1e-9:
            return log(high / low)
        return float(low**power * expm1(power * log(high / low)) / power)

    def _inverse(self, low: float, area: float) -> float:
        """Return the `high` for which `_integral(low, high)` is `area`."""
        power = 1 - self._skew
        if abs(power) < 1e-9:
            return low * exp(area)
        return low * exp(log1p(area * power / low**power) / power)


def zipf_keys(keys: int, skew: float, rng: Random) -> Iterator[str]:
    """Yield `key-0`, `key-1`, … for ever; the n-th key is drawn in proportion to 1 / n ** skew.

    Example::

        keys = zipf_keys(1_000, skew=1.1, rng=Random(7))
        await hs.log.append(next(keys), b"hello")
    """
    ranks = Zipf(keys, skew)
    while True:
        yield f"key-{ranks.at(rng.random())}"
