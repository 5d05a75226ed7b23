"""The client for code without asyncio: calls run on a background event loop, callers wait."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import wraps
from threading import Thread
from typing import Any

from heatsink.errors import Closed
from heatsink.primitives.owner import FORKED
from heatsink.reads.blocking import BlockingReads

from .connect import connect
from .heatsink import Heatsink

CLOSED = "this client is closed: use it inside `with heatsink.connect_sync(…)`"


class BlockingHeatsink:
    """The calls of `Heatsink` for any thread, without `await`.

    Made by `connect_sync`; outside `with` every call raises `Closed`::

        with heatsink.connect_sync("sqlite:///chat.db") as hs:
            hs.log.append("conv_1", b"hello")
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._client = connect(url, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._reads: BlockingReads | None = None

    def __enter__(self) -> BlockingHeatsink:
        if self._thread is not None:
            raise Closed("a client can be opened once only: call heatsink.connect_sync() again")
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._thread = Thread(target=loop.run_forever, name="heatsink-loop", daemon=True)
        self._thread.start()
        try:
            self._wait(self._client.__aenter__)
        except BaseException:
            self._stop()
            raise
        self._reads = self._wait(self._client._reading().blocking, loop.call_soon_threadsafe)
        return self

    @property
    def reads(self) -> BlockingReads:
        """A coalescing cache in front of your loads, which are plain functions here."""
        self._client._owner.check_process()
        if self._loop is None or self._reads is None:
            raise Closed(CLOSED)
        return self._reads

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client; calls that other threads are waiting for end with `Closed`."""
        if self._loop is not None and not self._client._owner.is_forked:
            try:
                self._wait(self._client.close)
            finally:
                self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def _wait(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """Call a function on the loop, await its result if it is awaitable, and return it."""
        future = self._submit(_called(function, arguments, named))
        try:
            return future.result()
        except CancelledError:
            raise Closed.meanwhile("the client") from None

    def _submit(self, work: Any) -> Future[Any]:
        loop = self._loop
        if self._client._owner.is_forked:
            work.close()
            raise Closed(FORKED)
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                return asyncio.run_coroutine_threadsafe(work, loop)
        work.close()
        raise Closed(CLOSED)

    def __getattr__(self, name: str) -> Any:
        return getattr(_Blocking(self, self._client), name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(Heatsink)})


async def _called(function: Any, arguments: Any, named: Any) -> Any:
    result = function(*arguments, **named)
    return await result if inspect.isawaitable(result) else result


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class _Blocking:
    """Wraps a part of the client: its calls block, and `async with` becomes `with`."""

    def __init__(self, owner: BlockingHeatsink, part: Any) -> None:
        self._owner = owner
        self._part = part

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            found = getattr(self._part, name)
        except Closed:
            self._owner._client._owner.check_process()
            raise Closed(CLOSED) from None  # the part's own message is for `async with`
        return self._waiting(found) if callable(found) else _Blocking(self._owner, found)

    def _waiting(self, function: Any) -> Any:
        @wraps(function)
        def wait(*arguments: Any, **named: Any) -> Any:
            result = self._owner._wait(function, *arguments, **named)
            return _Blocking(self._owner, result) if hasattr(result, "__aenter__") else result

        return wait

    def __enter__(self) -> _Blocking:
        self._owner._wait(self._part.__aenter__)
        return self

    def __exit__(self, *details: object) -> None:
        if self._owner._client._owner.is_forked:
            return  # it is the parent's, which closes it
        self._owner._wait(self._part.__aexit__, *details)


def connect_sync(url: str, **options: Any) -> BlockingHeatsink:
    """A client without asyncio, for any number of threads.

    Arguments and errors are those of `connect`::

        with heatsink.connect_sync("sqlite:///chat.db") as hs:
            hs.log.append("conv_1", b"hello")
    """
    return BlockingHeatsink(url, **options)
