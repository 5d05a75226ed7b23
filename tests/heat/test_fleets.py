"""Random fleets on virtual time: `./dev soak --of fleets` runs as many as you like."""

from __future__ import annotations

import pytest

from tests.planted import Hunt, hold, usually

from .fleet_bugs import BUGS
from .fleets import Violation, simulate

SEEDS = usually(10, full=1_000)
HUNT = Hunt("fleets", BUGS, simulate, Violation, seeds=200)


def test_hot_keys_are_found_in_two_seconds_and_cold_keys_are_left_alone() -> None:
    outcomes = hold(simulate, range(SEEDS), Violation, of="fleets")
    found_s = [each for outcome in outcomes for each in outcome.found_s]
    assert len(found_s) >= SEEDS
    assert sum(outcome.cold for outcome in outcomes) > 100 * SEEDS
    assert sum(outcome.events["watched"] > 0 for outcome in outcomes) > SEEDS / 2
    assert sum(outcome.events["cooled down"] for outcome in outcomes) > 0


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)
