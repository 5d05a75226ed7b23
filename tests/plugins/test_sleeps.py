"""What counts as waiting for a duration."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from heatsink.testing import run_on_virtual_time

from .sleeps import LOOK_S, MOST_S, Watch

LONGER_S = 1.2 * LOOK_S


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_a_sleep_counts(watch: Watch) -> None:
    watch.sleep(LONGER_S)
    assert watch.slept_s >= LONGER_S


async def test_sleeps_at_the_same_time_count_once(watch: Watch) -> None:
    for _ in range(2):
        before_s = watch.slept_s
        await asyncio.gather(*(watch.sleep_async(LONGER_S) for _ in range(50)))
        assert LONGER_S <= watch.slept_s - before_s < 25 * LONGER_S


async def test_looks_and_sleeps_that_were_cancelled_do_not_count(watch: Watch) -> None:
    watch.sleep(LOOK_S / 10)
    await watch.sleep_async(LOOK_S / 10)
    with suppress(TimeoutError):
        await asyncio.wait_for(watch.sleep_async(60), LONGER_S)
    assert watch.slept_s == 0


def test_virtual_time_does_not_count(watch: Watch) -> None:
    async def an_hour() -> None:
        await watch.sleep_async(3_600)

    run_on_virtual_time(an_hour())
    assert watch.slept_s < MOST_S


@pytest.mark.parametrize(
    ("slept_s", "marked", "fails"),
    [(MOST_S + 1, False, True), (MOST_S + 1, True, False), (MOST_S / 2, False, False)],
)
def test_too_much_sleep_fails_a_test_that_has_no_reason(
    watch: Watch, slept_s: float, marked: bool, fails: bool
) -> None:
    item: Any = SimpleNamespace(get_closest_marker=lambda name: marked and name == "sleeps")
    call = watch.pytest_runtest_call(item)
    next(call)
    watch.slept_s = slept_s
    with pytest.raises(pytest.fail.Exception if fails else StopIteration):
        next(call)
