"""Whole-system runs on virtual time. A failing seed prints how to replay it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from unittest.mock import patch

import pytest

from heatsink.registry import news as relay
from heatsink.registry.news import News, NewsListener
from heatsink.registry.registry import Registry
from tests.planted import FULL, Hunt, hold, usually

from .bugs import BUGS
from .history import History, Violation
from .world import has_redis, simulate

pytestmark = pytest.mark.slow("half a minute of whole-system simulation")

SEEDS = usually(5, full=200)
HUNT = Hunt("log", BUGS, simulate, Violation, seeds=200)
SEEDS_PER_TEST = usually(5, full=10)
WITH_REDIS = [1, 3, 5, 7, 9, 11, 13, 15, 17, 27] if FULL else [1, 3, 5, 9, 27]
SECRET_LEAKS = [31, 37] if FULL else [37]
REPLAYED = [0, 3, 4, 9] if FULL else [3]


@dataclass(frozen=True)
class Played:
    history: History
    heard: int
    """News that registries adopted."""
    warnings: Counter[str]
    """What listeners said about news that they refused."""


@cache
def played(seed: int) -> Played:
    """One run, watched, that several tests look at."""
    heard, warnings = 0, Counter[str]()
    adopt = Registry._adopt

    async def counted(self: Registry, news: News) -> None:
        nonlocal heard
        heard += 1
        await adopt(self, news)

    def note(_: NewsListener, warning: str) -> None:
        warnings[warning] += 1

    with patch.object(Registry, "_adopt", counted), patch.object(NewsListener, "_warn", note):
        history = simulate(seed)
    return Played(history, heard, warnings)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_invariants_hold_whatever_goes_wrong(first: int) -> None:
    hold(played, range(first, first + SEEDS_PER_TEST), Violation, of="log")


@pytest.mark.parametrize("seed", REPLAYED)
def test_a_seed_replays_exactly(seed: int) -> None:
    assert simulate(seed) == played(seed).history


def test_runs_are_not_vacuous() -> None:
    histories = [played(seed).history for seed in range(5)]
    assert sum(len(history.acknowledged()) for history in histories) > 1_000
    assert sum(history.reads for history in histories) > 100
    assert sum(history.layout_changes for history in histories) > 40
    assert "Overloaded" in {name for history in histories for name in history.errors}


def test_the_simulated_redis_is_listened_to() -> None:
    runs = [played(seed) for seed in WITH_REDIS[:3]]
    assert all(map(has_redis, WITH_REDIS))
    assert min(run.history.layout_changes for run in runs) > 3
    assert sum(run.heard for run in runs) > 500


def test_the_simulated_redis_is_forged() -> None:
    met = sum((played(seed).warnings for seed in [*WITH_REDIS, *SECRET_LEAKS]), Counter[str]())
    assert set(met) == {relay.FORGED_PAIR, relay.FORGED_ENTRY, relay.FOREIGN, relay.TOO_FAR}
    assert min(met.values()) > (5 if FULL else 1)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)
