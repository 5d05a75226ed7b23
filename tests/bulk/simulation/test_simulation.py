"""Bulk actions as a whole, on virtual time. A failing seed prints how to replay it."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.planted import FULL, find, from_seed, hold, usually

from .bugs import BUGS
from .history import Violation
from .world import simulate

pytestmark = pytest.mark.slow("half a minute of simulated bulk actions")

SEEDS = usually(5, full=110)
SEEDS_PER_TEST = usually(5, full=10)
REPLAYED = [0, 3, 4] if FULL else [3]
SEEDS_PER_BUG = 200
FOUND_AT = {  # to begin there saves minutes; all other seeds are tried as well
    "wishes_that_are_told_only_once": 29,
    "no_sync_before_the_seal": 21,
    "a_lost_part_that_is_waited_for": 51,
    "a_restoration_that_doubles_items": 4,
    "a_lost_record_that_is_not_rebuilt": 102,
    "an_end_that_is_told_before_it_is_durable": 117,
    "an_outcome_taken_whoever_tells_it": 41,
    "a_lease_that_expires_without_a_fence": 10,
    "parts_released_before_the_seal": 1,
    "leases_that_never_expire": 10,
    "a_claim_repeated_under_its_name": 4,
    "a_seal_that_ignores_the_version": 2,
    "an_end_forgotten_before_home_knows": 17,
    "a_seal_before_the_parts_are_verified": 2,
    "no_verification_after_a_restart": 11,
    "a_seal_that_is_not_read_back": 2,
    "an_end_forgotten_before_its_record_is_durable": 3,
    "a_pump_that_dies_of_a_missing_chunk": 24,
    "time_that_runs_backwards": 15,
    "a_forward_step_that_is_believed_at_once": 2,
    "a_gap_that_nobody_may_refuse": 2,
    "starts_that_are_not_forfeited": 4,
    "a_partition_given_away_with_its_parts": 0,
    "a_place_adopted_before_all_is_copied": 6,
}


played = cache(simulate)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_invariants_hold_whatever_goes_wrong(first: int) -> None:
    hold(played, range(first, first + SEEDS_PER_TEST), Violation, of="bulk")


@pytest.mark.parametrize("seed", REPLAYED)
def test_a_seed_replays_exactly(seed: int) -> None:
    assert simulate(seed) == played(seed)


def test_runs_are_not_vacuous() -> None:
    seeds = usually(8, full=16)
    histories = [played(seed) for seed in range(seeds)]
    events = sum((history.events for history in histories), Counter[str]())
    errors = sum((history.errors for history in histories), Counter[str]())
    assert sum(history.starts.total() for history in histories) > 60 * seeds
    assert sum(len(history.lane_starts_s["limited/ann"]) for history in histories) > 3 * seeds
    assert events["accepted"] > 7 * seeds
    assert min(events[verb] for verb in ("_pause", "_resume", "_cancel", "_retry_failed")) > 0
    assert min(events["stepped back"], events["stepped ahead"]) > 2
    assert events["moved"] > 0
    assert {"Overloaded", "Conflict"} <= errors.keys()
    assert any(count > 1 for history in histories for count in history.starts.values())


LONG = pytest.mark.full("runs with this bug take six seconds")
LONG_BUGS = {"leases_that_never_expire"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[LONG] if name in LONG_BUGS else []) for name in BUGS]
)
def test_a_planted_bug_is_found(name: str) -> None:
    find(BUGS[name], simulate, from_seed(FOUND_AT.get(name, 0), SEEDS_PER_BUG), Violation)
