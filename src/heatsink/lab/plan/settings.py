"""What a plan assumes (the table, the app servers, the prices), and what a remedy costs."""

from __future__ import annotations

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

    `target` is how full provisioned capacity is kept: auto scaling's usual 70 %.
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

    `partitions` is how many the table starts with. 0 derives it from the capacity or, on demand,
    gives what an established table has: twice what the busiest minute would need with even keys.
    Requests come to `servers` app servers, each with a near cache of its own. With `all_buckets` a
    read of a spread key queries every bucket, as a page or a count does; a read by id queries one.
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
                "capacity needs write and read units, or neither (on demand)", field="capacity"
            )
        check_whole("partitions", self.partitions, 0, PARTITIONS_MAX)
        check_whole("servers", self.servers, 1, 10_000)
        Times(self.fresh_for, self.stale_for)
        check_kind("consistent_reads", self.consistent_reads, bool)
        check_kind("all_buckets", self.all_buckets, bool)

    def partitions_for(self, writes_s: float, reads_s: float) -> int:
        """How many partitions the table starts with, given what the busiest minute asks for."""
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
            raise InvalidSetting(
                f"a table for this load needs {ceil(needed):,} partitions, and a plan can have "
                f"{PARTITIONS_MAX:,}: plan one key in {ceil(needed / PARTITIONS_MAX)} "
                "(that part of --keys, --peak and capacity, or those keys' rows of TRACE), "
                "or set --partitions"
            )
        return max(ceil(needed), least)


class Minute(msgspec.Struct):
    """Requests of the trace in one minute, and the units they took.

    The plain units are what the served requests would have taken without any remedy.
    """

    number: int
    requests: int = 0
    throttled: int = 0
    write_units: float = 0.0
    read_units: float = 0.0
    plain_writes: float = 0.0
    plain_reads: float = 0.0

    @property
    def share(self) -> float:
        return self.throttled / self.requests if self.requests else 0.0


class MonthlyCost(msgspec.Struct, frozen=True):
    """Dollars per month of such days, on demand or provisioned.

    `plain` is what the served requests would cost on demand without any remedy.
    """

    plain: float
    on_demand: float
    provisioned: float


def cost_of(
    minutes: list[Minute], weight: int, span_s: float, settings: PlanSettings
) -> MonthlyCost:
    """The cost per month, on demand and provisioned.

    On demand, each unit is paid. Provisioned, the capacity is paid or, without a fixed capacity,
    enough for the busiest minute of each hour. Throttled requests cost nothing. Storage, the app
    servers and Heatsink's own few requests are not counted.
    """
    months = weight * MONTH_S / max(span_s, MINUTE_S)
    return MonthlyCost(
        months * sum(_paid(one.plain_writes, one.plain_reads, settings.prices) for one in minutes),
        months * sum(_paid(one.write_units, one.read_units, settings.prices) for one in minutes),
        _provisioned(minutes, weight, settings) * MONTH_S / HOUR_S,
    )


def _paid(writes: float, reads: float, prices: Prices) -> float:
    return (writes * prices.million_writes + reads * prices.million_reads) / 1e6


def _provisioned(minutes: list[Minute], weight: int, settings: PlanSettings) -> float:
    """The cost of one hour. Without a fixed capacity the table is scaled every hour."""
    capacity, prices = settings.capacity, settings.prices
    if capacity.writes is not None and capacity.reads is not None:
        return _hour(capacity.writes, capacity.reads, prices)
    a_second, total = weight / MINUTE_S / prices.target, 0.0
    for _, each in groupby(minutes, key=lambda minute: minute.number // HOUR_MINUTES):
        hour = list(each)
        writes = max(minute.write_units for minute in hour) * a_second
        reads = max(minute.read_units for minute in hour) * a_second
        total += _hour(writes, reads, prices)
    return total / (minutes[-1].number // HOUR_MINUTES + 1)


def _hour(writes_s: float, reads_s: float, prices: Prices) -> float:
    return writes_s * prices.write_unit_hour + reads_s * prices.read_unit_hour
