"""The same client for code without asyncio: one background loop, and calls that wait for it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from functools import wraps
from threading import Thread
from typing import Any

from heatsink.errors import Closed

from .connect import connect
from .heatsink import Heatsink


class BlockingHeatsink:
    """`with heatsink.connect_sync(url) as hs`: the surface of `Heatsink`, from any thread."""

    def __init__(self, url: str, **options: Any) -> None:
        self._client = connect(url, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def __enter__(self) -> BlockingHeatsink:
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._thread = Thread(target=loop.run_forever, name="heatsink-loop", daemon=True)
        self._thread.start()
        try:
            self._wait(self._client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._loop is not None:
            try:
                self._wait(self._client.close())
            finally:
                self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        assert self._thread is not None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        loop = self._loop
        if loop is None:
            work.close()
            raise Closed("this client is closed: use it inside `with heatsink.connect_sync(…)`")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except CancelledError:
            raise Closed("the client was closed during the call") from None

    def __getattr__(self, name: str) -> Any:
        return _Blocking(self, self._client).__getattr__(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(Heatsink)})


class _Blocking:
    """Any part of the client, with its coroutines made to wait."""

    def __init__(self, owner: BlockingHeatsink, part: Any) -> None:
        self._owner = owner
        self._part = part

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._part, name)
        if inspect.iscoroutinefunction(found):
            return self._waiting(found)
        return found if callable(found) else _Blocking(self._owner, found)

    def _waiting(self, function: Any) -> Any:
        @wraps(function)
        def wait(*arguments: Any, **named: Any) -> Any:
            return self._owner._wait(function(*arguments, **named))

        return wait


def connect_sync(url: str, **options: Any) -> BlockingHeatsink:
    """What `connect` is, blocking and safe from threads."""
    return BlockingHeatsink(url, **options)
