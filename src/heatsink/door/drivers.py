"""Drivers, which make the upstream calls that the core asks for, and return the core's answer.

`BlockingDriver` is for code that blocks, `AsyncDriver` for asyncio. Both need a function that sends
one call and raises `WireError`, and access to the registry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol

from heatsink.errors import HeatsinkError, answer_of
from heatsink.primitives.clock import Clock
from heatsink.registry.layouts import Layout
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff
from heatsink.stores.dynamodb.wire.errors import EXCEEDED, SERVICE, EngineError

from .protocol import (
    BAD_REQUEST,
    OURS,
    Body,
    LayoutOf,
    Need,
    Reach,
    Renew,
    Steps,
    UpstreamCall,
    WireError,
    of_engine,
    refusal,
)

TOO_MANY = 429
JUST_NOW_S = 0.1
FAILING_S, MOMENT_S = 30.0, 1.0


class BlockingRegistry(Protocol):
    """The registry, for code that blocks. Each call waits for the store."""

    def reach(self, time_ms: int) -> None: ...

    def renew(self) -> None: ...

    def layout(self, label: str) -> Layout: ...

    def now_ms(self) -> int: ...


class BlockingDriver:
    """Drives operations in the caller's thread; parallel calls run in a pool of threads.

    `send` sends one call upstream and returns the body of the answer, or raises `WireError`.
    """

    def __init__(
        self, send: Callable[[UpstreamCall], Body], registry: BlockingRegistry, pool: Executor
    ) -> None:
        self._send = send
        self._registry = registry
        self._pool = pool

    def run(self, steps: Steps) -> Body:
        """Return the answer of an operation. Raises `WireError`."""
        try:
            needs = next(steps)
            while True:
                needs = steps.send(self._meet_all(needs))
        except StopIteration as end:
            return dict(end.value)

    def _meet_all(self, needs: list[Need]) -> list[Any]:
        others = [self._pool.submit(self._meet, need) for need in needs[1:]]
        first = self._meet(needs[0]) if needs else None
        return [first, *(other.result() for other in others)] if needs else []

    def _meet(self, need: Need) -> Any:
        try:
            if isinstance(need, UpstreamCall):
                return self._send(need)
            if isinstance(need, LayoutOf):
                return self._registry.layout(need.label)
            if isinstance(need, Renew):
                return self._registry.renew()
            check_ahead(need, self._registry.now_ms())
            return self._registry.reach(need.time_ms)
        except HeatsinkError as error:
            return of_heatsink(error)


class AsyncRegistry(Protocol):
    """The registry, for asyncio."""

    async def reach(self, time_ms: int) -> None: ...

    async def renew(self) -> None: ...

    async def layout(self, label: str) -> Layout: ...

    def now_ms(self) -> int: ...


class OwnRegistry:
    """The registry of a Heatsink client on the same event loop, with retries."""

    def __init__(self, registry: Registry, backoff: Backoff) -> None:
        self._registry = registry
        self._backoff = backoff
        self.now_ms = registry.now_ms

    async def reach(self, time_ms: int) -> None:
        deadline_s = self._backoff.deadline_s()
        reach = partial(self._registry.reach, time_ms, deadline_s)
        await self._backoff.call(reach, "", deadline_s)

    async def renew(self) -> None:
        """Read the registry now.

        Do not share a renewal that already runs: it may have read too early.
        """
        await self._backoff.call(self._registry.renew, "", self._backoff.deadline_s())

    async def layout(self, label: str) -> Layout:
        layout = partial(self._registry.layout, label)
        return await self._backoff.call(layout, label, self._backoff.deadline_s())


class AsyncDriver:
    """Drives operations on an event loop. `send` is as in `BlockingDriver`, but asynchronous."""

    def __init__(
        self, send: Callable[[UpstreamCall], Awaitable[Body]], registry: AsyncRegistry
    ) -> None:
        self._send = send
        self._registry = registry

    async def run(self, steps: Steps) -> Body:
        """Return the answer of an operation. Raises `WireError`."""
        try:
            needs = next(steps)
            while True:
                if len(needs) == 1:
                    answers = [await self._meet(needs[0])]
                else:
                    answers = await asyncio.gather(*map(self._meet, needs))
                needs = steps.send(answers)
        except StopIteration as end:
            return dict(end.value)

    async def _meet(self, need: Need) -> Any:
        try:
            if isinstance(need, UpstreamCall):
                return await self._send(need)
            if isinstance(need, LayoutOf):
                return await self._registry.layout(need.label)
            if isinstance(need, Renew):
                return await self._registry.renew()
            check_ahead(need, self._registry.now_ms())
            return await self._registry.reach(need.time_ms)
        except HeatsinkError as error:
            return of_heatsink(error)


def is_thawed(registry: Registry) -> bool:
    """Return whether this process stood still for so long that its view is out of date.

    While a process follows the registry, the horizon of its view is ahead of now. A frozen process,
    such as a Lambda function between two calls, does not follow the registry. If no process
    advances the closed time, even a view that was just renewed may be out of date. Then the
    function returns False, since another renewal is useless.
    """
    if registry.view.horizon_ms >= registry.now_ms():
        return False
    return not registry.is_current(JUST_NOW_S)


class Thawing:
    """Renews a view that is out of date, before a request uses it.

    If the registry did not answer the last time, a request waits only a moment for it. Otherwise
    each of the many retries of an SDK would wait until the deadline.
    """

    def __init__(self, renew: Callable[[], Awaitable[object]], backoff: Backoff, clock: Clock):
        self._renew = renew
        self._backoff = backoff
        self._clock = clock
        self._failed_s = float("-inf")

    async def renew(self) -> None:
        """Renew the view. Raises the error of the registry's store."""
        deadline_s, now_s = self._backoff.deadline_s(), self._clock.monotonic_s()
        if now_s < self._failed_s + FAILING_S:
            deadline_s = min(deadline_s, now_s + MOMENT_S)
        try:
            await self._backoff.call(self._renew, "", deadline_s)
        except HeatsinkError:
            self._failed_s = self._clock.monotonic_s()
            raise
        self._failed_s = float("-inf")


def check_ahead(need: Reach, now_ms: int) -> None:
    """Raise `WireError` if an item's time is so far ahead of now that waiting for it is useless."""
    ahead_ms = need.time_ms - now_ms
    if ahead_ms > need.ahead_ms:
        raise refusal(
            f"the time in the sort key is {ahead_ms / 1000:.1f} s ahead of now, more than the "
            f"{need.ahead_ms / 1000:g} s that the table's declaration allows: check the clock that "
            "made it, raise ahead_s, or declare the prefix unspread"
        )


def of_heatsink(error: HeatsinkError) -> WireError:
    """Return an error of Heatsink as an error response of DynamoDB.

    The table of all errors (`errors.ANSWERS`) says whether a retry may cure the error. SDKs retry a
    request after a status of 500 or above, and after the error for exceeded throughput, which has
    the status 400 in DynamoDB.
    """
    if isinstance(error, WireError):
        return error
    if isinstance(error, EngineError):
        return of_engine(error)
    answer = answer_of(error)
    if not answer.retryable:
        return refusal(str(error))
    if answer.status == TOO_MANY:
        return WireError(BAD_REQUEST, {"__type": EXCEEDED, "message": f"{OURS}{error}"})
    body = {"__type": SERVICE + "InternalServerError", "message": f"{OURS}{error}"}
    return WireError(answer.status, body)
