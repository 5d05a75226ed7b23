"""An event loop in a thread of its own, for callers that do not use asyncio.

Callers in any thread pass asynchronous calls to this loop and wait for their results.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, ParamSpec, TypeVar

from heatsink.errors import Closed, Misconfigured
from heatsink.primitives.clock import Clock
from heatsink.primitives.owner import Owner

P = ParamSpec("P")
T = TypeVar("T")
DRAW_ITEMS = 500
DRAW_S = 0.05
WAKE_UP_S = 0.5
WITHIN = (
    "this call would wait for itself: it was made in the client's own event loop. Make handlers "
    "and loads plain functions, which run in threads"
)
_END: Any = object()


class LoopThread:
    """Runs asynchronous calls for callers in other threads, who wait for the result.

    Before `begin` and after `end` every call raises `Closed` with the text `closed`. Every call
    also raises `Closed` in a forked child, because the thread runs only in the parent.
    """

    def __init__(self, closed: str, clock: Clock) -> None:
        self._closed = closed
        self._monotonic_s = clock.monotonic_s
        self._owner = Owner()
        self._running: tuple[asyncio.AbstractEventLoop, Thread] | None = None

    def begin(self, opening: Callable[[], Awaitable[object]]) -> None:
        """Start the thread, and await `opening()` in it. If `opening()` fails, end the thread."""
        loop = asyncio.new_event_loop()
        thread = Thread(target=loop.run_forever, name="heatsink-loop", daemon=True)
        thread.start()
        self._running = loop, thread
        try:
            self.run(self._owner.check)
            self.call(opening)
        except BaseException:
            self._stop(loop, thread)
            raise

    def end(self, closing: Callable[[], Awaitable[object]]) -> None:
        """Await `closing()`. Then cancel all calls that have not ended, and end the thread.

        If the thread does not run, or runs in the parent process, do nothing.
        """
        if self._running is None or self._owner.is_forked:
            return
        loop, thread = self._running
        try:
            self.call(closing)
        finally:
            self._stop(loop, thread)

    def _stop(self, loop: asyncio.AbstractEventLoop, thread: Thread) -> None:
        self._running = None
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    @property
    def is_forked(self) -> bool:
        return self._owner.is_forked

    def check(self) -> asyncio.AbstractEventLoop:
        """Return the event loop.

        Raises `Closed` if the loop does not run, or if this process was forked from the one in
        which it runs.
        """
        running = self._running
        if running is None or self._owner.is_forked:
            raise self._owner.closed(self._closed)
        return running[0]

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `function(…)` on the event loop, and return its result."""

        async def awaited() -> T:
            return await function(*args, **kwargs)

        return self._wait_for(self._submit(awaited()))

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function in the thread of the event loop, and return its result."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self._wait_for(self._submit(called()))

    def start(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Start `function(…)` on the event loop, and return a future for its result."""

        async def awaited() -> T:
            return await function(*args, **kwargs)

        return self._submit(awaited())

    def soon(self, function: Callable[[str], object], argument: str) -> None:
        """Call a plain function in the thread of the event loop, without waiting for it."""
        self.check().call_soon_threadsafe(function, argument)

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over an asynchronous iterator. Await each item when the caller asks for it."""

        async def following() -> T:
            return await anext(items, _END)

        try:
            while (item := self.call(following)) is not _END:
                yield item
        finally:
            if isinstance(items, AsyncGenerator) and self._running and not self.is_forked:
                self.call(items.aclose)

    def draw(
        self,
        call: Callable[[Iterable[Any] | AsyncIterable[Any]], Awaitable[T]],
        items: Iterable[Any] | AsyncIterable[Any],
    ) -> T:
        """Await `call(items)` on the event loop, but iterate over the items in the caller's thread.

        So the iterator may block, use a database connection of the caller's thread, or use this
        client.
        """
        if isinstance(items, list | tuple | str | bytes | dict) or not isinstance(items, Iterable):
            return self.call(call, items)
        drawn = _Drawn(self.check(), iter(items), self._monotonic_s)
        future = self.start(call, drawn)
        future.add_done_callback(lambda _: drawn.end())
        try:
            drawn.serve()
        except BaseException:  # such as KeyboardInterrupt
            future.cancel()
            raise
        return self.result(future)

    def result(self, future: Future[T]) -> T:
        """Wait for a call's result. Raises `Closed` if the client is closed before it arrives.

        A Ctrl-C just before the thread begins to wait does not end the wait. So the thread wakes up
        every `WAKE_UP_S`, which lets Python raise `KeyboardInterrupt`.
        """
        while True:
            try:
                return future.result(timeout=WAKE_UP_S)
            except CancelledError:
                raise Closed.meanwhile("the client") from None
            except TimeoutError:
                if future.done():  # the call itself raised it, or ended just now
                    return future.result()

    def _wait_for(self, future: Future[T]) -> T:
        try:
            return self.result(future)
        except BaseException:  # such as KeyboardInterrupt, while the call is running
            future.cancel()
            raise

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            loop = self.check()
            if asyncio._get_running_loop() is loop:
                raise Misconfigured(WITHIN)
            return asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:  # the loop was closed meanwhile
            work.close()
            raise Closed(self._closed) from None
        except BaseException:
            work.close()
            raise


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class _Drawn(Generic[T]):
    """Items of the caller, as an asynchronous iterator for a call on the event loop.

    When the call needs items, the caller's own thread, in `serve`, takes them from `items`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        items: Iterator[T],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._items = items
        self._monotonic_s = monotonic_s
        self._requests: SimpleQueue[asyncio.Future[list[T]] | None] = SimpleQueue()

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            request: asyncio.Future[list[T]] = self._loop.create_future()
            self._requests.put(request)
            items = await request
            if not items:
                return
            for item in items:
                yield item

    def serve(self) -> None:
        """Take items in this thread whenever the call asks for more, until `end` is called."""
        while (request := self._requests.get()) is not None:
            try:
                items = self._some()
            except Exception as error:
                self._answer(request.set_exception, request, error)
            else:
                self._answer(request.set_result, request, items)

    def end(self) -> None:
        self._requests.put(None)

    def _some(self) -> list[T]:
        """Take one item, and further items as long as they come quickly.

        Empty: there are no more.
        """
        until_s, items = self._monotonic_s() + DRAW_S, list[T]()
        for item in self._items:
            items.append(item)
            if len(items) >= DRAW_ITEMS or self._monotonic_s() > until_s:
                break
        return items

    def _answer(
        self, answer: Callable[[Any], None], request: asyncio.Future[Any], value: Any
    ) -> None:
        def unless_ended() -> None:
            if not request.done():
                answer(value)

        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(unless_ended)
