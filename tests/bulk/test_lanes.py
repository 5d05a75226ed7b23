"""Starts that were booked at a limit's home, far away."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from functools import partial
from itertools import chain
from random import Random

import pytest

from heatsink.bulk.batch import Rate, packed
from heatsink.bulk.store import LATE_MS, Grants, Slice
from heatsink.bulk.work.held import Held, HomeClock, Lanes
from heatsink.primitives.clock import Clock
from heatsink.stores.memory.queue.homes import MemoryLimits
from heatsink.testing import SkewedClock, run_on_virtual_time
from tests.planted import usually

LANE, PER_S = "tag/channel-7", 30
LOOK_S = 0.001
RUN = 1


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
    assert clock.window(900.5) == pytest.approx((11.502, 11.52))
