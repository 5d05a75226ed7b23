"""The demo's traffic: the rate of calls at each moment, and the pacer that offers the calls."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import check_number, check_whole
from heatsink.primitives.clock import Clock

GROWTH = 1.2  # per second: how fast a viral conversation grows
PACE_S = 0.01
CATCH_UP_S_MAX = 0.2
CATCH_UP = 1.25  # times the rate: how fast missed calls are made up for
BURST_S_MAX = 0.05
PEAK = (100, 20_000)
LIMIT = (10, 20_000)
PEAK_DEFAULT = 4_000  # at size 1
OVER_LIMIT = 4  # times a partition's limit: the default peak
SIZE = (0.01, 1.0)
READS_A_WRITE = 3  # a DynamoDB partition serves 3,000 read and 1,000 write units per second
BRIEF = 4  # times as fast


class Leg(msgspec.Struct, frozen=True):
    """A stretch of traffic whose rate changes from `from_rate` to `to_rate` calls per second.

    The rate changes by the same factor in every second.
    """

    name: str
    seconds: float
    from_rate: float
    to_rate: float

    @property
    def calls(self) -> float:
        """The number of calls in the whole leg."""
        growth = log(self.to_rate / self.from_rate)
        mean = (self.to_rate - self.from_rate) / growth if growth else self.from_rate
        return mean * self.seconds

    def rate_at(self, second: float) -> float:
        factor = (self.to_rate / self.from_rate) ** (second / self.seconds)
        return self.from_rate * float(factor)


class Traffic(msgspec.Struct, frozen=True):
    """The traffic of an act: legs (spans of time, each with its rate) in order.

    `jump_s` is the second at which the rate jumps, or None.
    """

    legs: tuple[Leg, ...]
    jump_s: float | None = None

    @property
    def seconds(self) -> float:
        return sum(leg.seconds for leg in self.legs)

    @property
    def calls(self) -> int:
        """The number of calls that are due in the whole run."""
        return round(sum(leg.calls for leg in self.legs))

    def leg_at(self, second: float) -> tuple[Leg, float]:
        """Return the leg that covers `second`, and how many seconds of this leg have passed.

        After the end of the traffic, this is the end of the last leg.
        """
        for leg in self.legs[:-1]:
            if second < leg.seconds:
                return leg, second
            second -= leg.seconds
        return self.legs[-1], min(second, self.legs[-1].seconds)

    def rate_at(self, second: float) -> float:
        leg, into_s = self.leg_at(second)
        return leg.rate_at(into_s)

    def faster(self, times: float) -> Traffic:
        """Return the same traffic at the same rates, in legs that are `times` times as short."""
        replace = msgspec.structs.replace
        legs = tuple(replace(leg, seconds=leg.seconds / times) for leg in self.legs)
        return Traffic(legs, None if self.jump_s is None else self.jump_s / times)


def ramp(peak: float) -> Traffic:
    """Return traffic that grows by 20 % a second, from a quiet chat to the peak, and calms down."""
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
    """Return traffic that jumps from a quiet chat to the peak at once.

    No forecast can predict such a jump.
    """
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
    """The plan of a run: the shape and peak of the first act's traffic, and a partition's limit.

    A `brief` run, for tests and people in a hurry, has shorter acts with less traffic. `size`
    scales the followers and items of the last two acts.
    """

    shape: str = "ramp"
    peak: int = PEAK_DEFAULT
    limit: int = PEAK_DEFAULT // OVER_LIMIT
    brief: bool = False
    size: float = 1.0

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise InvalidSetting(
                f"shape must be {' or '.join(SHAPES)}, not {self.shape[:40]!r}", field="shape"
            )
        check_whole("peak", self.peak, *PEAK)
        check_whole("limit", self.limit, *LIMIT)
        check_number("size", self.size, *SIZE)

    def sized(self, peak: int | None, limit: int | None) -> TrafficPlan:
        """Return the plan with this peak and limit.

        If only one of the two is given, the other is computed from it. If neither is given, the
        peak is the default.
        """
        if peak is None:
            peak = PEAK_DEFAULT if limit is None else OVER_LIMIT * limit
        peak = min(max(peak, PEAK[0]), PEAK[1])
        limit = max(peak // OVER_LIMIT, LIMIT[0]) if limit is None else limit
        size = min(max(peak / PEAK_DEFAULT, SIZE[0]), SIZE[1])
        return msgspec.structs.replace(self, peak=peak, limit=limit, size=size)

    def smaller(self) -> TrafficPlan | None:
        """Return the plan with half the traffic and half the limit.

        Returns None if that is too little traffic to show anything.
        """
        peak, limit = self.peak // 2, self.limit // 2
        if peak < PEAK[0] or limit < LIMIT[0]:
            return None
        size = max(self.size / 2, SIZE[0])
        return msgspec.structs.replace(self, peak=peak, limit=limit, size=size)

    @property
    def speed(self) -> int:
        return BRIEF if self.brief else 1

    @property
    def traffic(self) -> Traffic:
        return SHAPES[self.shape](self.peak).faster(self.speed)

    @property
    def items(self) -> int:
        """The number of items in the large batch of the last act."""
        return round(1_000_000 * self.size / self.speed)

    @property
    def threshold(self) -> int:
        """The number of followers from which posts are pulled. (Outside the demo it is 10,000.)"""
        return max(round((120 if self.brief else 800) * self.size), 10)


class Pacer:
    """Offers calls when they are due, without waiting for earlier calls, as a crowd does.

    After a stall, the pacer makes up for at most CATCH_UP_S_MAX seconds, and skips all other missed
    calls. So a busy machine offers fewer calls than are due. The pacer makes up for missed calls at
    CATCH_UP times the rate: a crowd does not send them all in one moment.
    """

    def __init__(self, traffic: Traffic, clock: Clock) -> None:
        self._traffic = traffic
        self._clock = clock
        self._begun_s = clock.monotonic_s()
        self.offered = 0

    @property
    def second(self) -> float:
        return self._clock.monotonic_s() - self._begun_s

    async def run(self, offer: Callable[[int], None]) -> None:
        self._begun_s = self._clock.monotonic_s()
        second, owed = 0.0, 0.0
        while second < self._traffic.seconds:
            await self._clock.sleep(PACE_S)
            rate, now = self._traffic.rate_at(second), self.second
            passed_s, second = now - second, now
            owed = min(owed + rate * passed_s, max(rate * CATCH_UP_S_MAX, 1.0))
            most = ceil(CATCH_UP * rate * min(passed_s, BURST_S_MAX))
            calls = int(min(owed, most))
            offer(calls)
            self.offered += calls
            owed -= calls
