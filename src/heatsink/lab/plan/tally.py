"""What one remedy served and refused, minute by minute, and what that costs in a month."""

from __future__ import annotations

from itertools import groupby

import msgspec

from .settings import Prices

MINUTE_S = 60
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
    """Dollars of a month of such days, for requests or capacity alone."""

    on_demand: float
    provisioned: float


def cost_of(minutes: list[Minute], weight: int, span_s: float, prices: Prices) -> Cost:
    """On demand, units are paid; provisioned, each hour pays for its busiest minute's rate.

    What is throttled costs nothing. Storage, the app servers and Heatsink's own few requests are
    not counted.
    """
    months = MONTH_S / max(span_s, MINUTE_S)
    writes = weight * sum(minute.write_units for minute in minutes)
    reads = weight * sum(minute.read_units for minute in minutes)
    on_demand = (writes * prices.million_writes + reads * prices.million_reads) / 1e6
    hours = groupby(minutes, key=lambda minute: minute.number // HOUR_MINUTES)
    provisioned = sum(_hour(list(each), weight, prices) for _, each in hours)
    hours_spanned = minutes[-1].number // HOUR_MINUTES + 1
    return Cost(on_demand * months, provisioned * MONTH_S / (3_600 * hours_spanned))


def _hour(minutes: list[Minute], weight: int, prices: Prices) -> float:
    busiest = weight / MINUTE_S / prices.target
    writes = max(minute.write_units for minute in minutes) * busiest
    reads = max(minute.read_units for minute in minutes) * busiest
    return writes * prices.write_unit_hour + reads * prices.read_unit_hour
