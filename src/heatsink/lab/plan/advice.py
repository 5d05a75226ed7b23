"""What a replay says in words: which remedy removes how much, and for how much."""

from __future__ import annotations

from .lane import NOTHING
from .replay import Outcome, Replay

CALM_SHARE = 0.001  # fewer throttles than one in a thousand are what retries are for
CURED = 0.99
SAME = 0.005
COARSE = 10_000  # units at once, of what a partition takes in ten seconds


def best(outcomes: list[Outcome]) -> Outcome:
    """The cheapest for what it serves among those that cure; else the one that throttles least.

    Of those that hardly differ it is the first, which has the fewest parts.
    """
    before = _before(outcomes)
    cured = [each for each in outcomes if _cures(each, before)]
    if cured:
        return min(cured, key=lambda each: each.cost_factor)
    least = min(each.throttled for each in outcomes) + SAME * before.throttled
    return next(each for each in outcomes if each.throttled <= least)


def _before(outcomes: list[Outcome]) -> Outcome:
    return next((each for each in outcomes if each.remedy == NOTHING), outcomes[0])


def _cures(outcome: Outcome, before: Outcome) -> bool:
    is_calm = outcome.throttled_share < CALM_SHARE
    return is_calm or outcome.throttled <= (1 - CURED) * before.throttled


def advice(found: Replay) -> list[str]:
    before, chosen = _before(found.outcomes), best(found.outcomes)
    others = [each for each in found.outcomes if each is not before]
    first = f"{before.throttled_share:.2%} of the requests are throttled as it is."
    if before.throttled_share < CALM_SHARE:
        first += " No remedy is needed."
        others = [each for each in others if abs(each.cost_factor - 1) >= SAME]
    elif chosen is not before:
        cure = "cures it" if _cures(chosen, before) else "helps most, and does not cure it"
        first += f" Recommended: {chosen.remedy.name}, which {cure}."
    else:
        first += " None of the remedies helps."
    return [first, *([" ".join(_sentence(each, before) for each in others)] if others else [])]


def _sentence(outcome: Outcome, before: Outcome) -> str:
    name = outcome.remedy.name.capitalize()
    return f"{name} {_effect(outcome, before)} {_price(outcome)}."


def _effect(outcome: Outcome, before: Outcome) -> str:
    if not before.throttled:
        return "throttles nothing either," if not outcome.throttled else "throttles some,"
    removed = 1 - outcome.throttled / before.throttled
    if removed < -SAME:
        return f"throttles {-removed:.0%} more,"
    if removed < SAME:
        return "removes no throttles,"
    shown = f"{removed:.0%}" if removed < CURED or removed == 1 else f"{removed:.2%}"
    return f"removes {shown} of the throttles,"


def _price(outcome: Outcome) -> str:
    """Of what is served: who throttles much pays little, and that is no saving."""
    change = outcome.cost_factor - 1
    if abs(change) < SAME:
        return "for the same cost of a request"
    return f"for {abs(change):.0%} {'more' if change > 0 else 'less'} cost of a request"


def warnings(found: Replay) -> list[str]:
    """What is wrong with the table, or with the trace, whatever the remedy.

    A coarse sample has peaks that the load has not.
    """
    return _coarseness(found) or _overload(found)


def _coarseness(found: Replay) -> list[str]:
    if found.survey.weight <= COARSE:
        return []
    stands = f"A request that is replayed stands for {found.survey.weight:,}"
    return [f"{stands}, so figures are rough: replay more of them (--requests)."]


def _overload(found: Replay) -> list[str]:
    """Keys may be as even as can be: a table that is too small throttles."""
    limits, seen = found.settings.split, found.survey
    writes, reads = found.partitions * limits.write_units, found.partitions * limits.read_units
    capacity = found.settings.capacity
    writes, reads = min(writes, capacity.writes or writes), min(reads, capacity.reads or reads)
    asked = [
        f"{name} {asked:,.0f} units a second and it takes {taken:,.0f}"
        for name, asked, taken in (
            ("of writes", seen.peak_writes_s, writes),
            ("of reads", seen.peak_reads_s, reads),
        )
        if asked > taken
    ]
    if not asked:
        return []
    too_small = f"The table is too small as a whole: {'; '.join(asked)}."
    return [f"{too_small} No remedy for keys helps that: give it capacity, or warm it up before."]
