"""Runs the handlers of actions with `process=True` in processes of a pool.

The worker's own process claims, renews and settles the items. So a handler that computes for long
keeps no lease from being renewed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from inspect import isgeneratorfunction, unwrap
from typing import Any

from heatsink.bulk.actions import DAY_S, Action, Actions, Context, Fail
from heatsink.errors import InvalidSetting
from heatsink.primitives.processes import Job, NotPassed, ProcessPool, TookTooLong, name_of

from .handler_errors import TimedOut


def in_processes(actions: Actions, size: int | None) -> Actions:
    """Return the actions with a pool of processes, which the lifespan closes, if any needs one.

    The pool has `size` processes, or one for each CPU. Raises `InvalidSetting` if a handler is not
    what a process finds under its name.
    """
    needing = [action for name in actions if (action := actions.get(name)) and action.process]
    if not needing:
        return actions
    for action in needing:
        _check_name(action)
        for middleware in filter(_is_plain, action.middleware):
            name_of(f"a middleware of {action.name!r}, which has process=True,", middleware)
    modules = dict.fromkeys(name_of(each.name, each.handler).module for each in needing)
    pools: list[ProcessPool] = []

    @asynccontextmanager
    async def living() -> AsyncIterator[Any]:
        async with actions.living() as state:
            pools.append(ProcessPool(size or os.cpu_count() or 1, [*actions.imports, *modules]))
            try:
                yield state
            finally:
                await pools.pop().close()

    remote = actions.wrapped(lambda action: _remote(pools, action) if action.process else action)
    return replace(remote, lifespan=living)


def _check_name(action: Action) -> None:
    name = name_of(f"the handler of {action.name!r}", action.handler)
    try:
        found = name.find()
    except (ImportError, AttributeError):
        found = None
    if found is not action.handler:
        raise InvalidSetting(
            f"the handler of {action.name!r} must be what a process finds as {name.path} in "
            f"{name.module}: put @actions.action above all other decorators",
            field="process",
        )


def _is_plain(middleware: Any) -> bool:
    """Return whether the middleware is decorated with `@contextmanager`."""
    return isgeneratorfunction(unwrap(middleware))


def _remote(pools: list[ProcessPool], action: Action) -> Action:
    """Return the action with a handler that asks a process. A process enforces its own timeout."""
    function = name_of(action.name, action.handler)

    async def run(items: Any, contexts: Any) -> Any:
        together = action.together > 1
        passed = [*map(_passed, contexts)] if together else _passed(contexts)
        async with AsyncExitStack() as stack:
            around = []
            for middleware in action.middleware:
                manager = middleware(contexts)
                if isinstance(manager, AbstractAsyncContextManager):
                    await stack.enter_async_context(manager)
                else:
                    around.append(name_of("middleware of a process", middleware))
            job = Job(function, (items, passed), tuple(around))
            return await _asked(pools[-1], job, action.timeout_s)
        return None

    return replace(action, handler=run, is_async=True, middleware=(), timeout_s=DAY_S)


async def _asked(pool: ProcessPool, job: Job, timeout_s: float) -> Any:
    try:
        return await pool.run(job, timeout_s)
    except TookTooLong:
        late = f"the handler took longer than timeout_s={timeout_s:g}: its process was killed"
        raise TimedOut(late) from None
    except NotPassed as error:
        raise Fail(str(error)) from None


def _passed(context: Context) -> Context:
    """Return the context as a process gets it: without what only the worker's process has."""
    return Context(
        context.batch,
        context.tenant,
        context.action,
        context.submitted_ms,
        context.index,
        context.attempt,
        _no_once,
    )


async def _no_once(*_: object) -> None:
    raise InvalidSetting(
        "context.once() does not work in a process: return the result, and use `then`",
        field="context",
    )
