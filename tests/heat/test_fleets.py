"""Random fleets on virtual time: `./dev soak --of fleets` runs as many as you like."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.planted import Hunt, hold, usually

from .fleet_bugs import BUGS
from .fleets import Violation, play, simulate

SEEDS = usually(5, full=10)
HUNT = Hunt("fleets", BUGS, simulate, Violation, seeds=200)


def test_hot_keys_are_found_in_two_seconds_and_cold_keys_are_left_alone() -> None:
    outcomes = hold(simulate, range(SEEDS), Violation, of="fleets")
    assert sum(outcome.events["watched"] > 0 for outcome in outcomes) > SEEDS / 2
    assert sum(outcome.events["cooled down"] for outcome in outcomes) > 0
    totals = sum((outcome.totals for outcome in outcomes), Counter[str]())
    assert totals["cold keys left alone"] > 100 * SEEDS
    assert totals["hot keys found in 2 s"] >= SEEDS / 2


@pytest.mark.full("a thousand fleets take about ten minutes")
def test_of_a_thousand_fleets_at_most_one_check_in_a_thousand_fails() -> None:
    totals = sum((play(seed).totals for seed in range(1_000)), Counter[str]())
    checked = [what for what in totals if f"{what}: right" in totals]
    assert len(checked) >= 6
    shares = {what: totals[f"{what}: right"] / totals[what] for what in checked}
    assert min(shares.values()) >= 0.999, shares


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)
