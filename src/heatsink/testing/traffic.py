"""Traffic as it really is: a few keys get most of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from random import Random


def zipf_keys(keys: int, skew: float, rng: Random) -> Iterator[str]:
    """Endless keys `key-0`, `key-1`, …; the n-th is drawn in proportion to 1 / n ** skew."""
    weights = list(accumulate(1 / rank**skew for rank in range(1, keys + 1)))
    while True:
        yield f"key-{bisect_left(weights, rng.random() * weights[-1])}"
