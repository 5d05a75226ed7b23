"""What a pool calls, beside a plain handler, and how many handlers may run at once.

A handler may take many items at once, may run inside the middleware of its action, or may run in a
worker outside this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
)
from functools import partial
from typing import Any, NamedTuple, Protocol

from heatsink.bulk.actions import Action
from heatsink.bulk.limits import Needs
from heatsink.bulk.store import Setback
from heatsink.primitives.checks import shown

from .handler_errors import BadAnswer
from .held import Held


class Done(NamedTuple):
    """The handler ran the item, and returned `value`."""

    value: Any


def outcomes_of(answer: Any, count: int, keeps: bool) -> list[Done | BaseException]:
    """Convert the return value of a handler that took `count` items into one outcome per item.

    The handler returns None if all items are done. Otherwise it returns a list, with an exception
    for each item that is not done. For items that are done, the list has None, or the result if the
    batch `keeps` results.
    """
    if answer is None:
        return [Done(None)] * count
    is_list = isinstance(answer, Iterable) and not isinstance(answer, str | bytes | dict)
    results = list(answer) if is_list else []
    is_right = keeps or all(r is None or isinstance(r, BaseException) for r in results)
    if len(results) != count or not is_right:
        word = "a result" if keeps else "None"
        wanted = f"a list with {word} or an exception for each of the {count} items"
        return [BadAnswer(f"the handler must return None, or {wanted}")] * count
    return [r if isinstance(r, BaseException) else Done(r) for r in results]


CallHandler = Callable[[Action, Callable[..., Any], Any, Any], Awaitable[Any]]


async def call_inside(action: Action, call: CallHandler, items: Any, contexts: Any) -> Any:
    """Call a handler, with `call`, inside the action's middleware.

    A plain context manager is entered where the handler runs: in the handler's thread, if it has
    one. Asynchronous context managers are entered on the event loop, around the plain ones. If a
    context manager suppresses an exception of the handler, the items are done.
    """
    handler, plain = action.handler, []
    async with AsyncExitStack() as stack:
        for middleware in action.middleware:
            manager = middleware(contexts)
            if isinstance(manager, AbstractAsyncContextManager):
                await stack.enter_async_context(manager)
            elif not isinstance(manager, AbstractContextManager):
                name = getattr(middleware, "__name__", shown(middleware))
                raise BadAnswer(f"the middleware {name} must return a context manager")
            elif action.is_async:
                stack.enter_context(manager)
            else:
                plain.append(manager)
        if plain:
            handler = partial(_run_inside, plain, action.handler)
        return await call(action, handler, items, contexts)
    return None


def _run_inside(
    managers: list[AbstractContextManager[Any]], handler: Callable[..., Any], *arguments: Any
) -> Any:
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        return handler(*arguments)
    return None


NotHandedOver = tuple[str, Setback]
"""The outcome of an item that could not be handed over: a mark, and the reason."""


class RemoteHandover(Protocol):
    """Hands items over to workers outside this process, which report the outcomes themselves."""

    def takes(self, action: str) -> bool:
        """Return whether these workers run the action, and not this process."""

    async def hand_over(
        self, partition: int, held: Held, needs: Needs, pace: float
    ) -> NotHandedOver | None:
        """Give the only item of a slice to a worker.

        Returns None if a worker took the item: the worker then reports the outcome. Returns the
        item's outcome if no worker took it. `needs` are the item's needs, and `pace` is how many
        items the partition starts a second.
        """


HandOver = Callable[[Held], Awaitable[NotHandedOver | None]]
"""Gives the only item of a slice to a worker elsewhere: see `RemoteHandover.hand_over`."""


class Room:
    """How many handlers may run at once in a process: its partitions share this number.

    Workers that wait for room get it in the order in which they came.
    """

    ahead = 1
    """How many items a partition may claim while there is no room: these wait their turn."""

    def __init__(self, size: int) -> None:
        self._places = asyncio.Semaphore(size)
        self.free = size
        self.watchers: set[Callable[[], None]] = set()
        """Called when there is room for items of other processes, and when there is none."""

    async def enter(self) -> None:
        await self._places.acquire()
        self.free -= 1

    def leave(self) -> None:
        self.free += 1
        self._places.release()
