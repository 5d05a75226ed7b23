"""Random fleets on virtual time: `./dev soak --of fleets` runs as many as you like."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.planted import Hunt, hold, usually

from . import faulty_fleets
from .fleet_bugs import BUGS, FAULTY_BUGS
from .fleets import Violation, play, simulate

SEEDS = usually(5, full=10)
FAULTY_SEEDS = usually(1, full=5) * len(faulty_fleets.KINDS)
HUNT = Hunt("fleets", BUGS, simulate, Violation, seeds=200)
FAULTY_HUNT = Hunt("faulty-fleets", FAULTY_BUGS, faulty_fleets.simulate, Violation, seeds=200)


def test_hot_keys_are_found_in_two_seconds_and_cold_keys_are_left_alone() -> None:
    outcomes = hold(simulate, range(SEEDS), Violation, of="fleets")
    assert sum(outcome.events["watched"] > 0 for outcome in outcomes) > SEEDS / 2
    assert sum(outcome.events["cooled down"] for outcome in outcomes) > 0
    totals = sum((outcome.totals for outcome in outcomes), Counter[str]())
    assert totals["cold keys left alone"] > 100 * SEEDS
    assert totals["hot keys found in 2 s"] >= SEEDS / 2


def test_reports_that_are_lost_late_or_repeated_break_no_promise_about_those_that_arrive() -> None:
    outcomes = hold(faulty_fleets.simulate, range(FAULTY_SEEDS), Violation, of="faulty-fleets")
    totals = sum((outcome.totals for outcome in outcomes), Counter[str]())
    for kind in faulty_fleets.KINDS:
        assert totals[f"hot keys found in time, {kind}"] >= 1
    assert sum(outcome.events["joined"] for outcome in outcomes) > 0


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


@pytest.mark.full("six hundred fleets take about six minutes")
def test_of_many_fleets_with_faults_at_most_one_check_in_a_thousand_fails() -> None:
    totals = sum((faulty_fleets.play(seed).totals for seed in range(600)), Counter[str]())
    for what in ("hot keys found in time", "estimates within 20 %", "cold keys left alone"):
        checked = [each for each in totals if what in each and not each.endswith(": right")]
        right = sum(totals[f"{each}: right"] for each in checked)
        assert right >= 0.999 * sum(totals[each] for each in checked), what


@pytest.mark.parametrize("name", FAULTY_BUGS)
def test_a_planted_bug_is_found_in_a_fleet_with_faults(name: str) -> None:
    FAULTY_HUNT.must_find(name)
