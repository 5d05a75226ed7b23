"""What a plan assumes (the table, the app servers, the prices), and what a remedy costs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from math import ceil

import msgspec

from heatsink.emulator.capacity.limits import SplitSettings, TableCapacity
from heatsink.emulator.settings import PARTITIONS_MAX
from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import check_kind, check_number, check_whole
from heatsink.reads.near_cache import FRESH_S, STALE_S, Times
from heatsink.reads.policy import NearRules
from heatsink.spread.policy import BucketRules

PARTITIONS_MIN = 4  # of a table on demand when it is new: 4,000 writes and 12,000 reads a second
HEADROOM = 2.0  # a table on demand takes twice its earlier peak at once (Developer Guide)
MINUTE_S = 60
HOUR_S = 3_600
MONTH_S = 30 * 86_400
HOUR_MINUTES = 60


class Prices(msgspec.Struct, frozen=True):
    """Prices in dollars. Source: aws.amazon.com/dynamodb/pricing, standard table class.

    `target` is the share of provisioned capacity that auto scaling aims to use, usually 70 %.
    """

    whose: str = "DynamoDB's in us-east-1 as of 1 November 2024"
    million_writes: float = 0.625
    million_reads: float = 0.125
    write_unit_hour: float = 0.00065
    read_unit_hour: float = 0.00013
    target: float = 0.7

    def __post_init__(self) -> None:
        for name in ("million_writes", "million_reads", "write_unit_hour", "read_unit_hour"):
            check_number(name, getattr(self, name), 0, 10**6)
        check_number("target", self.target, 0.01, 1)


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table and the app servers in front of it.

    The table starts with `partitions` partitions. If `partitions` is 0, a provisioned table starts
    with the partitions that its capacity needs. An on-demand table starts like a table that has
    long been in use: with twice the partitions that the busiest minute would need if all keys had
    the same load. Requests come to `servers` app servers, each with a near cache of its own. With
    `all_buckets` a read of a spread key queries every bucket, as a page or a count does. Without
    it, a read queries one bucket, as a read by id does.
    """

    capacity: TableCapacity = TableCapacity()
    partitions: int = 0
    split: SplitSettings = SplitSettings()
    buckets: BucketRules = BucketRules()
    near: NearRules = NearRules()
    servers: int = 10
    fresh_for: float = FRESH_S
    stale_for: float = STALE_S
    consistent_reads: bool = False
    all_buckets: bool = True
    prices: Prices = Prices()

    def __post_init__(self) -> None:
        if (self.capacity.writes is None) != (self.capacity.reads is None):
            raise InvalidSetting(
                "capacity needs both write and read units, or none for on demand", field="capacity"
            )
        check_whole("partitions", self.partitions, 0, PARTITIONS_MAX)
        check_whole("servers", self.servers, 1, 10_000)
        Times(self.fresh_for, self.stale_for)
        check_kind("consistent_reads", self.consistent_reads, bool)
        check_kind("all_buckets", self.all_buckets, bool)

    def partitions_for(self, writes_s: float, reads_s: float) -> int:
        """Return how many partitions the table starts with.

        `writes_s` and `reads_s` are the units per second that the busiest minute asks for.
        """
        if self.partitions:
            return self.partitions
        capacity, least = self.capacity, 1
        if capacity.writes is None or capacity.reads is None:
            capacity = TableCapacity(HEADROOM * writes_s, HEADROOM * reads_s)
            least = PARTITIONS_MIN
        assert capacity.writes is not None
        assert capacity.reads is not None
        needed = capacity.writes / self.split.write_units + capacity.reads / self.split.read_units
        if needed > PARTITIONS_MAX:
            fewer = ceil(needed / PARTITIONS_MAX)
            raise InvalidSetting(
                f"a table for this load needs {ceil(needed):,} partitions, but a plan can have at "
                f"most {PARTITIONS_MAX:,}. Plan a part of the load: divide --keys, --peak and the "
                f"capacities by {fewer}, or keep one key in {fewer} of TRACE. Or set --partitions"
            )
        return max(ceil(needed), least)


class Period(msgspec.Struct):
    """The requests of the trace in a minute or a shorter period, and the units that they took.

    `plain_writes` and `plain_reads` are the units that the served requests would have taken without
    any remedy. `seconds` is the length of the period. For the last minute, it is the length of the
    part that the trace covers.
    """

    number: int
    seconds: float = MINUTE_S
    requests: int = 0
    throttled: int = 0
    write_units: float = 0.0
    read_units: float = 0.0
    plain_writes: float = 0.0
    plain_reads: float = 0.0

    @property
    def share(self) -> float:
        return self.throttled / self.requests if self.requests else 0.0


def minutes_of(periods: Iterable[Period], period_s: float, last_s: float) -> list[Period]:
    """Return the minutes of these periods. The trace covers `last_s` of the last minute."""
    in_a_minute = round(MINUTE_S / period_s)
    minutes = []
    for number, each in groupby(periods, key=lambda period: period.number // in_a_minute):
        minute = Period(number)
        for period in each:
            minute.requests += period.requests
            minute.throttled += period.throttled
            minute.write_units += period.write_units
            minute.read_units += period.read_units
            minute.plain_writes += period.plain_writes
            minute.plain_reads += period.plain_reads
        minutes.append(minute)
    minutes[-1].seconds = last_s
    return minutes


class MonthlyCost(msgspec.Struct, frozen=True):
    """Dollars for a month in which every day is like the trace, on demand or provisioned.

    `plain` is what the served requests would cost on demand without any remedy, if the table served
    them all.
    """

    plain: float
    on_demand: float
    provisioned: float


def cost_of(
    minutes: list[Period], weight: int, covered_s: float, settings: PlanSettings
) -> MonthlyCost:
    """Return the cost of a month in which all traffic is like the `covered_s` seconds of the trace.

    On demand, AWS bills each unit. Provisioned, AWS bills the capacity. If `settings` has no fixed
    capacity, auto scaling sets it every hour to what the busiest minute of that hour needs.
    Throttled requests cost nothing. Storage, the app servers and Heatsink's own few requests are
    not counted.
    """
    months = weight * MONTH_S / covered_s
    return MonthlyCost(
        months * sum(_paid(one.plain_writes, one.plain_reads, settings.prices) for one in minutes),
        months * sum(_paid(one.write_units, one.read_units, settings.prices) for one in minutes),
        _provisioned(minutes, weight, covered_s, settings) * MONTH_S / HOUR_S,
    )


def _paid(writes: float, reads: float, prices: Prices) -> float:
    return (writes * prices.million_writes + reads * prices.million_reads) / 1e6


def _provisioned(
    minutes: list[Period], weight: int, covered_s: float, settings: PlanSettings
) -> float:
    """Return the mean cost of an hour with provisioned capacity.

    If no capacity is set, auto scaling changes it every hour. Of the last hour, only the part that
    the trace covers counts.
    """
    capacity, prices = settings.capacity, settings.prices
    if capacity.writes is not None and capacity.reads is not None:
        return _hour(capacity.writes, capacity.reads, prices)
    filled, total = weight / prices.target, 0.0
    for number, each in groupby(minutes, key=lambda minute: minute.number // HOUR_MINUTES):
        hour = list(each)
        writes = max(minute.write_units / minute.seconds for minute in hour) * filled
        reads = max(minute.read_units / minute.seconds for minute in hour) * filled
        total += _hour(writes, reads, prices) * min(covered_s - number * HOUR_S, HOUR_S)
    return total / covered_s


def _hour(writes_s: float, reads_s: float, prices: Prices) -> float:
    return writes_s * prices.write_unit_hour + reads_s * prices.read_unit_hour
