from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatsink.bulk.batch import Rate
from heatsink.bulk.store import LATE_MS
from heatsink.stores.memory.queue.homes import (
    GUARD_MS,
    RateState,
    declared,
    rate_of,
    refused,
    reserve,
)
from tests.planted import usually

from .strict_downstream import BEGIN_MS, STRICT, Fleet

KINDS_AND_LIMITS = pytest.mark.parametrize(
    ("kind", "per_s"), [(kind, per_s) for kind in STRICT for per_s in (20, 100, 1_000)]
)
RATES = st.builds(Rate, st.integers(1, 3_000), st.sampled_from((1.0, 60.0)))


# -- exact: a declared rate -----------------------------------------------------------------


class Ask(NamedTuple):
    """After a pause, a partition books starts ahead, and uses each of them late by at most this."""

    pause_ms: float
    wanted: int
    ahead_ms: float
    late_ms: float


class Booked(NamedTuple):
    time_ms: float
    late_ms: float
    size: int


def starts_of(rate: Rate, asks: list[Ask], refusals: frozenset[int]) -> list[Booked]:
    limit, now_ms, booked = RateState(rate), BEGIN_MS, []
    for number, ask in enumerate(asks):
        now_ms += ask.pause_ms
        if number in refusals:
            limit = refused(limit, now_ms, rate.per_s, 0)
        limit, grants = reserve(limit, now_ms, ask.wanted, ask.ahead_ms, ask.late_ms)
        booked += [Booked(now_ms + wait, ask.late_ms, grants.size) for wait in grants.wait_ms]
    return booked


def most_in_a_period(starts: list[tuple[float, int]], period_ms: float) -> int:
    """Times of this size are exact to a thousandth of a millisecond, so is the window."""
    starts = sorted(starts)
    most = held = first = 0
    for time_ms, count in starts:
        held += count
        while starts[first][0] <= time_ms - period_ms + 0.002:
            held -= starts[first][1]
            first += 1
        most = max(most, held)
    return most


@given(
    rate=RATES,
    asks=st.lists(
        st.builds(
            Ask,
            st.floats(0, 400),
            st.integers(1, 500),
            st.floats(0, 1_000),
            st.sampled_from((LATE_MS, LATE_MS, LATE_MS + 30, LATE_MS + 600)),
        ),
        min_size=1,
    ),
    refusals=st.frozensets(st.integers(0, 30)),
    seed=st.integers(0, 1_000),
    edges=st.booleans(),
)
@settings(max_examples=usually(30, full=300), deadline=None)
def test_no_period_holds_more_starts_than_the_rate_however_late_each_is(
    rate: Rate,
    asks: list[Ask],
    refusals: frozenset[int],
    seed: int,
    edges: bool,
) -> None:
    chance = Random(seed)
    shares = [0.0, 1.0] if edges else [chance.random() for _ in range(100)]
    late = [
        (each.time_ms + each.late_ms * chance.choice(shares), each.size)
        for each in starts_of(rate, asks, refusals)
    ]
    assert most_in_a_period(late, rate.period_s * 1000) <= rate.count


@given(rate=RATES)
def test_a_rate_that_is_always_asked_for_is_used(rate: Rate) -> None:
    periods_ms = 30 * 1000 * rate.period_s
    limit, booked = RateState(rate), 0
    while limit.next_ms < BEGIN_MS + periods_ms:
        limit, grants = reserve(limit, max(limit.next_ms, BEGIN_MS), 10_000, 1_000)
        booked += grants.size * len(grants.wait_ms)
    used = booked / (limit.next_ms - BEGIN_MS) * 1000 / rate.per_s
    assert 1 / 1.05 <= used <= 1


def test_nothing_is_booked_far_ahead() -> None:
    limit, grants = reserve(RateState(Rate(1, 60.0)), BEGIN_MS, 5, 50)
    assert grants.wait_ms == [0]
    limit, grants = reserve(limit, BEGIN_MS, 5, 50)
    assert (grants.wait_ms, grants.then_ms) == ([], 60_020)


def test_a_rate_that_is_raised_holds_in_a_moment() -> None:
    limit, _ = reserve(RateState(Rate(1, 3600.0)), BEGIN_MS, 1, 1_000)
    raised = declared(limit, Rate(100), BEGIN_MS)
    _, grants = reserve(raised, BEGIN_MS + 1_020, 5, 1_000)
    assert grants.wait_ms[0] == 0
    assert len(grants.wait_ms) == 5
    assert declared(limit, Rate(1, 3600.0), BEGIN_MS) == limit, "the same rate changes nothing"


def test_asked_for_none_it_books_none() -> None:
    limit, grants = reserve(RateState(Rate(10)), BEGIN_MS, 0, 1_000)
    assert (grants.wait_ms, grants.now_ms) == ([], BEGIN_MS)
    assert reserve(limit, BEGIN_MS, 1, 1_000)[1].wait_ms == [0]


def test_who_has_room_for_less_than_a_grant_leaves_the_rest_to_others() -> None:
    limit, whole = reserve(RateState(Rate(1_000)), BEGIN_MS, 10, 1_000)
    step_ms = limit.next_ms - BEGIN_MS
    limit, part = reserve(limit, BEGIN_MS, 3, 1_000)
    assert (whole.size, part.size, len(part.wait_ms)) == (10, 3, 1)
    assert limit.next_ms - BEGIN_MS == pytest.approx(1.3 * step_ms, rel=1e-4)


@given(per_s=st.integers(150, 1_500), seed=st.integers(0, 1_000))
@settings(deadline=None)
def test_grants_in_pieces_hold_the_rate(per_s: int, seed: int) -> None:
    limit, chance, starts = RateState(Rate(per_s)), Random(seed), []
    while limit.next_ms < BEGIN_MS + 2_500:
        now_ms = max(limit.next_ms, BEGIN_MS)
        limit, grants = reserve(limit, now_ms, chance.randint(1, 20), 0)
        starts.append((now_ms + chance.choice((0.0, LATE_MS)), grants.size))
    assert most_in_a_period(starts, 1_000) <= per_s


def test_a_lane_without_a_limit_starts_at_once() -> None:
    _, grants = reserve(RateState(), BEGIN_MS, 2_500, 50)
    assert (grants.size, grants.wait_ms) == (1_000, [0, 0, 0])


# -- explored: a limit that nobody declared -------------------------------------------------


def fleet(kind: str, per_s: float, declared: Rate | None = None) -> Fleet:
    return Fleet(STRICT[kind](per_s), RateState(declared), 20 * per_s, Random(7))


@KINDS_AND_LIMITS
def test_an_unknown_limit_is_found_and_held(kind: str, per_s: int) -> None:
    """From twenty times the limit, over fifteen minutes: the first minute is in the figures."""
    done_per_s, refused_share = fleet(kind, per_s).run(900)
    assert done_per_s > 0.95 * per_s
    assert refused_share < 0.01


@KINDS_AND_LIMITS
def test_a_limit_that_changes_is_followed_within_a_minute(kind: str, per_s: int) -> None:
    found = fleet(kind, per_s)
    found.run(300)
    for factor in (0.5, 1):
        found.downstream.per_s = per_s * factor
        found.run(60)
        done_per_s, refused_share = found.run(120)
        assert done_per_s > 0.95 * per_s * factor
        assert refused_share < 0.01


@pytest.mark.parametrize("kind", STRICT)
def test_a_declared_rate_above_the_limit_is_corrected(kind: str) -> None:
    done_per_s, refused_share = fleet(kind, 100, Rate(150)).run(600)
    assert done_per_s > 95
    assert refused_share < 0.01


@given(st.lists(st.floats(0, 30_000), max_size=30), st.floats(0, 1e6))
def test_what_is_explored_never_exceeds_what_is_declared(
    pauses_ms: list[float], started_per_s: float
) -> None:
    limit, now_ms = RateState(Rate(50)), BEGIN_MS
    for pause_ms in pauses_ms:
        now_ms += pause_ms
        limit = refused(limit, now_ms, started_per_s, 0)
        rate = rate_of(limit, now_ms)
        assert rate is not None
        assert 0 < rate <= 50


def test_answers_to_one_surge_count_once() -> None:
    once = refused(RateState(), BEGIN_MS, 1_000, 0)
    assert refused(once, BEGIN_MS + GUARD_MS, 1_000, 0) == once


def test_nothing_starts_before_the_downstream_wants_to_be_asked_again() -> None:
    limit = refused(RateState(), BEGIN_MS, 1_000, 7_000)
    _, grants = reserve(limit, BEGIN_MS, 10, 50)
    assert (grants.wait_ms, grants.then_ms) == ([], 7_000)


def test_a_pace_that_nobody_uses_does_not_grow() -> None:
    found = fleet("sliding window", 100)
    found.run(300)
    later_ms = found.now_ms + 3_600_000
    limit, _ = reserve(found.limit, later_ms, 1, 50)
    rate = rate_of(limit, later_ms)
    assert rate is not None
    assert 90 < rate < 100


def test_a_pace_that_is_mostly_unused_does_not_grow_either() -> None:
    found = fleet("sliding window", 100)
    found.run(300)
    limit, now_ms = found.limit, found.now_ms
    for _ in range(60_000):
        now_ms += 20  # 50 a second are asked for, 100 would be taken
        limit, _ = reserve(limit, now_ms, 1, 50)
    rate = rate_of(limit, now_ms)
    assert rate is not None
    assert rate < 105


def test_a_search_that_nobody_answers_stays_finite() -> None:
    limit = refused(RateState(), BEGIN_MS, 1_000, 0)
    limit = RateState(None, limit.explored, BEGIN_MS + 1e12)
    rate = rate_of(limit, BEGIN_MS + 1e11)
    assert rate is not None
    assert rate < 1e15
