"""Whole-system runs on SQLite's stores: one machine whose clock goes wrong, and the cure."""

from __future__ import annotations

from functools import cache

import pytest

from tests.planted import Hunt, hold, usually

from .bugs import CURE_BUGS, FLEET_CURE_BUGS, MACHINE_BUGS
from .history import Violation
from .machine import simulate_cure, simulate_cure_of_a_fleet, simulate_machine

pytestmark = pytest.mark.slow("simulated machines")

SEEDS = usually(2, full=30)
CLOCKS = Hunt("machine", MACHINE_BUGS, simulate_machine, Violation, seeds=120)
CURE = Hunt("cure", CURE_BUGS, simulate_cure, Violation, seeds=120)
CURED_FLEET = Hunt("cured-fleet", FLEET_CURE_BUGS, simulate_cure_of_a_fleet, Violation, seeds=10)
SEEDS_PER_TEST = usually(2, full=5)
ACKNOWLEDGED = 100 * SEEDS_PER_TEST
REPLAYED = 1

machine, cure = cache(simulate_machine), cache(simulate_cure)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_a_wrong_clock_of_the_machine_does_no_harm(first: int) -> None:
    seeds = range(first, first + SEEDS_PER_TEST)
    histories = hold(machine, seeds, Violation, of="machine")
    assert sum(len(history.acknowledged()) for history in histories) > ACKNOWLEDGED
    assert sum(history.layout_changes for history in histories) > 4 * SEEDS_PER_TEST


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_a_store_that_was_moved_ahead_goes_on_after_the_cure(first: int) -> None:
    histories = hold(cure, range(first, first + SEEDS_PER_TEST), Violation, of="cure")
    assert sum(len(history.acknowledged()) for history in histories) > ACKNOWLEDGED


def test_news_of_before_the_cure_does_no_harm_after_it() -> None:
    hold(simulate_cure_of_a_fleet, range(usually(1, full=10)), Violation, of="cured-fleet")


@pytest.mark.full("plain runs replay seeds of another simulation")
def test_a_seed_replays_exactly() -> None:
    assert simulate_machine(REPLAYED) == machine(REPLAYED)
    assert simulate_cure(REPLAYED) == cure(REPLAYED)


@pytest.mark.parametrize("name", MACHINE_BUGS)
def test_a_planted_bug_about_clocks_is_found(name: str) -> None:
    CLOCKS.must_find(name)


@pytest.mark.parametrize("name", CURE_BUGS)
def test_a_planted_bug_in_the_cure_is_found(name: str) -> None:
    CURE.must_find(name)


@pytest.mark.parametrize("name", FLEET_CURE_BUGS)
def test_a_planted_bug_in_the_cure_of_a_fleet_is_found(name: str) -> None:
    CURED_FLEET.must_find(name)
