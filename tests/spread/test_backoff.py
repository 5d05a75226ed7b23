from __future__ import annotations

import asyncio
from random import Random

import pytest

from heatsink.detect.tracker import Tracker
from heatsink.errors import Conflict, InvalidSetting, Overloaded, Throttled, Unavailable
from heatsink.registry.layout import Layout
from heatsink.registry.view import View
from heatsink.spread.backoff import Backoff, Retries
from heatsink.testing import SkewedClock, run_on_virtual_time


class Refusing:
    """Refuses some times, then answers; notes when it was asked."""

    def __init__(self, *refusals: Exception) -> None:
        self._refusals = list(refusals)
        self.asked_s: list[float] = []

    async def __call__(self) -> str:
        self.asked_s.append(asyncio.get_running_loop().time())
        if self._refusals:
            raise self._refusals.pop(0)
        return "answer"


def backoff(tracker: Tracker | None = None, view: View | None = None, **retries: float) -> Backoff:
    return Backoff(
        Retries(**retries), SkewedClock(), Random(1), tracker or Tracker(), view or View()
    )


def test_it_goes_on_until_there_is_an_answer() -> None:
    attempt = Refusing(Throttled("k"), Unavailable("?"), Throttled("k"))
    tracker = Tracker()
    assert run_on_virtual_time(backoff(tracker).call(attempt, "k")) == "answer"
    assert len(attempt.asked_s) == 4
    assert tracker.roll().hottest(1, 1)[0]["k"].throttles == 2


def test_what_an_old_epochs_partition_refuses_is_no_reason_for_more_buckets() -> None:
    tracker, view = Tracker(), View()
    view.layouts["k"] = Layout([(5, 4)])
    attempt = Refusing(Throttled("k"), Throttled("k#7"), Throttled("k#3"))
    run_on_virtual_time(backoff(tracker, view).call(attempt, "k"))
    assert tracker.roll().hottest(1, 1)[0]["k"].throttles == 1


def test_a_tables_own_limit_is_no_reason_for_more_buckets() -> None:
    tracker = Tracker()
    made = backoff(tracker)
    attempt = Refusing(Throttled("", "the table is over its limit"))
    run_on_virtual_time(made.call(attempt, "k"))
    assert tracker.roll().entries == {}
    assert made.table_refusal == "the table is over its limit"


def test_pauses_grow_and_differ() -> None:
    attempt = Refusing(*[Throttled("p")] * 8)
    run_on_virtual_time(backoff(first_s=0.1, longest_s=1.0).call(attempt, "k"))
    pauses = [b - a for a, b in zip(attempt.asked_s, attempt.asked_s[1:], strict=False)]
    for n, pause_s in enumerate(pauses, start=1):
        assert 0 <= pause_s <= min(0.1 * 2**n, 1.0)
    assert len(set(pauses)) == len(pauses)


def test_at_the_deadline_it_says_what_it_tried() -> None:
    attempt = Refusing(*[Throttled("conv#3")] * 1_000)
    with pytest.raises(Overloaded, match=r"tried \d+ times within 2 s.*'conv#3'") as raised:
        run_on_virtual_time(backoff(deadline_s=2.0).call(attempt, "k"))
    assert attempt.asked_s[-1] <= 2.0
    assert isinstance(raised.value.__cause__, Throttled)


def test_what_cannot_succeed_is_not_repeated() -> None:
    attempt = Refusing(Conflict("taken"))
    with pytest.raises(Conflict):
        run_on_virtual_time(backoff().call(attempt, "k"))
    assert len(attempt.asked_s) == 1


@pytest.mark.parametrize(
    ("name", "value"), [("first_s", 0.0), ("longest_s", 0.0001), ("deadline_s", -1.0)]
)
def test_a_wrong_setting_is_named(name: str, value: float) -> None:
    with pytest.raises(InvalidSetting, match=name):
        Retries(**{name: value})
