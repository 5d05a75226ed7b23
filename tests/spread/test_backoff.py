from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from heatsink.errors import Conflict, InvalidSetting, Overloaded, Throttled, Unavailable
from heatsink.heat.count import NO_KEYS, Tracker
from heatsink.registry.decisions import View
from heatsink.registry.layouts import Layout
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


def call(made: Backoff, attempt: Callable[[], Awaitable[str]], key: str = "k") -> str:
    async def step() -> str:
        return await made.call(attempt, key, made.deadline_s())

    return run_on_virtual_time(step())


def test_it_goes_on_until_there_is_an_answer() -> None:
    attempt = Refusing(Throttled("k"), Unavailable("?"), Throttled("k"))
    tracker = Tracker()
    assert call(backoff(tracker), attempt) == "answer"
    assert len(attempt.asked_s) == 4
    assert tracker.roll().listed(NO_KEYS, tracker.rng)["k"].throttles == 2


def test_what_an_old_epochs_partition_refuses_is_no_reason_for_more_buckets() -> None:
    tracker, view = Tracker(), View()
    view.layouts["k"] = Layout.of([(5, 4)])
    attempt = Refusing(Throttled("k"), Throttled("k#7"), Throttled("k#3"))
    call(backoff(tracker, view), attempt)
    assert tracker.roll().listed(NO_KEYS, tracker.rng)["k"].throttles == 1


def test_what_the_registry_refuses_is_no_keys_heat() -> None:
    tracker = Tracker()
    assert call(backoff(tracker), Refusing(Throttled("%log")), key="") == "answer"
    assert tracker.roll().listed(NO_KEYS, tracker.rng) == {}


def test_a_tables_own_limit_is_no_reason_for_more_buckets() -> None:
    tracker = Tracker()
    made = backoff(tracker)
    attempt = Refusing(Throttled("", "the table is over its limit"))
    call(made, attempt)
    assert tracker.roll().entries == {}
    assert made.table_refusal == "the table is over its limit"


def test_pauses_grow_and_differ() -> None:
    attempt = Refusing(*[Throttled("p")] * 8)
    call(backoff(first_s=0.1, longest_s=1.0), attempt)
    pauses = [b - a for a, b in zip(attempt.asked_s, attempt.asked_s[1:], strict=False)]
    for n, pause_s in enumerate(pauses, start=1):
        assert 0 <= pause_s <= min(0.1 * 2**n, 1.0)
    assert len(set(pauses)) == len(pauses)


def test_at_the_deadline_it_says_what_it_tried() -> None:
    attempt = Refusing(*[Throttled("conv#3")] * 1_000)
    with pytest.raises(Overloaded, match=r"tried \d+ times within 2 s.*'conv#3'") as raised:
        call(backoff(deadline_s=2.0), attempt)
    assert attempt.asked_s[-1] <= 2.0
    assert isinstance(raised.value.__cause__, Throttled)


def test_a_retry_without_an_answer_is_blamed_on_what_was_answered_before() -> None:
    refusing, hanging = Refusing(Unavailable("the clock is wrong")), Hanging()

    async def attempt() -> str:
        return await (hanging() if refusing.asked_s else refusing())

    with pytest.raises(Overloaded, match=r"tried 2 times .*not answered.*before: the clock is"):
        call(backoff(deadline_s=2.0), attempt)


def test_what_cannot_succeed_is_not_repeated() -> None:
    attempt = Refusing(Conflict("taken"))
    with pytest.raises(Conflict):
        call(backoff(), attempt)
    assert len(attempt.asked_s) == 1


@pytest.mark.parametrize(
    ("name", "value"), [("first_s", 0.0), ("longest_s", 0.0001), ("deadline_s", -1.0)]
)
def test_a_wrong_setting_is_named(name: str, value: float) -> None:
    with pytest.raises(InvalidSetting, match=name):
        Retries(**{name: value})


class Hanging:
    """Never answers; notes when it was asked."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []

    async def __call__(self) -> str:
        self.asked_s.append(asyncio.get_running_loop().time())
        await asyncio.Event().wait()
        return "never"


def test_an_attempt_that_hangs_is_cut_at_the_deadline() -> None:
    async def scenario() -> None:
        made, hanging = backoff(deadline_s=2.0), Hanging()
        with pytest.raises(
            Overloaded, match=r"tried once within 2 s: .*raise deadline_s"
        ) as raised:
            await made.call(hanging, "k", made.deadline_s())
        assert asyncio.get_running_loop().time() == pytest.approx(2.0, abs=0.01)
        assert type(raised.value.__cause__) is Unavailable
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run_on_virtual_time(scenario())


def test_the_steps_of_a_call_share_its_deadline() -> None:
    async def scenario() -> None:
        made = backoff(deadline_s=2.0)
        deadline_s = made.deadline_s()
        await asyncio.sleep(1.5)
        with pytest.raises(Overloaded):
            await made.call(Hanging(), "k", deadline_s)
        assert asyncio.get_running_loop().time() == pytest.approx(2.0, abs=0.01)

    run_on_virtual_time(scenario())


def test_attempts_with_different_deadlines_are_each_cut_at_their_own() -> None:
    async def scenario() -> None:
        made = backoff(deadline_s=2.0)

        async def ended_s(start_s: float) -> float:
            await asyncio.sleep(start_s)
            with pytest.raises(Overloaded):
                await made.call(Hanging(), "k", made.deadline_s())
            return asyncio.get_running_loop().time()

        starts_s = [0.0, 0.7, 0.71, 1.9, 5.0]
        ends_s = await asyncio.gather(*map(ended_s, starts_s))
        assert ends_s == pytest.approx([start_s + 2 for start_s in starts_s], abs=0.01)

    run_on_virtual_time(scenario())


def test_a_late_attempt_of_an_older_call_is_cut_at_that_calls_deadline() -> None:
    async def scenario() -> None:
        made = backoff(deadline_s=2.0)
        older_s = made.deadline_s()
        await asyncio.sleep(1.0)
        newer = asyncio.ensure_future(made.call(Hanging(), "k", made.deadline_s()))
        await asyncio.sleep(0.5)
        with pytest.raises(Overloaded):
            await made.call(Hanging(), "k", older_s)
        assert asyncio.get_running_loop().time() == pytest.approx(2.0, abs=0.01)
        with pytest.raises(Overloaded):
            await newer
        assert asyncio.get_running_loop().time() == pytest.approx(3.0, abs=0.01)

    run_on_virtual_time(scenario())


def test_who_cancels_a_call_is_not_told_that_the_store_is_late() -> None:
    async def scenario() -> None:
        made = backoff(deadline_s=2.0)
        calling = asyncio.ensure_future(made.call(Hanging(), "k", made.deadline_s()))
        asyncio.get_running_loop().call_at(2.0, calling.cancel)
        with pytest.raises(asyncio.CancelledError):
            await calling

    run_on_virtual_time(scenario())


def test_bulk_work_is_not_cut() -> None:
    async def erase() -> str:
        await asyncio.sleep(60)
        return "answer"

    assert run_on_virtual_time(backoff(deadline_s=2.0).persist(erase, "k")) == "answer"


def test_without_a_deadline_there_is_one_attempt_and_it_is_not_cut() -> None:
    async def slow() -> str:
        await asyncio.sleep(60)
        return "answer"

    assert call(backoff(deadline_s=0.0), slow) == "answer"
    attempt = Refusing(Throttled("k"))
    with pytest.raises(Overloaded, match="tried once"):
        call(backoff(deadline_s=0.0), attempt)
