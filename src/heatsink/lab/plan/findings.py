"""What a replay found, as advice in words, as tables and as a page."""

from __future__ import annotations

from heatsink.lab.report import Cell, Chart, Figure, LabReport, ReportTable, Series

from .lane import NOTHING
from .replay import Replay, ReplayOutcome
from .settings import MINUTE_S, Minute

CALM_SHARE = 0.001  # retries handle less than one throttle in a thousand requests
CURED = 0.99
SAME = 0.005
COARSE = 10_000  # units of one replayed request: a partition's limit for ten seconds
POINTS_MAX = 288
THROTTLES = ["remedy", "throttled", "share", "worst minute", "from near cache"]
SIZES = ["remedy", "buckets at most", "extra on average", "extra bucket hours", "partitions"]
COSTS = ["remedy", "on demand, $", "provisioned, $", "per request served"]


def best(outcomes: list[ReplayOutcome]) -> ReplayOutcome:
    """The cheapest remedy per served request among those that cure; else the most effective one.

    Of those that hardly differ it is the first, which has the fewest parts.
    """
    before = _before(outcomes)
    cured = [each for each in outcomes if _cures(each, before)]
    if cured:
        return min(cured, key=lambda each: each.cost_factor)
    least = min(each.throttled for each in outcomes) + SAME * before.throttled
    return next(each for each in outcomes if each.throttled <= least)


def _before(outcomes: list[ReplayOutcome]) -> ReplayOutcome:
    return next((each for each in outcomes if each.remedy == NOTHING), outcomes[0])


def _cures(outcome: ReplayOutcome, before: ReplayOutcome) -> bool:
    is_calm = outcome.throttled_share < CALM_SHARE
    return is_calm or outcome.throttled <= (1 - CURED) * before.throttled


def advice(found: Replay) -> list[str]:
    before, chosen = _before(found.outcomes), best(found.outcomes)
    others = [each for each in found.outcomes if each is not before]
    first = f"{before.throttled_share:.2%} of the requests are throttled without a remedy."
    if before.throttled_share < CALM_SHARE:
        first += " No remedy is needed."
        others = [each for each in others if abs(each.cost_factor - 1) >= SAME]
    elif chosen is not before:
        cure = "cures it" if _cures(chosen, before) else "helps most, and does not cure it"
        first += f" Recommended: {chosen.remedy.name}, which {cure}."
    else:
        first += " None of the remedies helps."
    return [first, *([" ".join(_sentence(each, before) for each in others)] if others else [])]


def _sentence(outcome: ReplayOutcome, before: ReplayOutcome) -> str:
    name = outcome.remedy.name.capitalize()
    return f"{name} {_effect(outcome, before)} {_price(outcome)}."


def _effect(outcome: ReplayOutcome, before: ReplayOutcome) -> str:
    if not before.throttled:
        return "throttles nothing either," if not outcome.throttled else "throttles some,"
    removed = 1 - outcome.throttled / before.throttled
    if removed < -SAME:
        return f"throttles {-removed:.0%} more,"
    if removed < SAME:
        return "removes no throttles,"
    shown = f"{removed:.0%}" if removed < CURED or removed == 1 else f"{removed:.2%}"
    return f"removes {shown} of the throttles,"


def _price(outcome: ReplayOutcome) -> str:
    """The change of the cost per served request: throttling much is cheap, but no saving."""
    change = outcome.cost_factor - 1
    if abs(change) < SAME:
        return "for the same cost per request"
    return f"for {abs(change):.0%} {'more' if change > 0 else 'less'} cost per request"


def warnings(found: Replay) -> list[str]:
    """Problems of the table or of the trace, whatever the remedy.

    A coarse sample has peaks that the load has not.
    """
    return _coarseness(found) or _overload(found)


def _coarseness(found: Replay) -> list[str]:
    if found.survey.weight <= COARSE:
        return []
    stands = f"Each replayed request stands for {found.survey.weight:,}"
    return [f"{stands}, so figures are rough: replay more requests (--requests)."]


def _overload(found: Replay) -> list[str]:
    """Say if the table is too small: then it throttles however even its keys are."""
    limits, seen = found.settings.split, found.survey
    writes, reads = found.partitions * limits.write_units, found.partitions * limits.read_units
    capacity = found.settings.capacity
    writes, reads = min(writes, capacity.writes or writes), min(reads, capacity.reads or reads)
    asked = [
        f"the load needs {asked:,.0f} {name} units per second and the table has {taken:,.0f}"
        for name, asked, taken in (
            ("write", seen.peak_writes_s, writes),
            ("read", seen.peak_reads_s, reads),
        )
        if asked > taken
    ]
    if not asked:
        return []
    too_small = f"The table is too small as a whole: {'; '.join(asked)}."
    return [f"{too_small} Spreading keys does not help: add capacity, or pre-warm the table."]


def report_of(found: Replay) -> LabReport:
    chosen, hours = best(found.outcomes), found.survey.span_s / 3_600
    return LabReport(
        name="plan",
        title=f"Plan of a table: {found.name}",
        story="\n\n".join([*warnings(found), *advice(found), _traffic(found), _assumptions(found)]),
        figures=[
            Figure("requests", f"{found.survey.requests:,}", _sampled(found)),
            *[_figure(each) for each in found.outcomes if each.remedy in (NOTHING, chosen.remedy)],
        ],
        tables=[
            ReportTable("Throttles", THROTTLES, list(map(_throttles, found.outcomes))),
            ReportTable(
                "Buckets and partitions", SIZES, [_sizes(each, hours) for each in found.outcomes]
            ),
            ReportTable("Cost of a month", COSTS, list(map(_costs, found.outcomes))),
        ],
        charts=[_throttled(found), _served(found)],
    )


def _figure(outcome: ReplayOutcome) -> Figure:
    dollars = f"${outcome.cost.on_demand:,.0f} a month on demand"
    return Figure(f"throttled, {outcome.remedy.name}", f"{outcome.throttled_share:.2%}", dollars)


def _throttles(outcome: ReplayOutcome) -> list[Cell]:
    return [
        outcome.remedy.name,
        outcome.throttled,
        f"{outcome.throttled_share:.2%}",
        f"{outcome.worst_minute.share:.1%}",
        f"{outcome.absorbed / outcome.requests:.1%}",
    ]


def _sizes(outcome: ReplayOutcome, hours: float) -> list[Cell]:
    return [
        outcome.remedy.name,
        outcome.buckets_max,
        f"{outcome.bucket_hours / hours if hours else 0:.1f}",
        f"{outcome.bucket_hours:,.1f}",
        f"{outcome.partitions_at_first} → {outcome.partitions}",
    ]


def _costs(outcome: ReplayOutcome) -> list[Cell]:
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
        f"{seen.peak_writes_s:,.0f} write units and {seen.peak_reads_s:,.0f} read units/s. "
        f"The hottest key, {seen.hottest!r}, gets {seen.hottest_share:.1%} of all requests."
    )


def _assumptions(found: Replay) -> str:
    prices = found.settings.prices
    return (
        f"Assumed: the table begins with {found.partitions} partitions of "
        f"{found.settings.split.write_units:,.0f} write and "
        f"{found.settings.split.read_units:,.0f} read units per second. Throttled requests are not "
        f"retried and not billed. A read of a spread key queries "
        f"{'every bucket' if found.settings.all_buckets else 'one bucket'}. "
        f"{found.settings.servers} app servers cache what they read for "
        f"{found.settings.fresh_for:g} s. Prices are {prices.whose}: "
        f"${prices.million_writes:g} and ${prices.million_reads:g} per million write and read "
        f"units on demand; ${prices.write_unit_hour:g} and ${prices.read_unit_hour:g} an hour "
        f"provisioned{_scaled(found)}. A month has 30 days like this trace. "
        f"Storage, app servers and Heatsink's own requests are not included."
    )


def _scaled(found: Replay) -> str:
    if found.settings.capacity.writes is not None:
        return ""
    return f", scaled each hour so that its busiest minute uses {found.settings.prices.target:.0%}"


def _throttled(found: Replay) -> Chart:
    lines = [
        Series(each.remedy.name, *_points(each.minutes, found.survey.weight, True), colour=number)
        for number, each in enumerate(found.outcomes)
    ]
    return Chart("Throttled", "requests per second", lines, x_title="hours")


def _served(found: Replay) -> Chart:
    lines = [
        Series(each.remedy.name, *_points(each.minutes, found.survey.weight, False), colour=number)
        for number, each in enumerate(found.outcomes)
    ]
    return Chart("Served", "requests per second", lines, x_title="hours")


def _points(minutes: list[Minute], weight: int, throttled: bool) -> tuple[list[float], list[float]]:
    """Hours and requests per second, of every minute or of several together."""
    together = -(-len(minutes) // POINTS_MAX)
    hours, rates = [], []
    for first in range(0, len(minutes), together):
        some = minutes[first : first + together]
        count = sum(one.throttled if throttled else one.requests - one.throttled for one in some)
        hours.append(some[0].number * MINUTE_S / 3_600)
        rates.append(weight * count / (MINUTE_S * len(some)))
    return hours, rates
