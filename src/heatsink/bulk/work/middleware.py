"""Enters the middleware of an action around one run of its handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
)
from functools import partial
from typing import Any

from heatsink.bulk.actions import Action
from heatsink.primitives.checks import shown

from .handler_errors import BadAnswer

Call = Callable[[Action, Callable[..., Any], Any, Any], Awaitable[Any]]


async def call_inside(action: Action, call: Call, items: Any, contexts: Any) -> Any:
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
