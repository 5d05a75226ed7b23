"""What a partition may do, and how fast the store reacts when it runs hot.

The defaults are DynamoDB's as far as they are documented:

| setting | default | source |
|---|---|---|
| `write_units`, `read_units` | 1,000 and 3,000 | limit of a partition: Developer Guide, "Designing partition keys" |
| `burst_s` | 300 | "retains up to 5 minutes (300 seconds) of unused capacity": "Burst and adaptive capacity" |
| `ceiling_s` | 1 | burst "can't alleviate partition-level throttling": AWS re:Post, spiky workloads |
| `lend` | on | adaptive capacity is on for every table, at once: "Burst and adaptive capacity" |
| `hot_share` | 0.9 | split when traffic is "near" the partition's limit (AWS Database Blog, "Scaling DynamoDB", part 3): no figure is given |
| `split_after_s` | 600 | "sustained" traffic; in part 2 of that series a hot partition stays as it is for the first ten minutes |
| `cool_down_s` | 60 | none documented: CockroachDB's, one split of a range a minute |
| `isolate_share` | 0.6 | none documented: clearly most, so that two equal keys are split, not isolated |
| `merge_after_s` | never | "only split, never merged": part 3 |
| `merge_share` | 0.5 | none documented: CockroachDB's, both sides together under half the limit |
| `partitions_max` | 10,000 | none: a bound for memory |
"""  # noqa: E501

from __future__ import annotations

import msgspec

from heatsink.checks import check_number, check_whole

UNITS_MIN, UNITS_MAX = 0.001, 1e9
SECONDS_MAX = 1e6
PARTITIONS_MAX = 100_000


class SplitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits are units a second of one partition; a time of `None` means never.

    `ceiling_s` is over how long a partition's limit is averaged, `burst_s` how much of its share of
    the table it may save up. `split_after_s` is how long a partition must stay hot before it is
    split, `cool_down_s` how long it is then left alone.
    """

    write_units: float = 1_000.0
    read_units: float = 3_000.0
    burst_s: float = 300.0
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
        for name in ("burst_s", "ceiling_s", "cool_down_s"):
            check_number(name, getattr(self, name), 0, SECONDS_MAX)
        for name in ("split_after_s", "merge_after_s"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, SECONDS_MAX)
        check_number("hot_share", self.hot_share, 0.01, 1)
        check_number("isolate_share", self.isolate_share, 0.5, 1)
        check_number("merge_share", self.merge_share, 0, self.hot_share)
        check_whole("partitions_max", self.partitions_max, 1, PARTITIONS_MAX)


FIXED = SplitSettings(lend=False, split_after_s=None)
