"""Limits of partitions and tables as token buckets, and the settings of adaptive capacity.

A request needs tokens of two buckets: the ceiling of its partition, and the limit of its table. The
request passes if both buckets hold the cost of the smallest request, whatever the request itself
costs. So the level of a bucket may become negative. The bucket then throttles all requests until
its level is positive again. So in the long run the rate is not exceeded, and small requests do not
starve large ones (sources: docs/concepts/adaptive-capacity.md).

A third bucket, the share, shows where the units of a request came from: from the partition's own
throughput, from what the partition has saved (burst), or from what other partitions leave unused
(lent). Without lending, the share is a limit too.

The defaults are DynamoDB's as far as they are documented:

| setting | default | source |
|---|---|---|
| `write_units`, `read_units` | 1,000 and 3,000 | limit of a partition: Developer Guide, "Designing partition keys" |
| `burst_s` | 300 | "retains up to 5 minutes (300 seconds) of unused capacity": "Burst and adaptive capacity" |
| `saved_s` | 1 | none documented: a table that begins without burst (the emulator's default is `burst_s`) |
| `ceiling_s` | 1 | burst "can't alleviate partition-level throttling": AWS re:Post, spiky workloads |
| `lend` | on | adaptive capacity is on for every table, without delay: "Burst and adaptive capacity" |
| `hot_share` | 0.9 | split when traffic is "near" the partition's limit (AWS Database Blog, "Scaling DynamoDB", part 3): AWS gives no figure |
| `split_after_s` | 600 | "sustained" traffic; in a chart of part 2 of that series a hot partition is not split within ten minutes |
| `cool_down_s` | 60 | none documented: CockroachDB's, one split of a range a minute |
| `isolate_share` | 0.6 | none documented: clearly most, so that two equal keys are split, not isolated |
| `merge_after_s` | never | "only split, never merged": part 3 |
| `merge_share` | 0.5 | none documented: CockroachDB's, both sides together under half the limit |
| `partitions_max` | 10,000 | none: a bound for memory |
"""  # noqa: E501

from __future__ import annotations

from typing import Literal

import msgspec

from heatsink.primitives.checks import CheckedStruct, check_number, check_whole

START_S = 1.0
LEAST_WRITE, LEAST_READ = 1.0, 0.5  # the cost of the smallest request
Limit = Literal["partition", "key", "table"]
Source = Literal["own", "burst", "lent"]
UNITS_MIN, UNITS_MAX = 0.001, 1e9
SECONDS_MAX = 1e6
PARTITIONS_MAX = 100_000


class TableCapacity(msgspec.Struct, frozen=True):
    """Maximum units per second of the whole table. None means no maximum (on-demand tables)."""

    writes: float | None = None
    reads: float | None = None


class CapacityVerdict(msgspec.Struct, frozen=True):
    """Whether the limits accept a request, and whose throughput it uses.

    For an accepted request, `source` is the partition's own throughput, units that the partition
    has saved up (burst), or units of other partitions (lent). For a throttled request, `limit`
    names the limit.
    """

    accepted: bool
    source: Source = "own"
    limit: Limit | None = None


OWN, BURST, LENT = (
    CapacityVerdict(True),
    CapacityVerdict(True, "burst"),
    CapacityVerdict(True, "lent"),
)
BY_TABLE, BY_PARTITION, BY_KEY = (
    CapacityVerdict(False, limit="table"),
    CapacityVerdict(False, limit="partition"),
    CapacityVerdict(False, limit="key"),
)


class Bucket:
    """A token bucket, which fills at `rate` tokens per second up to its capacity.

    Its level may become negative.
    """

    __slots__ = ("_least", "_since_s", "level", "most", "rate")

    def __init__(
        self, rate: float, holds_s: float, now_s: float, least: float, saved_s: float = START_S
    ) -> None:
        self._least = least
        self.rate = rate
        self.most = max(rate * holds_s, 1.0)
        self.level = min(max(rate * saved_s, 1.0), self.most)
        self._since_s = now_s

    def filled(self, now_s: float) -> float:
        """Add the tokens of the time since the last call. Return the new level."""
        level = self.level + (now_s - self._since_s) * self.rate
        most = self.most
        self._since_s = now_s
        self.level = level = min(level, most)
        return level

    def lets_pass(self, now_s: float) -> bool:
        return self.filled(now_s) >= self._least

    def resize(self, rate: float, holds_s: float, now_s: float) -> None:
        """Change the rate and the capacity. The level stays, up to the new capacity."""
        self.filled(now_s)
        self.rate = rate
        self.most = max(rate * holds_s, 1.0)
        self.level = min(self.level, self.most)


class Side:
    """The reads or the writes of one partition: their token buckets, and counts of the window."""

    __slots__ = ("ceiling", "demand", "lent", "share", "taken", "throttles", "throttles_ever")

    def __init__(self, ceiling: Bucket, share: Bucket | None) -> None:
        self.ceiling = ceiling
        self.share = share
        self.demand = self.taken = self.lent = 0.0
        self.throttles = self.throttles_ever = 0

    def judge(
        self, units: float, now_s: float, table: Bucket | None, lend: bool
    ) -> CapacityVerdict:
        """Return whether all limits allow a request. Takes no units.

        `table` is the bucket of the whole table. With `lend`, the partition may use throughput that
        other partitions leave unused.
        """
        if table is not None and not table.lets_pass(now_s):
            return BY_TABLE
        if not self.ceiling.lets_pass(now_s):
            return BY_PARTITION
        share = self.share
        if share is None:
            return OWN
        if share.filled(now_s) >= units or (not lend and share.lets_pass(now_s)):
            return OWN if self.taken + units <= share.rate else BURST
        return LENT if lend else BY_PARTITION

    def record(self, units: float, table: Bucket | None, verdict: CapacityVerdict) -> None:
        """Count a request. If `verdict` accepts the request, take its units from the buckets."""
        self.demand += units
        if verdict.accepted:
            self.give_back(-units, table, verdict)
        else:
            self.throttles += 1

    def give_back(self, units: float, table: Bucket | None, verdict: CapacityVerdict) -> None:
        self.ceiling.level += units
        self.taken -= units
        if table is not None:
            table.level += units
        if verdict is LENT:
            self.lent -= units
        elif self.share is not None:
            self.share.level += units

    @property
    def throttles_so_far(self) -> int:
        return self.throttles_ever + self.throttles

    def refill(self, now_s: float) -> None:
        self.ceiling.filled(now_s)
        if self.share is not None:
            self.share.filled(now_s)

    def inherit(self, old: list[Side], part: float) -> None:
        """Start with what the old partitions had. So no change of partitions creates throughput.

        `ceiling` is the limit of a partition, `share` its part of the table's capacity. The ceiling
        starts at the lowest level that a ceiling of the old partitions has. The share gets the
        fraction `part` of the units that the old partitions have saved.
        """
        self.ceiling.level = min(*(one.ceiling.level for one in old), self.ceiling.most)
        if self.share is not None:
            saved = sum(one.share.level for one in old if one.share is not None)
            self.share.level = min(saved * part, self.share.most)

    def end_window(self, now_s: float) -> None:
        self.refill(now_s)
        self.throttles_ever += self.throttles
        self.demand = self.taken = self.lent = 0.0
        self.throttles = 0


class SplitSettings(CheckedStruct, frozen=True, kw_only=True):
    """The limits of a partition, and when partitions split and merge.

    `write_units` and `read_units` are the limits of one partition, in units per second, averaged
    over `ceiling_s`. A partition may save up `burst_s` seconds of its share of the table's
    capacity. A new table has saved up `saved_s` seconds.

    A partition is hot at `hot_share` of its limit. If a partition stays hot for `split_after_s`,
    the table splits it, or isolates a key that causes more than `isolate_share` of the heat. The
    new partitions then do not change for `cool_down_s`. If two neighbours each stay at or below
    half of `merge_share` for `merge_after_s`, the table merges them. A time of None means never.
    """

    write_units: float = 1_000.0
    read_units: float = 3_000.0
    burst_s: float = 300.0
    saved_s: float = START_S
    ceiling_s: float = 1.0
    lend: bool = True
    hot_share: float = 0.9
    split_after_s: float | None = 600.0
    cool_down_s: float = 60.0
    isolate_share: float = 0.6
    merge_after_s: float | None = None
    merge_share: float = 0.5
    partitions_max: int = 10_000

    def __post_init__(self) -> None:
        for name in ("write_units", "read_units"):
            check_number(name, getattr(self, name), UNITS_MIN, UNITS_MAX)
        for name in ("burst_s", "saved_s", "ceiling_s", "cool_down_s"):
            check_number(name, getattr(self, name), 0, SECONDS_MAX)
        for name in ("split_after_s", "merge_after_s"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, SECONDS_MAX)
        check_number("hot_share", self.hot_share, 0.01, 1)
        check_number("isolate_share", self.isolate_share, 0.5, 1)
        check_number("merge_share", self.merge_share, 0, self.hot_share)
        check_whole("partitions_max", self.partitions_max, 1, PARTITIONS_MAX)


FIXED = SplitSettings(lend=False, split_after_s=None)
