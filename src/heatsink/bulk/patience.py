"""Retries of calls to the queue while it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from heatsink.errors import Closed, Overloaded, Retryable, Unavailable
from heatsink.primitives.clock import Clock
from heatsink.primitives.owner import Owner

Result = TypeVar("Result")
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0
FIRST_S = 3.0  # for a queue that has never answered: its URL is probably wrong


class Opening:
    """Opens the queue once, when the first call needs it."""

    def __init__(self, open_queue: Callable[[], Awaitable[None]]) -> None:
        self._open = open_queue
        self._turn = asyncio.Lock()
        self.is_open = False

    async def __call__(self) -> None:
        async with self._turn:
            if not self.is_open:
                await self._open()
                self.is_open = True


class Patience:
    """Retries a call to the queue store until the deadline; all its calls may be repeated."""

    def __init__(self, deadline_s: float, clock: Clock, rng: Random, opening: Opening) -> None:
        self._deadline_s = deadline_s
        self._clock = clock
        self._rng = rng
        self._opening = opening
        self.is_closed = False
        self.owner = Owner()

    async def open(self) -> None:
        self.owner.check()
        try:
            await self._opening()
        except Retryable as error:
            raise Unavailable(_never_reached(error)) from error

    async def call(self, method: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        self.owner.check()
        began_s, pause_s = self._clock.monotonic_s(), PAUSE_S
        while not self.is_closed:
            try:
                if not self._opening.is_open:
                    await self._opening()
                return await method(*arguments)
            except Retryable as error:
                wait_s = pause_s * self._rng.uniform(0.5, 1.0)
                self._check_time(began_s, wait_s, error)
            await self._clock.sleep(wait_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
        raise Closed("the client of this queue was closed: use it inside `async with`")

    def _check_time(self, began_s: float, wait_s: float, error: Retryable) -> None:
        """Raise if a retry after `wait_s` would be too late; sooner if the queue never answered."""
        resumed_s = self._clock.monotonic_s() + wait_s - began_s
        if self._opening.is_open:
            if resumed_s > self._deadline_s:
                raise Overloaded(
                    f"the queue did not answer for {self._deadline_s:g} s ({error}): retry"
                ) from error
        elif resumed_s > min(FIRST_S, self._deadline_s):
            never = Overloaded(_never_reached(error))
            never.add_note("nothing was accepted")
            raise never from error


def _never_reached(error: Retryable) -> str:
    return f"the queue was never reached ({error}): check its URL, and that its server runs"
