"""Threads for handlers that block: as many as there are workers, and none that can hold us up.

The event loop's own threads are few, and a handler that never returns would keep one for ever, and
the process from ending. These grow with the calls at a time, are used again, and are daemons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple


class Call(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    context: Context
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


Inbox = SimpleQueue[Call]
_idle: list[Inbox] = []


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    _free_inbox().put(Call(function, arguments, copy_context(), loop, answer))
    return await answer


def _free_inbox() -> Inbox:
    try:
        return _idle.pop()
    except IndexError:
        inbox: Inbox = SimpleQueue()
        Thread(target=_serve, args=(inbox,), name="heatsink-handler", daemon=True).start()
        return inbox


def _serve(inbox: Inbox) -> None:
    while True:
        call = inbox.get()
        result, error = None, None
        try:
            result = call.context.run(call.function, *call.arguments)
        except BaseException as raised:  # whatever it is belongs to the caller
            error = raised
        _idle.append(inbox)
        try:
            call.loop.call_soon_threadsafe(_deliver, call.answer, result, error)
        except RuntimeError:
            continue  # the loop ended before the handler


def _deliver(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if isinstance(error, StopIteration):  # which a future cannot carry
        error = BadEnd(f"a handler raised {error!r}")
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


class BadEnd(Exception):
    """A handler raised what may not leave a function."""
