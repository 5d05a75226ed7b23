"""Runs blocking functions of the application in threads of their own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple


class ThreadCall(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


Inbox = SimpleQueue[ThreadCall]
_idle: list[Inbox] = []


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a blocking function in a thread that does not belong to the event loop's executor.

    The executor has few threads. A function that never returns would occupy one of these threads
    for ever, and keep the process from exiting. Here each concurrent call has its own thread.
    Threads are reused. They are daemon threads, so they do not keep the process from exiting.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    _free_inbox().put(ThreadCall(function, arguments, contextvars.copy_context(), loop, answer))
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
        except BaseException as raised:  # passed on to the caller
            error = raised
        _idle.append(inbox)
        try:
            call.loop.call_soon_threadsafe(_deliver, call.answer, result, error)
        except RuntimeError:
            continue  # the loop ended before the handler


def _deliver(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if isinstance(error, StopIteration | GeneratorExit):  # refused by a future, or ends the awaiter
        error = BadEnd(f"a handler raised {error!r}")
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


class BadEnd(Exception):
    """A handler raised an exception that a future cannot carry."""
