"""What the audit of acknowledged batches accepts, and what it calls a violation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from .audit import Seen, as_text, lost_items, seen, wrong_counts, wrong_end, wrong_restoration

ALL = range(10)
DONE = Seen("done", accepted=10, done=10)
LOST = Seen(
    "lost",
    accepted=10,
    done=7,
    lost=3,
    missing=((2, 2), (7, 1)),
    reason="3 items are lost: 2–3, 7",
)


def test_a_batch_with_every_result_is_right() -> None:
    assert wrong_end(10, DONE, ALL) == []


def test_a_batch_that_names_what_it_lost_is_right() -> None:
    assert wrong_end(10, LOST, {0, 1, 4, 5, 6, 8, 9}) == []
    assert lost_items(10, LOST) == {2, 3, 7}


@pytest.mark.parametrize("state", ["gone", "open", "aborted"])
def test_a_batch_that_the_queue_never_accepted_is_lost_as_a_whole(state: str) -> None:
    assert wrong_end(10, Seen(state), {1, 2}) == []
    assert lost_items(10, Seen(state)) == set(ALL)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Seen("running", 10, done=8, waiting=2), "does not end"),
        (Seen("done", 10, done=8, waiting=2), "8 of 10 items have ended"),
        (Seen("failed", 10, done=9, failed=1), "ended otherwise"),
        (Seen("cancelled", 10, done=9, cancelled=1), "ended otherwise"),
        (Seen("done", 10, done=7, lost=3, missing=((0, 3),)), "but is not lost"),
        (Seen("lost", 10, done=7, lost=3, reason="three"), "0 are named"),
        (Seen("lost", 10, done=7, lost=3, missing=((2, 2), (7, 1))), "does not name the ranges"),
        (Seen("lost", 10, done=6, lost=4, missing=((2, 2), (3, 2)), reason="2 3"), "overlaps"),
        (Seen("lost", 10, done=9, lost=1, missing=((10, 1),), reason="10"), "out of bounds"),
    ],
)
def test_an_end_that_is_not_right_is_named(found: Seen, said: str) -> None:
    assert said in " ".join(wrong_end(10, found, ALL))


def test_items_that_never_ran_must_be_named() -> None:
    assert wrong_end(10, DONE, range(1, 10)) == [
        "items never ran, and are not named as lost: 1 (0)"
    ]


def test_a_cancelled_batch_may_leave_items_out() -> None:
    found = Seen("cancelled", 10, done=3, cancelled=7)
    assert wrong_end(10, found, range(3), is_cancelled=True) == []
    hanging = Seen("cancelling", 10, waiting=10)
    assert "does not end" in wrong_end(10, hanging, (), is_cancelled=True)[0]


@pytest.mark.parametrize(
    "found",
    [
        Seen("running", 10, done=4, running=-1, waiting=7),
        Seen("running", 10, done=11),
        Seen("running", 9, done=1, waiting=8),
    ],
)
def test_counts_are_checked_while_a_batch_runs(found: Seen) -> None:
    assert wrong_counts(10, found)


def test_what_was_lost_runs_once_it_is_submitted_again_and_nothing_else() -> None:
    assert wrong_restoration(10, {2, 3, 7}, [7, 2, 3], DONE) == []
    assert "did not run" in wrong_restoration(10, {2, 3, 7}, [7, 2], DONE)[0]
    assert "ran again" in wrong_restoration(10, {2, 3, 7}, [7, 2, 3, 4], DONE)[0]
    assert "did not end done" in " ".join(wrong_restoration(10, {2, 3, 7}, [7, 2, 3], LOST))


def test_a_queue_without_lost_items_is_understood() -> None:
    @dataclass
    class Plain:
        state: str = "done"
        accepted: int = 10
        done: int = 10

    assert seen(Plain()) == DONE


def test_ranges_are_told_shortly() -> None:
    assert as_text({1, 2, 3, 9}) == "4 (1–3, 9)"
    assert as_text({1, 3, 5, 7, 9, 11}) == "6 (1, 3, 5, 7 and 2 more ranges)"
