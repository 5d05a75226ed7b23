"""Calls that go on in spite of a queue that is away for a moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from heatsink.clock import Clock
from heatsink.errors import Overloaded, Retryable

Result = TypeVar("Result")
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0


class Patience:
    """Repeats a call of the queue store until it works or the time is up: they are all safe to."""

    def __init__(self, deadline_s: float, clock: Clock, rng: Random) -> None:
        self._deadline_s = deadline_s
        self._clock = clock
        self._rng = rng

    async def call(self, method: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        give_up_s = self._clock.monotonic_s() + self._deadline_s
        pause_s = PAUSE_S
        while True:
            try:
                return await method(*arguments)
            except Retryable as error:
                wait_s = pause_s * self._rng.uniform(0.5, 1.0)
                if self._clock.monotonic_s() + wait_s > give_up_s:
                    raise Overloaded(
                        f"the queue did not answer for {self._deadline_s:g} s ({error}): "
                        "submit again with the same id"
                    ) from error
            await self._clock.sleep(wait_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
