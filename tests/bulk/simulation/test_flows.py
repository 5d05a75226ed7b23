"""Results, follow-up batches and schedules on virtual time, and bugs that must be found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from heatsink.bulk import flows, schedules
from heatsink.bulk.batch import Batch, Next
from heatsink.bulk.schedules import Schedule
from heatsink.bulk.store import Outcome
from heatsink.bulk.work.held import Held
from tests.planted import Bugs, Hunt, hold, usually

from .flows import BATCHES, SINGLES, simulate
from .history import Violation

pytestmark = pytest.mark.slow("simulated workers and coordinators")

BUGS = bug = Bugs()
SEEDS = usually(2, full=60)
played = cache(simulate)


@bug
def a_schedule_started_twice_after_a_fail_over() -> Iterator[None]:
    """Each leader makes up the id of the batch."""
    numbers = count()

    def batch_id(schedule: Schedule, time_ms: int) -> str:
        return f"schedule:{schedule.name}:{time_ms}:{next(numbers)}"

    with patch.object(schedules, "batch_id", batch_id):
        yield


@bug
def a_result_lost_on_retry() -> Iterator[None]:
    """A result is forgotten when it is sent, and not when the store has confirmed it."""
    outcome = Held.outcome

    def forgetful(self: Held) -> Outcome:
        found = outcome(self)
        self.results.clear()
        return found

    with patch.object(Held, "outcome", forgetful):
        yield


@bug
def a_follow_up_submitted_twice() -> Iterator[None]:
    """Each attempt makes up the id of the batch that follows."""
    numbers, batch_of = count(), flows._batch_of

    def own_id(batch: Batch, following: Next, mark: str, now_ms: int) -> Batch:
        made = batch_of(batch, following, mark, now_ms)
        number = next(numbers)
        return replace(made, id=f"{made.id}.{number}") if number % 2 else made

    with patch.object(flows, "_batch_of", own_id):
        yield


HUNT = Hunt("flows", BUGS, simulate, Violation, seeds=40)


def test_results_flows_and_schedules_hold_while_processes_die() -> None:
    runs: list[Counter[str]] = hold(played, range(SEEDS), Violation, of="flows")
    events: Any = sum(runs, Counter[str]())
    assert events["flows"] == BATCHES * (1 + SINGLES) * SEEDS
    assert min(events["fail-overs"], events["killed"]) >= SEEDS
    assert events["starts"] >= 8 * SEEDS


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)
