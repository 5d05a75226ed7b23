"""Retries of what a store refused for now: exponential, with full jitter, until a deadline.

The deadline is that of the whole call, which passes it to each of its steps. An attempt that is
under way when it comes is cut: what was sent may still land, so its outcome is unknown, as after
any store that did not answer.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TypeVar

import msgspec

from heatsink.errors import Overloaded, Retryable, Throttled
from heatsink.heat.count import Tracker
from heatsink.primitives.checks import check_number
from heatsink.primitives.clock import Clock
from heatsink.primitives.cut import Cut
from heatsink.primitives.keys import key_of
from heatsink.registry.view import View

DOUBLINGS_MAX = 30
UNANSWERED = (
    "the store had not answered when time was up: check its health, the network and how many "
    "calls this process makes at once, or raise deadline_s"
)
Result = TypeVar("Result")


class Retries(msgspec.Struct, frozen=True):
    """How long to keep trying: exponential pauses with full jitter, until a deadline."""

    first_s: float = 0.02
    """Attempt n waits `first_s * 2**n` at most."""
    longest_s: float = 0.5
    """The longest pause."""
    deadline_s: float = 10.0
    """How long the whole call may take; an attempt under way is cut then.

    0 is one attempt, as long as the store lets it take, and none after it.
    """

    def __post_init__(self) -> None:
        check_number("longest_s", self.longest_s, 0.001, 3600)
        check_number("first_s", self.first_s, 0.0001, self.longest_s)
        check_number("deadline_s", self.deadline_s, 0, 86_400)


class Backoff:
    """Repeats an attempt with the same arguments. What was throttled is counted as heat."""

    def __init__(
        self, retries: Retries, clock: Clock, rng: Random, tracker: Tracker, view: View
    ) -> None:
        self.patience_s = retries.deadline_s
        self._retries = retries
        self._clock = clock
        self._rng = rng
        self._tracker = tracker
        self._view = view
        self._cut = Cut(clock, UNANSWERED)
        self.table_refusal: str | None = None  # the last, if any: buckets do not cure it

    def deadline_s(self) -> float:
        """When a call that starts now has to be given up, on the monotonic clock."""
        return self._clock.monotonic_s() + self.patience_s

    def outlasts(self, attempt_s: float) -> bool:
        """Whether a first attempt that takes so long ends before its call has to."""
        return attempt_s < self.patience_s

    async def call(
        self, attempt: Callable[[], Awaitable[Result]], key: str, deadline_s: float
    ) -> Result:
        """One step of a call that has to end at `deadline_s`, on the monotonic clock.

        Without a key, as for questions to the registry, a refusal is nobody's heat.
        """
        try:
            return await self._once(attempt, deadline_s)
        except Retryable as refusal:
            return await self.after(refusal, attempt, key, deadline_s)

    def cut(self, deadline_s: float) -> Cut:
        """For a first attempt that is made without `call`."""
        return self._cut(deadline_s if self.patience_s else math.inf)

    async def _once(self, attempt: Callable[[], Awaitable[Result]], deadline_s: float) -> Result:
        with self.cut(deadline_s):
            return await attempt()

    async def after(
        self,
        refusal: Retryable,
        attempt: Callable[[], Awaitable[Result]],
        key: str,
        deadline_s: float,
    ) -> Result:
        """Go on after a first attempt that was refused, until it succeeds or time is up."""
        again = partial(self._once, attempt, deadline_s)
        return await self._repeat(refusal, again, key, deadline_s)

    async def begin(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """For a process that starts: it may meet others' heat; what is wrong is told at once."""
        try:
            return await attempt()
        except Throttled as refusal:
            return await self.after(refusal, attempt, "", self.deadline_s())

    async def persist(self, attempt: Callable[[], Awaitable[Result]], key: str) -> Result:
        """For bulk work, which takes as long as it takes: only its repeats have a deadline."""
        try:
            return await attempt()
        except Retryable as refusal:
            return await self._repeat(refusal, attempt, key, self.deadline_s())

    async def _repeat(
        self,
        refusal: Retryable,
        attempt: Callable[[], Awaitable[Result]],
        key: str,
        deadline_s: float,
    ) -> Result:
        tried = 1
        while True:
            if isinstance(refusal, Throttled):
                self._note(key, refusal)
            await self._pause(tried, deadline_s, refusal)
            try:
                return await attempt()
            except Retryable as again:
                refusal = again
                tried += 1

    def _note(self, key: str, refusal: Throttled) -> None:
        if not refusal.is_cured_by_buckets:
            self.table_refusal = str(refusal)
        elif key and self._is_in_use(key, refusal.partition):
            self._tracker.record_throttle(key)

    def _is_in_use(self, key: str, partition: str) -> bool:
        """Rows of an older epoch crowd partitions that more buckets would not relieve."""
        return self._view.layout(key).epochs[-1].uses(key_of(partition)[1])

    async def _pause(self, tried: int, deadline_s: float, refusal: Retryable) -> None:
        grown_s = self._retries.first_s * 2 ** min(tried, DOUBLINGS_MAX)
        ceiling_s = min(grown_s, self._retries.longest_s)
        pause_s = self._rng.uniform(0, ceiling_s)
        if isinstance(refusal, Overloaded) or self._clock.monotonic_s() + pause_s > deadline_s:
            limit_s = self.patience_s
            times = "once" if tried == 1 else f"{tried} times"
            raise Overloaded(f"tried {times} within {limit_s:g} s: {refusal}") from refusal
        await self._clock.sleep(pause_s)
