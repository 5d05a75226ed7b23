"""Bulk actions as a whole, on virtual time. A failing seed prints how to replay it."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.planted import FULL, Hunt, hold, usually

from .bugs import BUGS
from .history import Violation
from .world import simulate

pytestmark = pytest.mark.slow("half a minute of simulated bulk actions")

SEEDS = usually(5, full=110)
SEEDS_PER_TEST = usually(5, full=10)
REPLAYED = [0, 3, 4] if FULL else [3]
HUNT = Hunt("bulk", BUGS, simulate, Violation, seeds=200)


played = cache(simulate)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_invariants_hold_whatever_goes_wrong(first: int) -> None:
    hold(played, range(first, first + SEEDS_PER_TEST), Violation, of="bulk")


@pytest.mark.parametrize("seed", REPLAYED)
def test_a_seed_replays_exactly(seed: int) -> None:
    assert simulate(seed) == played(seed)


def test_runs_are_not_vacuous() -> None:
    seeds = usually(12, full=16)
    histories = [played(seed) for seed in range(seeds)]
    events = sum((history.events for history in histories), Counter[str]())
    errors = sum((history.errors for history in histories), Counter[str]())
    assert sum(history.starts.total() for history in histories) > 60 * seeds
    assert sum(len(history.lane_starts_s["limited/ann"]) for history in histories) > 3 * seeds
    assert events["accepted"] > 7 * seeds
    assert min(events[verb] for verb in ("_pause", "_resume", "_cancel", "_retry_failed")) > 0
    assert min(events["stepped back"], events["stepped ahead"]) > 2
    assert events["moved"] > 0
    assert events["placed"] > 3 * seeds
    assert {"Overloaded", "Conflict"} <= errors.keys()
    assert any(count > 1 for history in histories for count in history.starts.values())


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)
