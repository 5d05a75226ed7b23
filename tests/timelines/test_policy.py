"""Push or pull: the number of followers first, then the cost, each with room in between."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from heatsink.timelines.policy import (
    BY_COST,
    COST_HOLD_S,
    PULLED,
    PUSHED,
    SLACK,
    Author,
    ModeLimits,
    PostingCost,
    wanted_mode,
)

LIMITS = ModeLimits(threshold=10_000, costly_writes_s=1_000.0, costly_ratio=4.0)
FEW, MANY, COST = "few followers", "followers: 10,000, 10,000 or more are pulled", f"{BY_COST}x"


def author(mode: str, why: str, followers: int, posts_s: float = 0.0, reads_s: float = 0) -> Author:
    return Author(mode, why, COST_HOLD_S, PostingCost(posts_s, followers, reads_s))


def change(of: Author) -> tuple[str, str]:
    wanted = wanted_mode(of, LIMITS)
    assert wanted is not None
    return wanted


states = st.sampled_from([(PUSHED, FEW), (PULLED, MANY), (PULLED, COST)])
costs = st.builds(PostingCost, st.floats(0, 50), st.integers(0, 20_000), st.floats(0, 100_000))
authors = st.builds(
    lambda state, held_s, cost: Author(state[0], state[1], held_s, cost),
    states,
    st.floats(0, 200),
    costs,
)


def test_the_number_of_followers_has_room_between_push_and_pull() -> None:
    assert wanted_mode(author(PUSHED, FEW, 9_999), LIMITS) is None
    assert change(author(PUSHED, FEW, 10_000)) == (PULLED, MANY)
    assert wanted_mode(author(PULLED, MANY, 8_000), LIMITS) is None
    assert change(author(PULLED, MANY, 7_999)) == (
        PUSHED,
        "followers: 7,999, fewer than 8,000 are pushed again",
    )


def test_who_posts_more_than_is_read_is_pulled_and_the_reason_says_what_it_costs() -> None:
    text = "cost: 3.1 posts/s × 900 followers = 2,790 writes/s against 40 reads/s"
    assert change(author(PUSHED, FEW, 900, 3.1, 40)) == (PULLED, text)
    assert wanted_mode(author(PUSHED, FEW, 900, 3.1, 700), LIMITS) is None
    assert wanted_mode(author(PUSHED, FEW, 900, 1.1, 0), LIMITS) is None


def test_what_is_costly_has_room_before_it_is_pushed_again() -> None:
    assert wanted_mode(author(PULLED, COST, 900, 3.1, 700), LIMITS) is None
    assert wanted_mode(author(PULLED, COST, 900, 0.6, 40), LIMITS) is None
    for posts_s, reads_s in ((3.1, 1_500), (0.5, 40)):
        mode, why = change(author(PULLED, COST, 900, posts_s, reads_s))
        assert mode == PUSHED
        assert why.startswith(BY_COST)


def test_a_burst_changes_the_mode_at_most_once_in_a_while() -> None:
    quiet = author(PULLED, COST, 900)
    assert wanted_mode(quiet._replace(held_s=COST_HOLD_S - 1), LIMITS) is None
    assert change(quiet)[0] == PUSHED


def test_who_leaves_the_threshold_behind_stays_pulled_if_the_cost_says_so() -> None:
    mode, why = change(author(PULLED, MANY, 7_000, 1.0, 100))
    assert (mode, why.startswith(BY_COST)) == (PULLED, True)
    assert change(author(PULLED, COST, 10_000)) == (PULLED, MANY)


@given(authors, st.integers(LIMITS.threshold, 10**9))
def test_at_the_threshold_everybody_is_pulled(seen: Author, followers: int) -> None:
    many = seen._replace(cost=seen.cost._replace(followers=followers))
    wanted = wanted_mode(many, LIMITS)
    assert (wanted[0] if wanted else seen.mode) == PULLED


@given(authors)
def test_whom_neither_rule_names_is_pushed_in_the_end(seen: Author) -> None:
    assume(seen.followers < LIMITS.threshold * SLACK and LIMITS.is_cheap(seen.cost))
    wanted = wanted_mode(seen._replace(held_s=COST_HOLD_S), LIMITS)
    assert (wanted[0] if wanted else seen.mode) == PUSHED


@given(authors)
def test_a_change_is_followed_by_no_other_while_nothing_else_changes(seen: Author) -> None:
    """Also the one that only gives another reason."""
    if wanted := wanted_mode(seen, LIMITS):
        mode, why = wanted
        assert (mode, why) != (seen.mode, seen.why)
        assert wanted_mode(seen._replace(mode=mode, why=why), LIMITS) is None


@given(costs)
def test_what_is_costly_is_not_cheap(cost: PostingCost) -> None:
    assert not (LIMITS.is_costly(cost) and LIMITS.is_cheap(cost))
