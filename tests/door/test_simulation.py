"""Every item's history has an explanation, whatever gets lost; and each planted bug is found."""

from __future__ import annotations

import pytest

from tests.planted import Hunt, hold, usually

from .bugs import BUGS
from .simulation import Event, Simulation, linearizable

TURNS = 500


def simulate(seed: int) -> Simulation:
    run = Simulation(seed)
    run.run(TURNS)
    run.check()
    return run


HUNT = Hunt(
    "door", {bug.__name__: bug for bug in BUGS}, simulate, violations=AssertionError, seeds=400
)


def test_the_answers_about_each_item_have_an_order_that_explains_them() -> None:
    runs = hold(simulate, range(usually(15, 1_000)), AssertionError, "door")
    sent = [call for run in runs for call in run.world.stored.sent]
    assert sum(call.bucket is not None for call in sent) > len(sent) / 3


@pytest.mark.parametrize("bug", HUNT.bugs)
def test_a_planted_bug_is_found(bug: str) -> None:
    HUNT.must_find(bug)


def test_the_checker_knows_what_is_possible() -> None:
    put = Event("put", "a", 1, 2, "ok")
    assert linearizable([put, Event("get", "", 3, 4, ("a", 0))])
    assert not linearizable([put, Event("get", "", 3, 4, None)])
    assert linearizable([put, Event("get", "", 1, 4, None)])
    lost = Event("add", "", 3)
    assert linearizable([put, lost, Event("get", "", 5, 6, ("a", 0))])
    assert linearizable([put, lost, Event("get", "", 5, 6, ("a", 1))])
    assert not linearizable([put, lost, Event("get", "", 5, 6, ("a", 2))])
    two = [Event("create", "a", 1, 5, "ok"), Event("create", "b", 2, 6, "ok")]
    assert not linearizable(two)
