"""What a replay found, in words, as a table and as a page."""

from __future__ import annotations

from heatsink.lab.report import Cell, Chart, Figure, Report, Series, Table

from .advice import advice, best, warnings
from .lane import NOTHING
from .replay import Outcome, Replay
from .tally import MINUTE_S, Minute

POINTS_MAX = 288
THROTTLES = ["remedy", "throttled", "of all", "worst minute", "served from near"]
SIZES = ["remedy", "widest key", "buckets added", "for hours", "partitions"]
COSTS = ["remedy", "on demand, $", "provisioned, $", "of a request served"]


def report_of(found: Replay) -> Report:
    chosen, hours = best(found.outcomes), found.survey.span_s / 3_600
    return Report(
        name="plan",
        title=f"Plan of a table: {found.name}",
        story="\n\n".join([*warnings(found), *advice(found), _traffic(found), _assumptions(found)]),
        figures=[
            Figure("requests", f"{found.survey.requests:,}", _sampled(found)),
            *[_figure(each) for each in found.outcomes if each.remedy in (NOTHING, chosen.remedy)],
        ],
        tables=[
            Table("Throttles", THROTTLES, list(map(_throttles, found.outcomes))),
            Table(
                "Buckets and partitions", SIZES, [_sizes(each, hours) for each in found.outcomes]
            ),
            Table("Cost of a month", COSTS, list(map(_costs, found.outcomes))),
        ],
        charts=[_throttled(found), _served(found)],
    )


def _figure(outcome: Outcome) -> Figure:
    dollars = f"${outcome.cost.on_demand:,.0f} a month on demand"
    return Figure(f"throttled, {outcome.remedy.name}", f"{outcome.throttled_share:.2%}", dollars)


def _throttles(outcome: Outcome) -> list[Cell]:
    return [
        outcome.remedy.name,
        outcome.throttled,
        f"{outcome.throttled_share:.2%}",
        f"{outcome.worst_minute.share:.1%}",
        f"{outcome.absorbed / outcome.requests:.1%}",
    ]


def _sizes(outcome: Outcome, hours: float) -> list[Cell]:
    return [
        outcome.remedy.name,
        outcome.buckets_max,
        f"{outcome.bucket_hours / hours if hours else 0:.1f}",
        f"{outcome.bucket_hours:,.1f}",
        f"{outcome.partitions_at_first} → {outcome.partitions}",
    ]


def _costs(outcome: Outcome) -> list[Cell]:
    return [
        outcome.remedy.name,
        round(outcome.cost.on_demand),
        round(outcome.cost.provisioned),
        f"{outcome.cost_factor:.1%}",
    ]


def _sampled(found: Replay) -> str:
    weight = found.survey.weight
    return f"each replayed request stands for {weight:,}" if weight > 1 else "all replayed"


def _traffic(found: Replay) -> str:
    seen = found.survey
    return (
        f"{seen.requests:,} requests in {seen.span_s / 3_600:,.3g} hours, "
        f"{seen.reads / seen.requests:.0%} of them reads. The busiest minute asks for "
        f"{seen.peak_writes_s:,.0f} write units and {seen.peak_reads_s:,.0f} read units a second. "
        f"The hottest key, {seen.hottest!r}, gets {seen.hottest_share:.1%} of all requests."
    )


def _assumptions(found: Replay) -> str:
    prices = found.settings.prices
    return (
        f"Assumed: the table begins with {found.partitions} partitions of "
        f"{found.settings.split.write_units:,.0f} write and "
        f"{found.settings.split.read_units:,.0f} read units a second. What is throttled is not "
        f"sent again and not billed. A read of a spread key asks "
        f"{'every bucket' if found.settings.all_buckets else 'one bucket'}. "
        f"{found.settings.servers} app servers keep what they read for "
        f"{found.settings.fresh_for:g} s. Prices are {prices.whose}: "
        f"${prices.million_writes:g} and ${prices.million_reads:g} per million write and read "
        f"units on demand; ${prices.write_unit_hour:g} and ${prices.read_unit_hour:g} an hour "
        f"provisioned{_scaled(found)}. A month has 30 days like this trace. "
        f"Storage, app servers and Heatsink's own requests are left out."
    )


def _scaled(found: Replay) -> str:
    if found.settings.capacity.writes is not None:
        return ""
    return f", where each hour has its busiest minute's rate at {found.settings.prices.target:.0%}"


def _throttled(found: Replay) -> Chart:
    lines = [
        Series(each.remedy.name, *_points(each.minutes, found.survey.weight, True), colour=number)
        for number, each in enumerate(found.outcomes)
    ]
    return Chart("Throttled", "requests a second", lines, x_title="hours")


def _served(found: Replay) -> Chart:
    lines = [
        Series(each.remedy.name, *_points(each.minutes, found.survey.weight, False), colour=number)
        for number, each in enumerate(found.outcomes)
    ]
    return Chart("Served", "requests a second", lines, x_title="hours")


def _points(minutes: list[Minute], weight: int, throttled: bool) -> tuple[list[float], list[float]]:
    """Hours, and requests a second: of every minute, or of a few together if there are many."""
    together = -(-len(minutes) // POINTS_MAX)
    hours, rates = [], []
    for first in range(0, len(minutes), together):
        some = minutes[first : first + together]
        count = sum(one.throttled if throttled else one.requests - one.throttled for one in some)
        hours.append(some[0].number * MINUTE_S / 3_600)
        rates.append(weight * count / (MINUTE_S * len(some)))
    return hours, rates
