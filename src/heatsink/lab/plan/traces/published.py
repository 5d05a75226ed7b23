"""Loads of real systems, by the parameters that were published of them.

Twitter's cache clusters, March 2020: J. Yang, Y. Yue, K. V. Rashmi, "A large scale analysis of
hundreds of in-memory cache clusters at Twitter", OSDI 2020. The figures are those of the table
`stat/2020Mar.md` in github.com/twitter/cache-trace (CC BY 4.0). It gives the mean rate of a week,
so the rate is level here, and requests per key, from which the number of keys follows.
"""

from __future__ import annotations

import msgspec

from .synthetic import Load

WEEK_S = 7 * 86_400


class Cluster(msgspec.Struct, frozen=True):
    """A row of the table. What is not a `get` or a `gets` counts as a write."""

    number: int
    key_bytes: int
    value_bytes: int
    kilo_requests_s: float
    requests_per_key: float
    read_share: float
    zipf_alpha: float

    @property
    def keys(self) -> int:
        return round(self.kilo_requests_s * 1_000 * WEEK_S / self.requests_per_key)

    def load(self, hours: float) -> Load:
        return Load(
            keys=self.keys,
            skew=self.zipf_alpha,
            peak=self.kilo_requests_s * 1_000,
            trough=1.0,
            read_share=self.read_share,
            item_bytes=self.key_bytes + self.value_bytes,
            hours=hours,
        )


CLUSTERS = (
    Cluster(8, 23, 9_497, 2.11, 1_532.6, 0.50, 1.7366),
    Cluster(14, 96, 414, 5.81, 35.4, 0.65, 1.2959),
    Cluster(29, 36, 799, 10.73, 22.5, 0.86, 1.2323),
    Cluster(40, 44, 155, 6.26, 11.8, 0.50, 0.8551),
    Cluster(49, 44, 10_658, 1.25, 154.2, 0.57, 1.5095),
    Cluster(51, 44, 221, 10.40, 814.8, 0.90, 1.9745),
    Cluster(52, 20, 273, 24.25, 32.6, 0.93, 1.2117),
)
SHAPES = {f"twitter-{cluster.number}": cluster for cluster in CLUSTERS}
