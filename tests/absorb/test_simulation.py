"""Several processes on virtual time, and everything that can go wrong with their reads."""

from __future__ import annotations

from collections import Counter

import pytest

from .bugs import BUGS
from .world import Violation, simulate

SEEDS = 200
SEEDS_PER_TEST = 20


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_reads_are_never_too_old_and_never_hang(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        try:
            simulate(seed)
        except Violation as violation:
            pytest.fail(f"{violation}\nreplay: ./dev soak --of reads --first {seed} --seeds 1")


def test_a_seed_replays_exactly() -> None:
    assert simulate(3) == simulate(3)


def test_runs_are_not_vacuous() -> None:
    counts = sum((simulate(seed) for seed in range(5)), Counter[str]())
    for name in ("values", "errors", "hits", "stale_hits", "loads", "coalesced", "evictions"):
        assert counts[name] > 20, name


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    with BUGS[name]():
        for seed in range(SEEDS):
            try:
                simulate(seed)
            except Violation:
                return
    pytest.fail(f"{name} was not found in {SEEDS} seeds")
