"""Whole-system runs on virtual time. A failing seed prints how to replay it."""

from __future__ import annotations

import pytest

from .bugs import BUGS
from .history import Violation
from .world import simulate

SEEDS = 200
SEEDS_PER_TEST = 10


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_invariants_hold_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        try:
            simulate(seed)
        except Violation as violation:
            pytest.fail(f"{violation}\nreplay: ./dev soak --first {seed} --seeds 1")


def test_a_seed_replays_exactly() -> None:
    assert simulate(3) == simulate(3)


def test_runs_are_not_vacuous() -> None:
    histories = [simulate(seed) for seed in range(5)]
    assert sum(len(history.acknowledged()) for history in histories) > 1_000
    assert sum(history.reads for history in histories) > 100
    assert sum(history.layout_changes for history in histories) > 40
    assert {"Unavailable", "Overloaded"} <= {name for h in histories for name in h.errors}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    with BUGS[name]():
        for seed in range(SEEDS):
            try:
                simulate(seed)
            except Violation:
                return
    pytest.fail(f"{name} was not found in {SEEDS} seeds")
