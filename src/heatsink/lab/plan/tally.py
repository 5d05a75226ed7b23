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
    """Requests as they are in the trace; units are those that were served."""

    number: int
    requests: int = 0
    throttled: int = 0
    write_units: float = 0.0
    read_units: float = 0.0

    @property
    def share(self) -> float:
        return self.throttled / self.requests if self.requests else 0.0


class Cost(msgspec.Struct, frozen=True):
    """Dollars: of a month of such days on demand or provisioned, and of the trace's units."""

    units: float
    on_demand: float
    provisioned: float


def cost_of(minutes: list[Minute], weight: int, span_s: float, settings: PlanSettings) -> Cost:
    """On demand, units are paid; provisioned, the capacity is, or each hour's busiest minute.

    What is throttled costs nothing. Storage, the app servers and Heatsink's own few requests are
    not counted.
    """
    prices, months = settings.prices, MONTH_S / max(span_s, MINUTE_S)
    writes = weight * sum(minute.write_units for minute in minutes)
    reads = weight * sum(minute.read_units for minute in minutes)
    paid = (writes * prices.million_writes + reads * prices.million_reads) / 1e6
    return Cost(paid, paid * months, _provisioned(minutes, weight, settings) * MONTH_S / HOUR_S)


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
