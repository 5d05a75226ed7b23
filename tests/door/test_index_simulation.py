"""A spread index shows what its table holds, whatever happens; and each planted bug is found."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.planted import Hunt, hold, usually

from .index_bugs import BUGS
from .index_simulation import IndexSimulation

TURNS = 500


def simulate(seed: int) -> IndexSimulation:
    run = IndexSimulation(seed)
    run.run(TURNS)
    return run


HUNT = Hunt(
    "door-index",
    {bug.__name__: bug for bug in BUGS},
    simulate,
    violations=AssertionError,
    seeds=200,
)


def test_a_spread_index_shows_what_the_table_holds() -> None:
    runs = hold(simulate, range(usually(6, 500)), AssertionError, "door-index")
    assert sum("spread" in run.steps_seen for run in runs) > len(runs) / 2
    seen = sum((run.anomalies for run in runs), Counter[str]())
    assert set(seen) == {"missing", "twice", "wrong"}  # so the indexes did lag


@pytest.mark.parametrize("bug", HUNT.bugs)
def test_a_planted_bug_is_found(bug: str) -> None:
    HUNT.must_find(bug)
