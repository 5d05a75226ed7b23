"""The engine on virtual time: rows move and partitions change, and no answer shows it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.planted import find, hold, seeds
from tests.simulation.history import Violation

from .bugs import BUGS
from .world import simulate

SEEDS = seeds(20, full=100)
SEEDS_PER_BUG = 100
SEEDS_PER_TEST = 10


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_answer_is_that_of_a_dictionary(first: int) -> None:
    hold(simulate, range(first, first + SEEDS_PER_TEST), Violation, of="engine")


def test_a_seed_replays_exactly() -> None:
    assert simulate(3) == simulate(3)


def test_runs_are_not_vacuous() -> None:
    counts = sum((simulate(seed).counts for seed in range(20)), Counter[str]())
    for name in ("Split", "Isolate", "Merge", "Lend", "by policy", "forced", "walks over changes"):
        assert counts[name] > 50, name
    for name in ("throttled", "PutItem", "UpdateItem", "GetItem", "Query", "Scan"):
        assert counts[name] > 500, name
    for name in ("CannotHelp", "DeleteItem", "BatchWriteItem", "TransactWriteItems"):
        assert counts[name] > 5, name


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    find(BUGS[name], simulate, range(SEEDS_PER_BUG), Violation)
