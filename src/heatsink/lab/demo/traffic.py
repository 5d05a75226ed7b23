"""The demo's traffic: how many calls per second at which moment, and the pacer that offers them."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import check_whole
from heatsink.primitives.clock import Clock

GROWTH = 1.2  # per second: how fast a viral conversation grows
PACE_S = 0.01
CATCH_UP_S_MAX = 0.5
PEAK = (100, 20_000)
LIMIT = (10, 20_000)
READS_A_WRITE = 3  # a DynamoDB partition serves 3,000 read and 1,000 write units per second
BRIEF = 4  # times as fast


class Leg(msgspec.Struct, frozen=True):
    """A stretch of traffic that goes from one rate to another by a constant factor per second."""

    name: str
    seconds: float
    from_rate: float
    to_rate: float

    def rate_at(self, second: float) -> float:
        factor = (self.to_rate / self.from_rate) ** (second / self.seconds)
        return self.from_rate * float(factor)


class Traffic(msgspec.Struct, frozen=True):
    """Legs, one after the other; `jump_s` is when the rate jumps, if it does."""

    legs: tuple[Leg, ...]
    jump_s: float | None = None

    @property
    def seconds(self) -> float:
        return sum(leg.seconds for leg in self.legs)

    def leg_at(self, second: float) -> tuple[Leg, float]:
        """The current leg and the seconds since it began; the last one goes on for ever."""
        for leg in self.legs[:-1]:
            if second < leg.seconds:
                return leg, second
            second -= leg.seconds
        return self.legs[-1], min(second, self.legs[-1].seconds)

    def rate_at(self, second: float) -> float:
        leg, into_s = self.leg_at(second)
        return leg.rate_at(into_s)

    def faster(self, times: float) -> Traffic:
        """The same traffic in less time."""
        replace = msgspec.structs.replace
        legs = tuple(replace(leg, seconds=leg.seconds / times) for leg in self.legs)
        return Traffic(legs, None if self.jump_s is None else self.jump_s / times)


def ramp(peak: float) -> Traffic:
    """From a quiet chat to the peak, 20 % more every second, then down to half a quiet chat."""
    quiet = peak / 20
    rising_s = ceil(log(peak / quiet) / log(GROWTH))
    return Traffic(
        (
            Leg("a quiet chat", 4, quiet, quiet),
            Leg("it goes viral", rising_s, quiet, peak),
            Leg("everybody writes", 10, peak, peak),
            Leg("interest fades", 6, peak, quiet / 2),
            Leg("calm again", 14, quiet / 2, quiet / 2),
        )
    )


def jump(peak: float) -> Traffic:
    """From a quiet chat to the peak at once, which no forecast can predict."""
    quiet = peak / 20
    before = Leg("a quiet chat", 6, quiet, quiet)
    return Traffic(
        (
            before,
            Leg("everybody at once", 14, peak, peak),
            Leg("interest fades", 4, peak, quiet / 2),
            Leg("calm again", 14, quiet / 2, quiet / 2),
        ),
        jump_s=before.seconds,
    )


SHAPES: dict[str, Callable[[float], Traffic]] = {"ramp": ramp, "jump": jump}


class TrafficPlan(msgspec.Struct, frozen=True):
    """One run: the shape of the first act's traffic, its peak, a partition's limit.

    A brief one, for tests and people in a hurry, has shorter acts with less traffic.
    """

    shape: str = "ramp"
    peak: int = 4_000
    limit: int = 1_000
    brief: bool = False

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise InvalidSetting(
                f"shape must be {' or '.join(SHAPES)}, not {self.shape[:40]!r}", field="shape"
            )
        check_whole("peak", self.peak, *PEAK)
        check_whole("limit", self.limit, *LIMIT)

    @property
    def speed(self) -> int:
        return BRIEF if self.brief else 1

    @property
    def traffic(self) -> Traffic:
        return SHAPES[self.shape](self.peak).faster(self.speed)

    @property
    def items(self) -> int:
        """The number of items of the large bulk action."""
        return 1_000_000 // self.speed

    @property
    def threshold(self) -> int:
        """The number of followers from which an author is pulled; 10,000 in production."""
        return 120 if self.brief else 800


class Pacer:
    """Offers calls when they are due, without waiting for earlier ones, as a crowd does.

    It catches up after a short stall, but skips longer ones, such as a sleep of the laptop.
    """

    def __init__(self, traffic: Traffic, clock: Clock) -> None:
        self._traffic = traffic
        self._clock = clock
        self._begun_s = clock.monotonic_s()

    @property
    def second(self) -> float:
        return self._clock.monotonic_s() - self._begun_s

    async def run(self, offer: Callable[[int], None]) -> None:
        self._begun_s = self._clock.monotonic_s()
        second, owed = 0.0, 0.0
        while second < self._traffic.seconds:
            await self._clock.sleep(PACE_S)
            rate, now = self._traffic.rate_at(second), self.second
            owed += rate * min(now - second, CATCH_UP_S_MAX)
            second = now
            offer(int(owed))
            owed -= int(owed)
