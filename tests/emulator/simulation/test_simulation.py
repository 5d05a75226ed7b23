"""The engine on virtual time: rows move and partitions change, and no answer shows it."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.planted import Hunt, hold, usually
from tests.simulation.history import Violation

from .bugs import BUGS
from .followed import simulate_followed
from .follower_bugs import FOLLOWER_BUGS
from .world import simulate

SEEDS = usually(20, full=100)
HUNT = Hunt("engine", BUGS, simulate, Violation, seeds=100)
FOLLOWED = Hunt("indexes", FOLLOWER_BUGS, simulate_followed, Violation, seeds=100)
SEEDS_PER_TEST = 10

FOLLOWED_SEEDS = usually(10, full=500)

played = cache(simulate)
played_followed = cache(simulate_followed)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_answer_is_that_of_a_dictionary(first: int) -> None:
    hold(played, range(first, first + SEEDS_PER_TEST), Violation, of="engine")


def test_a_seed_replays_exactly() -> None:
    assert simulate(3) == played(3)


def test_runs_are_not_vacuous() -> None:
    counts = sum((played(seed).counts for seed in range(20)), Counter[str]())
    for name in ("Split", "Isolate", "Merge", "Lend", "by policy", "forced", "walks over changes"):
        assert counts[name] > 50, name
    for name in ("throttled", "PutItem", "UpdateItem", "GetItem", "Query", "Scan"):
        assert counts[name] > 500, name
    for name in ("CannotHelp", "DeleteItem", "BatchWriteItem", "TransactWriteItems"):
        assert counts[name] > 5, name


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)


@pytest.mark.parametrize("first", range(0, FOLLOWED_SEEDS, SEEDS_PER_TEST))
def test_indexes_and_streams_show_the_dictionary_in_order(first: int) -> None:
    seeds = range(first, first + SEEDS_PER_TEST)
    hold(played_followed, seeds, Violation, of="indexes")


def test_runs_with_indexes_and_streams_are_not_vacuous() -> None:
    counts = sum((played_followed(seed).counts for seed in range(10)), Counter[str]())
    for name in ("index pages", "records", "throttled"):
        assert counts[name] > 500, name
    assert counts["forced in the index"] > 50
    assert counts["backfills"] > 2


@pytest.mark.parametrize("name", FOLLOWER_BUGS)
def test_a_bug_planted_into_indexes_or_streams_is_found(name: str) -> None:
    FOLLOWED.must_find(name)
