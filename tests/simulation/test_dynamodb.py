"""The whole system on DynamoDB's store, while the engine beneath it runs hot, splits and merges."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.planted import find, hold

from .dynamodb_bugs import BUGS
from .history import Violation
from .world import simulate_dynamodb

SEEDS = 20
SEEDS_PER_TEST = 4


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_invariants_hold_while_partitions_split(first: int) -> None:
    hold(simulate_dynamodb, range(first, first + SEEDS_PER_TEST), Violation, of="dynamodb")


def test_a_seed_replays_exactly() -> None:
    assert simulate_dynamodb(3) == simulate_dynamodb(3)


def test_partitions_change_beneath_a_fleet_at_work() -> None:
    histories = [simulate_dynamodb(seed) for seed in range(4)]
    assert sum(len(history.acknowledged()) for history in histories) > 800
    assert sum(history.reads for history in histories) > 100
    assert sum(history.layout_changes for history in histories) > 20
    changes = sum((Counter(history.store_changes) for history in histories), Counter[str]())
    for name in ("Split", "Isolate", "Merge"):
        assert changes[name] > 3, name
    assert changes["throttles"] > 100


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    find(BUGS[name], simulate_dynamodb, range(100), Violation)
