"""A slot's time whatever its server's clock and its callers' clocks do."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.primitives.slot_time import (
    BELIEVE_MS,
    STEP_MS,
    SlotEvidence,
    SlotTime,
    SlotWitness,
    moved_along,
    time_after,
)
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.stores.redis.queue.scripts import SlotClock
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisServer
from tests.planted import usually

from .conftest import redis_queue
from .driver import below
from .stepped import HOUR_S, ServerClock

HOUR_MS = HOUR_S * 1000
NOW_MS = 1_800_000_000_000.0
SLOT = "slot"
STEPS_S = st.sampled_from([-HOUR_S, -5.0, -0.5, 0.0, 0.0, 0.0, 5.0, 60.0, HOUR_S])
SKEWS_S = st.sampled_from([-HOUR_S, -3.0, 0.0, 0.0, 90.0, HOUR_S, 1e6])
WAITS_S = st.sampled_from([0.001, 0.1, 0.4, 1.0, 1.9, 3.0, 30.0, HOUR_S])
TURNS = st.lists(st.tuples(WAITS_S, STEPS_S, st.integers(0, 2), st.booleans()), max_size=40)


class Slot:
    """One slot, its server's clock, and three processes that call it."""

    def __init__(self, skews_s: list[float]) -> None:
        self.clock = ManualClock()
        self.server = ServerClock(self.clock)
        self.clocks = [ManualClock(self.clock.now_s() + skew_s) for skew_s in skews_s]
        self.witnesses = [SlotWitness(clock) for clock in self.clocks]
        self.time: SlotTime | None = None

    def pass_time(self, seconds: float) -> None:
        for clock in (self.clock, *self.clocks):
            asyncio.run(clock.advance(seconds))

    def call(self, process: int, restarted: bool = False) -> SlotTime:
        if restarted:
            self.witnesses[process] = SlotWitness(self.clocks[process])
        evidence = self.witnesses[process].evidence(SLOT)
        self.time = time_after(self.time, self.server.now_s() * 1000, evidence)
        self.witnesses[process].heard(SLOT, self.time.told_ms)
        return self.time


@given(st.lists(SKEWS_S, min_size=3, max_size=3), TURNS)
def test_it_never_runs_backwards_nor_further_than_the_servers_clock(
    skews_s: list[float], turns: list[tuple[float, float, int, bool]]
) -> None:
    slot = Slot(skews_s)
    before, said_ms = slot.call(0), 0.0
    for wait_s, step_s, process, restarted in turns:
        slot.pass_time(wait_s)
        slot.server.offset_s += step_s
        said_ms += max(wait_s + step_s, 0.0) * 1000
        after = slot.call(process, restarted)
        assert after.own_ms >= before.own_ms
        assert after.own_ms - NOW_MS <= said_ms + 1
        before = after


@given(st.lists(SKEWS_S, min_size=3, max_size=3), TURNS)
def test_where_somebody_is_in_contact_it_keeps_to_true_time(
    skews_s: list[float], turns: list[tuple[float, float, int, bool]]
) -> None:
    """However the clock is set: at most `STEP_MS` are gained by a step, and a wait lost by it."""
    slot = Slot(skews_s)
    slot.call(0)
    true_ms = may_gain_ms = may_lose_ms = 0.0
    for wait_s, step_s, process, restarted in turns:
        slot.pass_time(wait_s)
        slot.server.offset_s += step_s
        true_ms += wait_s * 1000
        if step_s > 0:
            may_gain_ms += STEP_MS
        if step_s:
            may_lose_ms += wait_s * 1000
        slot.call(0)
        own_ms = slot.call(process, restarted and process > 0).own_ms - NOW_MS
        assert true_ms - may_lose_ms - 1 <= own_ms <= true_ms + may_gain_ms + 1


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_a_step_costs_who_is_in_contact_less_than_the_time_between_two_calls(
    step_s: float,
) -> None:
    slot = Slot([0.0, 0.0, 0.0])
    slot.call(0)
    slot.pass_time(0.25)
    slot.server.offset_s += step_s
    slot.call(0)
    slot.pass_time(0.25)
    assert 250 <= slot.call(0).own_ms - NOW_MS <= 500


def test_a_doubt_ends_when_the_clock_goes_back() -> None:
    slot = Slot([0.0, 90.0, 0.0])
    slot.call(0)
    slot.server.offset_s = HOUR_S
    assert slot.call(1).gap_ms == HOUR_MS
    slot.pass_time(1.0)
    assert slot.call(1).gap_ms == HOUR_MS
    slot.server.offset_s = 0.0
    assert slot.call(1).gap_ms == 0
    for _ in range(20):
        slot.pass_time(1.0)
        slot.call(1)
    assert slot.call(1).own_ms - NOW_MS == pytest.approx(21_000)


def test_who_was_there_before_refuses_what_others_doubt() -> None:
    slot = Slot([0.0, 90.0, 0.0])
    slot.call(0)
    slot.server.offset_s = HOUR_S
    slot.call(1)
    slot.pass_time(9.0)
    slot.call(1)
    assert slot.call(0).gap_ms == 0
    assert slot.call(0).own_ms <= NOW_MS + 9_000


def test_calls_that_are_far_apart_by_processes_that_disagree_are_believed_too() -> None:
    slot = Slot([0.0, 0.0, 0.0])
    calls = 0
    slot.time = SlotTime(NOW_MS - HOUR_MS, NOW_MS - HOUR_MS, 0.0)
    while slot.call(0, restarted=True).gap_ms and calls < 100:
        slot.pass_time(60.0)
        calls += 1
    assert calls == BELIEVE_MS / STEP_MS
    assert slot.time.own_ms == NOW_MS + calls * 60_000


def test_a_caller_whose_call_lands_late_makes_the_slot_late_and_no_more() -> None:
    """It knows only of the time until it sent the call."""
    time = SlotTime(NOW_MS, NOW_MS, NOW_MS)
    late = time.passed(NOW_MS + 60_000, SlotEvidence(NOW_MS + 300, 1e9, NOW_MS + 300))
    assert late == SlotTime(NOW_MS + 60_000, NOW_MS, NOW_MS + 300)


def test_a_process_remembers_a_bounded_number_of_slots(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr("heatsink.primitives.slot_time.SLOTS_MAX", 2)
    witness = SlotWitness(clock)
    for slot in ("a", "b", "a", "c"):
        witness.heard(slot, NOW_MS)
    known = [slot for slot in "abc" if witness.evidence(slot).due_ms]
    assert known == ["a", "c"]


# -- the Lua -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(usually(6, full=20)))
async def test_lua_and_python_agree_on_the_time_whoever_calls(
    seed: int, server: RedisServer, clock: ManualClock
) -> None:
    """Processes with wrong clocks that come and go: the members of the fleet tell the time."""
    rng, of_server = Random(seed), ServerClock(clock)
    in_memory = MemoryQueueServer(of_server)
    skews_s = [rng.choice([-HOUR_S, -3.0, 0.0, 0.0, 90.0]) for _ in range(3)]
    clocks = [ManualClock(clock.now_s() + skew_s) for skew_s in skews_s]
    python = [in_memory.fleet.seen_by(SlotWitness(own)) for own in clocks]
    async with redis_queue(server.url, clocks[0], of_server) as lua:
        for number in range(120):
            for each in (clock, *clocks):
                await each.advance(rng.choice([0.0, 0.01, 0.4, 1.5, 2.5, 9.0, 700.0]))
            if rng.random() < 0.3:
                of_server.offset_s += rng.choice([-HOUR_S, -2.0, 1.0, 4.0, HOUR_S])
            process = rng.randrange(3)
            if rng.random() < 0.1:
                python[process] = in_memory.fleet.seen_by(SlotWitness(clocks[process]))
            known = python[process]._witness
            below(lua.fleet)._time = SlotClock(_Same(known), lambda: of_server.now_s() * 1000)
            words = f"member-{number}", ["mail"], rng.choice([10, 1_000, 5_000, 60_000])
            expected = await python[process].join(*words)
            assert await lua.fleet.join(*words) == expected


class _Same(SlotWitness):
    """Knows what another knew of the fleet before this call, whatever the slot's name is."""

    def __init__(self, known: SlotWitness) -> None:
        super().__init__(known._clock)
        self._evidence = known.evidence("fleet")

    def evidence(self, _slot: str) -> SlotEvidence:
        return self._evidence


def test_what_was_promised_in_a_doubt_moves_along_with_all_of_the_gap() -> None:
    """Also if the clock steps once more in the very call that ends the doubt."""
    hour_ms, stranger = 3_600_000.0, SlotEvidence(0.0, 0.0)
    time = SlotTime(0.0, 0.0, 0.0).passed(hour_ms, stranger)
    assert time.gap_ms
    now_ms = hour_ms
    while time.waited_ms < BELIEVE_MS - STEP_MS:
        now_ms += STEP_MS
        time = time.passed(now_ms, stranger)
    due_ms = time.own_ms + 500
    believed = time.passed(now_ms + hour_ms, stranger)
    assert not believed.gap_ms
    assert moved_along(due_ms, believed) - believed.own_ms == due_ms - time.own_ms
