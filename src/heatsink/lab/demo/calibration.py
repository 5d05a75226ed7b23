"""Measures how much traffic this machine can offer.

The measurement makes the first act's calls for a second, as fast as possible. The acts then run at
a share of the lowest rate in this second, so that they take no longer on a slow or busy machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from heatsink.primitives.clock import Clock

from .acts.chat import PlainChat, SpreadChat
from .lanes import LaneMeter
from .traffic import LIMIT, PEAK, PEAK_DEFAULT, TrafficPlan
from .world import DemoWorld, open_world

MEASURED_S = 1.0
WINDOWS = 4  # of the measurement: the slowest counts, since other programs may take turns
CALLERS = 50
SHARE = 0.2  # of the measured rate: the rest is for retries, charts and other programs
KEY = "calibration"
UNLIMITED = TrafficPlan(peak=PEAK[1], limit=LIMIT[1])


Sized = Callable[[TrafficPlan, Clock, Random], Awaitable[TrafficPlan]]


def fixed(plan: TrafficPlan) -> Sized:
    """Return a function that always returns `plan`, for a user who has chosen the plan's size."""

    async def sized(_: TrafficPlan, __: Clock, ___: Random) -> TrafficPlan:
        return plan

    return sized


async def calibrated(plan: TrafficPlan, clock: Clock, rng: Random) -> TrafficPlan:
    """Return the plan with as much traffic as this machine can offer, at most the default."""
    async with open_world(UNLIMITED, clock, rng) as world:
        return fitted(plan, await _calls_s(world))


def fitted(plan: TrafficPlan, calls_s: float) -> TrafficPlan:
    """Return the plan for a machine that makes `calls_s` calls per second in each of two lanes."""
    peak = min(int(SHARE * calls_s) // 100 * 100, PEAK_DEFAULT)
    return plan.sized(peak, None)


async def _calls_s(world: DemoWorld) -> float:
    """Return the rate at which this machine calls both a plain store and Heatsink, side by side.

    No partition limit slows the calls down. The rate is that of the slowest of `WINDOWS` windows.
    """
    clock, meter = world.clock, LaneMeter(world.clock)
    async with world.plain(KEY, meter) as stores:
        plain = PlainChat(stores.log, KEY, meter, clock, world.rng)
        heatsink = SpreadChat(world.hs, KEY, meter)
        rates: list[float] = []
        for _ in range(WINDOWS):
            begun_s, calls = clock.monotonic_s(), 0

            async def call(until_s: float) -> None:
                nonlocal calls
                while clock.monotonic_s() < until_s:
                    await asyncio.gather(plain.call(b"message"), heatsink.call(b"message"))
                    calls += 1

            until_s = begun_s + MEASURED_S / WINDOWS
            await asyncio.gather(*(call(until_s) for _ in range(CALLERS)))
            rates.append(calls / (clock.monotonic_s() - begun_s))
        return min(rates)
