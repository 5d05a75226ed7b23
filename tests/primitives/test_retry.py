from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.errors import Closed, Overloaded, Throttled, Unavailable
from heatsink.primitives.retry import FailedAttempt, Pauses, Retrier
from heatsink.testing import SkewedClock, run_on_virtual_time

FIRST = Unavailable("the first try")


@given(st.integers(1, 10_000), st.floats(0.001, 10), st.floats(0, 1), st.integers())
def test_pauses_double_up_to_the_longest_and_only_their_jitter_is_random(
    refusals: int, first_s: float, jitter: float, seed: int
) -> None:
    pause_s = Pauses(first_s, 5.0, jitter).after(refusals, Random(seed))
    ceiling_s = min(first_s * 2 ** min(refusals - 1, 30), 5.0)
    assert ceiling_s * (1 - jitter) * 0.999 <= pause_s <= ceiling_s


def test_an_attempt_is_repeated_until_it_succeeds() -> None:
    seen: list[FailedAttempt] = []
    answers = [Throttled("p"), Unavailable("again"), None]

    async def attempt() -> str:
        if error := answers.pop(0):
            raise error
        return "done"

    async def play() -> float:
        clock = SkewedClock()
        retrier = Retrier(Pauses(1.0, 3.0, jitter=0.0), clock, Random(1))
        assert await retrier.after(FIRST, attempt, seen.append) == "done"
        return clock.monotonic_s()

    assert run_on_virtual_time(play()) == 1 + 2 + 3
    assert [type(each.error) for each in seen] == [Unavailable, Throttled, Unavailable]
    assert [(each.attempts, each.next_s) for each in seen] == [(1, 1), (2, 3), (3, 6)]


def test_the_caller_gives_up_before_a_pause_that_is_too_long() -> None:
    def check(refused: FailedAttempt) -> None:
        if refused.next_s > 5:
            raise Overloaded(f"tried {refused.attempts} times") from refused.error

    async def attempt() -> None:
        raise Unavailable("never there")

    async def play() -> None:
        clock = SkewedClock()
        with pytest.raises(Overloaded, match="tried 3 times") as given_up:
            await Retrier(Pauses(1.0, 3.0, jitter=0.0), clock, Random(1)).after(
                FIRST, attempt, check
            )
        assert isinstance(given_up.value.__cause__, Unavailable)
        assert clock.monotonic_s() == 3

    run_on_virtual_time(play())


def test_another_error_goes_to_the_caller_at_once() -> None:
    async def attempt() -> None:
        raise Closed("gone")

    async def play() -> None:
        retrier = Retrier(Pauses(1.0, 3.0), SkewedClock(), Random(1))
        with pytest.raises(Closed):
            await retrier.after(FIRST, attempt, lambda _: None)

    run_on_virtual_time(play())
