"""What Heatsink assumes about DynamoDB: every assumption, its check, and where it matters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from heatsink.errors import HeatsinkError

from . import expressions, indexes, items, pages, service, streams, throttling, transactions
from .ground import READ_DOLLARS, WRITE_DOLLARS, Ground, NotAllowed, OverCap
from .observed import Assumption, Observed

State = Literal["same", "different", "unknown"]
ALL: tuple[Assumption, ...] = (
    *service.ASSUMPTIONS,
    *items.ASSUMPTIONS,
    *expressions.ASSUMPTIONS,
    *pages.ASSUMPTIONS,
    *indexes.ASSUMPTIONS,
    *streams.ASSUMPTIONS,
    *transactions.ASSUMPTIONS,
    *throttling.ASSUMPTIONS,
)


class Finding(msgspec.Struct, frozen=True):
    """The result of one check.

    `state` is "same" if DynamoDB does what Heatsink assumes, "different" if it does something else,
    and "unknown" if the check could not tell, for example because of the cap on the cost.
    """

    assumption: str
    state: State
    observed: str
    assumed: str
    matters: str


class Estimate(NamedTuple):
    dollars: float
    checks: tuple[Assumption, ...]
    left_out: tuple[Assumption, ...]


def cost_of(one: Assumption) -> float:
    """Return what a check costs at most, in dollars."""
    return one.writes * WRITE_DOLLARS + one.reads * READ_DOLLARS + one.dollars


def estimate(most_dollars: float, checks: Sequence[Assumption] = ALL) -> Estimate:
    """Choose the checks that fit under the cap, the cheapest first, in the order of `checks`."""
    total, fitting = 0.0, set()
    for one in sorted(checks, key=cost_of):
        if total + cost_of(one) <= most_dollars:
            total += cost_of(one)
            fitting.add(one.name)
    chosen = tuple(one for one in checks if one.name in fitting)
    return Estimate(total, chosen, tuple(one for one in checks if one.name not in fitting))


async def findings(ground: Ground, plan: Estimate) -> AsyncIterator[Finding]:
    """Run the checks of an estimate, one after the other, and yield what each found."""
    for one in plan.checks:
        yield finding_of(one, await _observed(one.check, ground))
    for one in plan.left_out:
        why = f"not checked: it may cost {cost_of(one):.2f} $, see --max-cost"
        yield finding_of(one, Observed(None, why))


async def _observed(check: Callable[[Ground], Awaitable[Observed]], ground: Ground) -> Observed:
    try:
        return await check(ground)
    except (OverCap, NotAllowed) as error:
        return Observed(None, f"not checked: {error}")
    except HeatsinkError as error:
        return Observed(None, f"the check failed: {error}")
    except (LookupError, TypeError, ValueError) as error:
        return Observed(False, f"an answer of another shape: {type(error).__name__}: {error}")


def finding_of(one: Assumption, seen: Observed) -> Finding:
    state: State = "unknown" if seen.holds is None else "same" if seen.holds else "different"
    return Finding(one.name, state, seen.text, one.assumed, one.matters)
