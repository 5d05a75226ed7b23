"""Whole-system runs on virtual time. A failing seed prints how to replay it."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import pytest

from heatsink.registry import news as relay
from heatsink.registry.news import News, NewsListener
from heatsink.registry.registry import Registry
from tests.planted import find, from_seed, hold, seeds

from .bugs import BUGS
from .history import Violation
from .world import has_redis, simulate

SEEDS = seeds(20, full=200)
SEEDS_PER_BUG = 200
FOUND_AT = {  # to begin there saves minutes; all other seeds are tried as well
    "the_closed_time_adopted_before_the_log": 4,
    "version_and_closed_time_read_apart": 8,
    "a_reader_that_trusts_an_expired_horizon": 5,
    "two_leaders_without_a_fence": 62,
    "a_gap_in_the_log_passed_over": 6,
    "a_delete_without_a_tombstone": 13,
    "a_clock_a_year_ahead_believed": 6,
    "a_wiped_redis_that_is_believed": 13,
    "news_believed_without_its_mac": 9,
    "entries_of_the_news_believed_without_their_mac": 11,
    "a_mac_that_does_not_bind_the_closed_time": 9,
    "a_mac_that_does_not_bind_the_entry": 19,
    "news_far_ahead_of_the_stores_time_believed": 7,
    "a_gap_in_the_news_passed_over": 45,
    "the_closed_time_of_the_news_adopted_before_its_log": 27,
}
SEEDS_PER_TEST = 10


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_invariants_hold_whatever_goes_wrong(first: int) -> None:
    hold(simulate, range(first, first + SEEDS_PER_TEST), Violation, of="log")


@pytest.mark.parametrize("seed", [0, 3, 4, 9])
def test_a_seed_replays_exactly(seed: int) -> None:
    assert simulate(seed) == simulate(seed)


def test_runs_are_not_vacuous() -> None:
    histories = [simulate(seed) for seed in range(5)]
    assert sum(len(history.acknowledged()) for history in histories) > 1_000
    assert sum(history.reads for history in histories) > 100
    assert sum(history.layout_changes for history in histories) > 40
    assert "Overloaded" in {name for history in histories for name in history.errors}


def test_the_simulated_redis_is_listened_to() -> None:
    heard = 0
    adopt = Registry._adopt

    async def counted(self: Registry, news: News) -> None:
        nonlocal heard
        heard += 1
        await adopt(self, news)

    with patch.object(Registry, "_adopt", counted):
        for seed in (1, 3, 5):
            assert has_redis(seed)
            assert simulate(seed).layout_changes > 3
    assert heard > 500


def test_the_simulated_redis_is_forged() -> None:
    met: Counter[str] = Counter()

    def count(_: NewsListener, warning: str) -> None:
        met[warning] += 1

    with patch.object(NewsListener, "_warn", count):
        for seed in (
            1,
            3,
            5,
            7,
            9,
            11,
            13,
            15,
            17,
            31,
            37,
        ):  # with a Redis; the last two leak its secret
            simulate(seed)
    assert set(met) == {relay.FORGED_PAIR, relay.FORGED_ENTRY, relay.FOREIGN, relay.TOO_FAR}
    assert min(met.values()) > 5


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    find(BUGS[name], simulate, from_seed(FOUND_AT.get(name, 0), SEEDS_PER_BUG), Violation)
