"""What the drivers do before and around upstream calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from heatsink.door.drivers import FAILING_S, MOMENT_S, Thawing
from heatsink.errors import Unavailable
from heatsink.spread.backoff import Backoff
from heatsink.testing.clocks import ManualClock

PATIENCE_S = 10.0


class Store:
    """Stands for a registry and its retries: a failing call lasts until its deadline."""

    def __init__(self, clock: ManualClock) -> None:
        self.answers = True
        self._clock = clock

    def deadline_s(self) -> float:
        return self._clock.monotonic_s() + PATIENCE_S

    async def call(self, attempt: Callable[[], Awaitable[Any]], _: str, deadline_s: float) -> None:
        await attempt()
        if not self.answers:
            await self._clock.advance(deadline_s - self._clock.monotonic_s())
            raise Unavailable("no answer")


async def renew() -> None:
    pass


async def test_only_the_first_request_waits_long_for_a_registry_that_does_not_answer() -> None:
    clock = ManualClock(0)
    store = Store(clock)
    thawing = Thawing(renew, cast("Backoff", store), clock)

    async def waited_s() -> float:
        began_s = clock.monotonic_s()
        with pytest.raises(Unavailable):
            await thawing.renew()
        return clock.monotonic_s() - began_s

    store.answers = False
    assert [await waited_s() for _ in range(3)] == [PATIENCE_S, MOMENT_S, MOMENT_S]
    store.answers = True
    await thawing.renew()
    store.answers = False
    assert await waited_s() == PATIENCE_S
    await clock.advance(FAILING_S)  # it may have stood still meanwhile
    assert await waited_s() == PATIENCE_S
