"""What one remedy served and refused, minute by minute, and what that costs in a month."""

from __future__ import annotations

from itertools import groupby

import msgspec

from .settings import PlanSettings, Prices

MINUTE_S = 60
HOUR_S = 3_600
MONTH_S = 30 * 86_400
HOUR_MINUTES = 60


class Minute(msgspec.Struct):
    """Requests as they are in the trace, and the units they took.

    The plain units are what those that were served would have taken without any remedy.
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


class Cost(msgspec.Struct, frozen=True):
    """Dollars of a month of such days, on demand or provisioned.

    `plain` is what the requests that were served would cost on demand without any remedy.
    """

    plain: float
    on_demand: float
    provisioned: float


def cost_of(minutes: list[Minute], weight: int, span_s: float, settings: PlanSettings) -> Cost:
    """On demand, units are paid; provisioned, the capacity is, or each hour's busiest minute.

    What is throttled costs nothing. Storage, the app servers and Heatsink's own few requests are
    not counted.
    """
    months = weight * MONTH_S / max(span_s, MINUTE_S)
    return Cost(
        months * sum(_paid(one.plain_writes, one.plain_reads, settings.prices) for one in minutes),
        months * sum(_paid(one.write_units, one.read_units, settings.prices) for one in minutes),
        _provisioned(minutes, weight, settings) * MONTH_S / HOUR_S,
    )


def _paid(writes: float, reads: float, prices: Prices) -> float:
    return (writes * prices.million_writes + reads * prices.million_reads) / 1e6


def _provisioned(minutes: list[Minute], weight: int, settings: PlanSettings) -> float:
    """Of an hour. Without a capacity of its own the table is scaled every hour."""
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
