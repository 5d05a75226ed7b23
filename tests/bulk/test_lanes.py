"""Starts that were booked at a limit's home, far away."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from functools import partial
from itertools import chain
from math import floor
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from heatsink.bulk.batch import Rate, packed
from heatsink.bulk.store import LATE_MS, Grants, Slice
from heatsink.bulk.work.held import Held, Lanes
from heatsink.bulk.work.home_clock import HomeClock
from heatsink.primitives.clock import Clock
from heatsink.stores.memory.queue.homes import MemoryLimits
from heatsink.testing import ManualClock, SkewedClock, run_on_virtual_time
from tests.planted import usually

LANE, PER_S = "tag/channel-7", 30
LOOK_S = 0.001
RUN = 1


class SetLater(MemoryLimits):
    """Its clock is set forward after the first answer."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.asked: list[int] = []

    async def reserve(
        self, lane: str, starts: int, ahead_ms: int, late_ms: float = LATE_MS
    ) -> Grants:
        self.asked.append(starts)
        grants = await super().reserve(lane, starts, ahead_ms, late_ms)
        return replace(grants, now_ms=grants.now_ms + 60_000 * (len(self.asked) > 1))


class FarAway(MemoryLimits):
    """Answers take their time, now more, now less."""

    def __init__(self, clock: Clock, rng: Random, quickest_s: float, slowest_s: float) -> None:
        super().__init__(clock)
        self._delay = partial(rng.uniform, quickest_s / 2, slowest_s / 2)

    async def reserve(
        self, lane: str, starts: int, ahead_ms: int, late_ms: float = LATE_MS
    ) -> Grants:
        await asyncio.sleep(self._delay())
        grants = await super().reserve(lane, starts, ahead_ms, late_ms)
        await asyncio.sleep(self._delay())
        return grants


def held(count: int) -> Held:
    about = {"part": "p", "batch": "b", "tenant": "channel-7", "action": "tag", "lane": LANE}
    numbers = {"submitted_ms": 0, "start": 0, "count": count, "tries": 0}
    body = packed(0, [b"\x00"] * count)
    claimed = Held(Slice(attempt="a:0", limited=True, body=body, **about, **numbers))  # type: ignore[arg-type]
    claimed.unpack()
    return claimed


async def keep_booking(lanes: Lanes, clock: Clock) -> None:
    while True:
        await lanes.book(1_000, RUN)
        await clock.sleep(LOOK_S)


async def starts_of(lanes: Lanes, clock: Clock, how_many: int) -> list[float]:
    starts: list[float] = []
    lanes.put(held(how_many))
    booking = asyncio.ensure_future(keep_booking(lanes, clock))
    while len(starts) < how_many:
        await clock.sleep(LOOK_S)
        starts += [clock.monotonic_s()] * len(lanes.take(lambda _: 100))
    booking.cancel()
    return starts


def busiest_second(starts: list[float]) -> int:
    return max(bisect_left(starts, first + 1.0) - n for n, first in enumerate(starts))


def play(seed: int, quickest_s: float, slowest_s: float, how_many: int) -> list[float]:
    """Two processes that share a lane."""

    async def both() -> list[float]:
        clock = SkewedClock()
        limits = FarAway(clock, Random(seed), quickest_s, slowest_s)
        await limits.declare(LANE, Rate(PER_S))
        runs = (starts_of(Lanes(limits, clock), clock, how_many // 2) for _ in range(2))
        return sorted(chain(*await asyncio.gather(*runs)))

    return run_on_virtual_time(both())


@pytest.mark.parametrize("seed", range(usually(3, full=10)))
def test_slow_answers_do_not_bring_starts_closer_together(seed: int) -> None:
    assert busiest_second(play(seed, 0.0, 0.1, how_many=600)) <= PER_S


def test_a_home_that_is_always_far_away_is_no_hindrance() -> None:
    starts = play(1, 0.1, 0.11, how_many=600)
    assert busiest_second(starts) <= PER_S
    assert starts[-1] < 600 / PER_S * 1.4


async def test_a_home_whose_clock_is_set_is_believed() -> None:
    clock = HomeClock()
    clock.learn(home_s=1_000.0, asked_s=10.0, now_s=10.002)
    clock.learn(home_s=900.0, asked_s=11.0, now_s=11.002)
    assert clock.window(900.5) == pytest.approx((11.502, 11.519))


@given(st.floats(0.0, 1e6), st.lists(st.floats(5e-5, 0.002), min_size=2, max_size=50), st.data())
def test_a_home_that_tells_whole_milliseconds_never_contradicts_itself(
    ahead_s: float, trips_s: list[float], data: st.DataObject
) -> None:
    """Its answers may come within less than a millisecond."""
    clock, now_s = HomeClock(), 0.0
    for trip_s in trips_s:
        asked_s = now_s
        read_s = asked_s + trip_s * data.draw(st.floats(0.0, 1.0))
        now_s = asked_s + trip_s
        assert clock.learn(floor((read_s + ahead_s) * 1000) / 1000, asked_s, now_s)


async def test_starts_are_booked_again_if_the_homes_clock_was_set_meanwhile() -> None:
    """The first booking did not say that its starts may be later than before."""
    clock = ManualClock()
    limits = SetLater(clock)
    await limits.declare(LANE, Rate(PER_S))
    lanes = Lanes(limits, clock)
    lanes.put(held(1))
    await lanes.book(1, RUN)
    assert limits.asked == [0, 1, 1]
    assert len(lanes.take(lambda _: 1)) == 0
    await clock.advance(1.2 / PER_S)
    assert len(lanes.take(lambda _: 1)) == 1
