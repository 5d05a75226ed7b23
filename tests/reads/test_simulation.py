"""Several processes on virtual time, and everything that can go wrong with their reads."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.planted import Hunt, hold, usually

from .bugs import BUGS
from .world import Violation, simulate

SEEDS = usually(40, full=200)
HUNT = Hunt("reads", BUGS, simulate, Violation, seeds=200)
SEEDS_PER_TEST = 20


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_reads_are_never_too_old_and_never_hang(first: int) -> None:
    hold(simulate, range(first, first + SEEDS_PER_TEST), Violation, of="reads")


def test_a_seed_replays_exactly() -> None:
    assert simulate(3) == simulate(3)


def test_runs_are_not_vacuous() -> None:
    counts = sum((simulate(seed) for seed in range(5)), Counter[str]())
    for name in ("values", "errors", "hits", "stale_hits", "loads", "coalesced", "evictions"):
        assert counts[name] > 20, name


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)
