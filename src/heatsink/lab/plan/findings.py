"""Presents what a replay has found: as advice in words, as tables and as a page."""

from __future__ import annotations

from math import ceil

from heatsink.lab.report import Cell, Chart, Figure, LabReport, ReportTable, Series
from heatsink.primitives.words import counted, duration

from .lane import NOTHING, Remedy
from .replay import Replay, ReplayOutcome, Survey
from .settings import Period

CALM_SHARE = 0.001  # retries handle less than one throttle in a thousand requests
BAD_MINUTE = 0.05
CURED = 0.99
SAME = 0.005
COARSE = 10_000  # units of one replayed request: a partition's limit for ten seconds
POINTS_MAX = 288
NEARLY = 0.99  # the last request of a day comes shortly before midnight
TEN_MINUTES_S, SIX_HOURS_S, A_DAY_S = NEARLY * 600, NEARLY * 6 * 3_600, NEARLY * 86_400
THROTTLES = ["remedy", "throttled", "share", "worst minute", "from near cache"]
THROTTLES_MEAN = (
    "Throttled: requests that the store refused. Worst minute: the share that it refused in the "
    "minute with most refusals. From near cache: the share that app servers answered themselves."
)
SIZES = ["remedy", "buckets at most", "extra on average", "extra bucket hours", "partitions"]
SIZES_MEAN = (
    "A bucket is one of the partition keys over which Heatsink spreads a hot key. Buckets at most: "
    "of one key. Extra: buckets beyond the first of each key, on average and in hours. Partitions: "
    "of the table, at the start and at the end."
)
COSTS = ["remedy", "on demand, $", "provisioned, $", "plain, $", "per served request"]
COST_MEANS = (
    "Cost per served request: the cost on demand, divided by what the same requests would cost "
    "without a remedy if the table served them all (plain)."
)
COSTS_MEAN = f"{COST_MEANS} A total can be low because many requests are throttled and not billed."
WHAT_IT_DOES = {
    "adaptive": "the store splits hot partitions and lets partitions lend throughput to each other "
    "(DynamoDB always does)",
    "spread": "Heatsink spreads hot keys over several buckets (hs.log, hs.counters)",
    "absorb": "every app server answers hot reads from a near cache (hs.reads)",
}
OWN_IS_ENOUGH = "On DynamoDB no remedy is needed, since its own adaptive capacity is enough"
SHORT = {"adaptive": "adaptive capacity", "spread": "spread hot keys", "absorb": "cache hot reads"}


def best(outcomes: list[ReplayOutcome]) -> ReplayOutcome:
    """Return the outcome of the remedy that cures throttling at the lowest cost per served request.

    If the table hardly throttles, this is the outcome without a remedy. If the store's own adaptive
    capacity is enough, this is the outcome of `adaptive`, since DynamoDB always has it. If no
    remedy cures the throttling, this is the outcome with the fewest throttles. If several outcomes
    have hardly more, this is the first of them: its remedy has the fewest parts.
    """
    before = _before(outcomes)
    if _is_calm(before):
        return before
    own = next((each for each in outcomes if is_own(each.remedy)), None)
    if own is not None and _is_enough(own, before):
        return own
    cured = [each for each in outcomes if _cures(each, before)]
    if cured:
        return min(cured, key=lambda each: each.cost_factor)
    least = min(each.throttled for each in outcomes) + SAME * before.throttled
    return next(each for each in outcomes if each.throttled <= least)


def _before(outcomes: list[ReplayOutcome]) -> ReplayOutcome:
    return next((each for each in outcomes if each.remedy == NOTHING), outcomes[0])


def _is_calm(outcome: ReplayOutcome) -> bool:
    return outcome.throttled_share < CALM_SHARE


def is_own(remedy: Remedy) -> bool:
    """Return whether a remedy consists only of what DynamoDB does without Heatsink."""
    return _parts(remedy) == ["adaptive"]


def _is_enough(own: ReplayOutcome, before: ReplayOutcome) -> bool:
    """Return whether adaptive capacity alone cures the load, or leaves only what retries cure."""
    is_quiet = _is_calm(own) and own.worst_minute.share < BAD_MINUTE
    return is_quiet or _cures(own, before)


def _cures(outcome: ReplayOutcome, before: ReplayOutcome) -> bool:
    """Return whether a remedy cures the throttling.

    A cure leaves at most 1 % of the throttles, and its worst minute is no worse than the worst
    minute of the outcome `before`.
    """
    is_no_worse = outcome.worst_minute.share <= before.worst_minute.share
    return is_no_worse and outcome.throttled <= (1 - CURED) * before.throttled


def _without(before: ReplayOutcome) -> str:
    """Return a name for `before`, the outcome with which others are compared.

    The name is "without a remedy", or "with" and the name of the remedy.
    """
    return "without a remedy" if before.remedy == NOTHING else f"with {before.remedy.name}"


def advice(found: Replay) -> list[str]:
    before, chosen = _before(found.outcomes), best(found.outcomes)
    others = [each for each in found.outcomes if each is not before]
    first = f"{before.throttled_share:.2%} of the requests are throttled {_without(before)}."
    if _is_calm(before):
        first += " No remedy is needed."
        others = [each for each in others if abs(each.cost_factor - 1) >= SAME]
    elif is_own(chosen.remedy) and _is_enough(chosen, before):
        first += f" {OWN_IS_ENOUGH}: {_left(chosen)}."
    elif chosen is not before:
        cure = "cures it" if _cures(chosen, before) else "helps most, and does not cure it"
        first += f" Recommended: {chosen.remedy.name}, which {cure}."
    else:
        first += " None of the remedies helps."
    return [first, *([" ".join(_sentence(each, before) for each in others)] if others else [])]


def _left(own: ReplayOutcome) -> str:
    if not own.throttled:
        return "with it, no request is throttled"
    return f"with it, {own.throttled_share:.2%} are throttled, and retries handle those few"


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
    """Return the change of the cost per served request, in words.

    The total cost would mislead, because a remedy under which many requests are throttled looks
    cheap.
    """
    return f"for {_change(outcome)} cost per served request"


def _change(outcome: ReplayOutcome) -> str:
    change = outcome.cost_factor - 1
    if abs(change) < SAME:
        return "the same"
    return f"{abs(change):.0%} {'more' if change > 0 else 'less'}"


def warnings(found: Replay) -> list[str]:
    """Return problems of the table or of the trace that do not depend on the remedy.

    For example, a sample may be so coarse that its peaks exceed the peaks of the whole load.
    """
    return [*(_coarseness(found) or _overload(found)), *_shortness(found)]


def _coarseness(found: Replay) -> list[str]:
    if found.survey.weight <= COARSE:
        return []
    stands = f"Each replayed request stands for {found.survey.weight:,}"
    return [f"{stands}, so figures are rough: replay more requests (--requests)."]


def _shortness(found: Replay) -> list[str]:
    covered_s = found.survey.covered_s
    if covered_s >= A_DAY_S:
        return []
    return [f"The trace covers only {duration(covered_s)}: a month is an extrapolation from it."]


def _overload(found: Replay) -> list[str]:
    """Return a warning if the table is too small for the load.

    Such a table throttles even if all keys have equal load.
    """
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
    """Return the report: what to do, what that costs, how much throttling remains; all tables."""
    hours, first = found.survey.covered_s / 3_600, advice(found)[0]
    return LabReport(
        name="plan",
        title=f"Plan of a table: {found.name}",
        story="\n\n".join([*warnings(found), first, _traffic(found)]),
        figures=_answers(found),
        tables=[
            ReportTable(
                "Throttles", THROTTLES, list(map(_throttles, found.outcomes)), THROTTLES_MEAN
            ),
            ReportTable(
                "Buckets and partitions",
                SIZES,
                [_sizes(each, hours) for each in found.outcomes],
                SIZES_MEAN,
            ),
            ReportTable("Cost of a month", COSTS, list(map(_costs, found.outcomes)), COSTS_MEAN),
        ],
        charts=_pictures(found),
        notes=_assumptions(found),
    )


def _answers(found: Replay) -> list[Figure]:
    before, chosen = _before(found.outcomes), best(found.outcomes)
    return [
        Figure("What should I do?", *_to_do(chosen, before)),
        Figure("What will it cost?", *_to_pay(chosen, before)),
        Figure("What stays?", *_to_stay(chosen, before)),
    ]


def _to_do(chosen: ReplayOutcome, before: ReplayOutcome) -> tuple[str, str]:
    if _is_calm(before):
        few = "Hardly any request is throttled, and retries handle those few."
        return "Nothing", few if before.throttled else "No request is throttled."
    if is_own(chosen.remedy) and _is_enough(chosen, before):
        return "Nothing, on DynamoDB", (
            f"{OWN_IS_ENOUGH}: {_left(chosen)}. A store without adaptive capacity would need more."
        )
    if chosen is before:
        return "Something else", "None of the remedies below removes throttles from this load."
    parts = [SHORT[name] for name in _parts(chosen.remedy) if name != "adaptive"] or [
        SHORT["adaptive"]
    ]
    judged = "This helps most, and does not cure it"
    if _cures(chosen, before):
        worst = chosen.worst_minute.share
        judged = "This cures it"
        judged += f", but {worst:.1%} are throttled in the worst minute" if worst >= 0.01 else ""
    return " and ".join(parts).capitalize(), f"{judged}. {_meaning(chosen.remedy)}"


def _to_pay(chosen: ReplayOutcome, before: ReplayOutcome) -> tuple[str, str]:
    cost = chosen.cost
    text = f"On demand, or ${cost.provisioned:,.0f} with provisioned capacity."
    if chosen is not before:
        text += (
            f" {_without(before).capitalize()}: ${before.cost.on_demand:,.0f}, because "
            f"{before.throttled_share:.1%} of the requests are throttled and not billed. "
            f"A served request costs {_change(chosen)}: the same requests would cost "
            f"${cost.plain:,.0f} without a remedy if the table served them all."
        )
    return f"${cost.on_demand:,.0f} a month", text


def _to_stay(chosen: ReplayOutcome, before: ReplayOutcome) -> tuple[str, str]:
    text = (
        f"{chosen.throttled:,} of {chosen.requests:,} requests. In the worst minute "
        f"{chosen.worst_minute.share:.1%}."
    )
    if chosen is not before:
        text += (
            f" {_without(before).capitalize()}: {before.throttled_share:.2%}, and "
            f"{before.worst_minute.share:.1%} in the worst minute."
        )
    return f"{chosen.throttled_share:.2%} throttled", text


def _parts(remedy: Remedy) -> list[str]:
    switches = {"adaptive": remedy.adaptive, "spread": remedy.spread, "absorb": remedy.absorb}
    return [name for name, is_on in switches.items() if is_on]


def _meaning(remedy: Remedy) -> str:
    """Return what a remedy does, in words."""
    if not _parts(remedy):
        return "Partitions never change; each has its own limit."
    text = "; ".join(WHAT_IT_DOES[name] for name in _parts(remedy))
    return f"{text[0].upper()}{text[1:]}."


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
        f"{outcome.bucket_hours / hours:.1f}",
        f"{outcome.bucket_hours:,.1f}",
        f"{outcome.partitions_at_first} → {outcome.partitions}",
    ]


def _costs(outcome: ReplayOutcome) -> list[Cell]:
    return [
        outcome.remedy.name,
        round(outcome.cost.on_demand),
        round(outcome.cost.provisioned),
        round(outcome.cost.plain),
        f"{outcome.cost_factor:.1%}",
    ]


def _traffic(found: Replay) -> str:
    seen = found.survey
    return (
        f"{counted(seen.requests, 'request')} in {duration(seen.covered_s)}, "
        f"{seen.reads / seen.requests:.0%} of them reads. The busiest minute asks for "
        f"{seen.peak_writes_s:,.0f} write units and {seen.peak_reads_s:,.0f} read units/s. "
        f"The hottest key, {seen.hottest!r}, gets {seen.hottest_share:.1%} of all requests."
        f"{_sampled(found)}"
    )


def _sampled(found: Replay) -> str:
    weight = found.survey.weight
    return f" Each replayed request stands for {weight:,}." if weight > 1 else ""


def _assumptions(found: Replay) -> str:
    prices = found.settings.prices
    return (
        f"The table begins with {counted(found.partitions, 'partition')} of "
        f"{found.settings.split.write_units:,.0f} write and "
        f"{found.settings.split.read_units:,.0f} read units per second. Throttled requests are not "
        f"retried and not billed. A read of a spread key queries "
        f"{'every bucket' if found.settings.all_buckets else 'one bucket'}. "
        f"{found.settings.servers} app servers cache what they read for "
        f"{found.settings.fresh_for:g} s. Prices are {prices.whose}: "
        f"${prices.million_writes:g} and ${prices.million_reads:g} per million write and read "
        f"units on demand; ${prices.write_unit_hour:g} and ${prices.read_unit_hour:g} an hour "
        f"provisioned{_scaled(found)}. A month is 30 days of traffic like this trace. "
        f"Storage, app servers and Heatsink's own requests are not included."
    )


def _scaled(found: Replay) -> str:
    if found.settings.capacity.writes is not None:
        return ""
    return f", scaled each hour so that its busiest minute uses {found.settings.prices.target:.0%}"


def _pictures(found: Replay) -> list[Chart]:
    """Return one chart for each remedy, all on the same scale."""
    before, (unit, unit_s) = _before(found.outcomes), _axis(found.survey.covered_s)
    pairs = [_lines(each.periods, found.survey, unit_s) for each in found.outcomes]
    top = max((rate for pair in pairs for line in pair for rate in line.y), default=0.0)
    return [
        Chart(
            each.remedy.name.capitalize(),
            "requests per second",
            pair,
            x_title=unit,
            note=_caption(each, before),
            top=1.05 * top,
        )
        for each, pair in zip(found.outcomes, pairs, strict=True)
    ]


def _caption(outcome: ReplayOutcome, before: ReplayOutcome) -> str:
    meaning = _meaning(outcome.remedy)
    if outcome is before:
        return f"{meaning} Throttles {outcome.throttled_share:.2%} of the requests."
    effect = f"{_effect(outcome, before)} {_price(outcome)}."
    return f"{meaning} This {effect}"


def _axis(covered_s: float) -> tuple[str, float]:
    """Return the unit of the time axis, and the length of this unit in seconds."""
    if covered_s < TEN_MINUTES_S:
        return "seconds", 1.0
    return ("minutes", 60.0) if covered_s < SIX_HOURS_S else ("hours", 3_600.0)


def _lines(periods: list[Period], seen: Survey, unit_s: float) -> list[Series]:
    """Return two lines: served and throttled requests per second, over the time of the trace.

    A point stands for one or several periods. A short remainder goes to the last point.
    """
    together = ceil(seen.covered_s / seen.period_s / POINTS_MAX)
    step_s = together * seen.period_s
    points = max(round(seen.covered_s / step_s), 1)
    served, throttled = [0] * points, [0] * points
    for period in periods:
        at = min(period.number // together, points - 1)
        served[at] += period.requests - period.throttled
        throttled[at] += period.throttled
    seconds = [step_s] * (points - 1) + [seen.covered_s - (points - 1) * step_s]
    x = [round(at * step_s / unit_s, 6) for at in range(points)]
    rates = [
        [seen.weight * count / length_s for count, length_s in zip(counts, seconds, strict=True)]
        for counts in (served, throttled)
    ]
    return [
        Series("served", x, rates[0], colour=0),
        Series("throttled", x, rates[1], "fill", 1),
    ]
