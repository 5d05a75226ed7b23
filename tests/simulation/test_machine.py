"""Whole-system runs on SQLite's stores: one machine whose clock goes wrong, and the cure."""

from __future__ import annotations

import pytest

from tests.planted import find, from_seed, hold, seeds

from .bugs import CURE_BUGS, MACHINE_BUGS
from .history import Violation
from .machine import simulate_cure, simulate_machine

SEEDS = seeds(10, full=30)
SEEDS_PER_BUG = 120
FOUND_AT = {"a_cure_under_the_old_incarnation": 50}  # to begin there saves minutes
SEEDS_PER_TEST = 5


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_a_wrong_clock_of_the_machine_does_no_harm(first: int) -> None:
    seeds = range(first, first + SEEDS_PER_TEST)
    histories = hold(simulate_machine, seeds, Violation, of="machine")
    assert sum(len(history.acknowledged()) for history in histories) > 500
    assert sum(history.layout_changes for history in histories) > 20


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_a_store_that_was_moved_ahead_goes_on_after_the_cure(first: int) -> None:
    histories = hold(simulate_cure, range(first, first + SEEDS_PER_TEST), Violation, of="cure")
    assert sum(len(history.acknowledged()) for history in histories) > 500


@pytest.mark.parametrize("simulate", [simulate_machine, simulate_cure])
def test_a_seed_replays_exactly(simulate: object) -> None:
    assert callable(simulate)
    assert simulate(5) == simulate(5)


@pytest.mark.parametrize("name", MACHINE_BUGS)
def test_a_planted_bug_about_clocks_is_found(name: str) -> None:
    find(MACHINE_BUGS[name], simulate_machine, range(SEEDS_PER_BUG), Violation)


@pytest.mark.parametrize("name", CURE_BUGS)
def test_a_planted_bug_in_the_cure_is_found(name: str) -> None:
    find(
        CURE_BUGS[name],
        simulate_cure,
        from_seed(FOUND_AT.get(name, 0), SEEDS_PER_BUG),
        Violation,
    )
