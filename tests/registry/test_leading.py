"""The closed time of a large fleet, with stalls and without Redis: prompt, and never missing."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.planted import Hunt, hold, usually

from .leading import BUGS, Violation, simulate

SEEDS = usually(8, full=200)
HUNT = Hunt("leading", BUGS, simulate, Violation, seeds=50)


def test_the_closed_time_is_prompt_after_stalls_and_far_ahead_without_redis() -> None:
    happened = sum(hold(simulate, range(SEEDS), Violation, of="leading"), Counter[str]())
    assert happened["stalls"] >= SEEDS
    assert min(happened["calm looks"], happened["outages"]) > 100


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)
