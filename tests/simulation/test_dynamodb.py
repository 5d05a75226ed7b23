"""The whole system on DynamoDB's store, while the engine beneath it runs hot, splits and merges."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.planted import Hunt, hold, usually

from .dynamodb_bugs import BUGS
from .history import Violation
from .world import simulate_dynamodb

pytestmark = pytest.mark.slow("half a minute of whole-system simulation")

SEEDS = usually(3, full=12)
SEEDS_PER_TEST = usually(3, full=4)
HUNT = Hunt("dynamodb", BUGS, simulate_dynamodb, Violation, seeds=100)


played = cache(simulate_dynamodb)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_invariants_hold_while_partitions_split(first: int) -> None:
    seeds = range(first, first + SEEDS_PER_TEST)
    histories = hold(played, seeds, Violation, of="dynamodb")
    assert sum(len(history.acknowledged()) for history in histories) > 200 * SEEDS_PER_TEST
    assert sum(history.reads for history in histories) > 100
    assert sum(history.layout_changes for history in histories) > 10
    changes = sum((Counter(history.store_changes) for history in histories), Counter[str]())
    assert changes["Split"] > 3
    assert changes["Isolate"] + changes["Merge"] > 3
    assert changes["throttles"] > 20


@pytest.mark.full("plain runs replay seeds of another simulation")
def test_a_seed_replays_exactly() -> None:
    assert simulate_dynamodb(1) == played(1)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)
