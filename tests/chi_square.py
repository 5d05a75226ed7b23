"""Is a spread even? Pearson's test with a fixed, very small chance of a false alarm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import sqrt

SIGMAS = 4.5


def assert_even(buckets: Iterable[int], count: int) -> None:
    """Chi-square of `count` buckets below its quantile, by Wilson and Hilferty's approximation."""
    seen = Counter(buckets)
    expected = sum(seen.values()) / count
    chi_square = sum((seen[bucket] - expected) ** 2 / expected for bucket in range(count))
    freedom = count - 1
    shrink = 2 / (9 * freedom)
    limit = freedom * (1 - shrink + SIGMAS * sqrt(shrink)) ** 3
    assert chi_square < limit, f"{chi_square:.0f} over {limit:.0f} with {count} buckets"
