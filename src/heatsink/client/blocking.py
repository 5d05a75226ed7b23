"""The client for code without asyncio: calls run on a background event loop while callers wait."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Never, Unpack

from heatsink.bulk.actions import Actions
from heatsink.errors import Closed, InvalidInput
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.reads.blocking import BlockingReads

from . import blocking_calls
from .blocking_calls import (
    BlockingBulk,
    BlockingCounters,
    BlockingDeploymentSettings,
    BlockingLog,
    BlockingSchedules,
    BlockingTimelines,
)
from .connect import connect
from .heatsink import Heatsink
from .loop_thread import LoopThread
from .settings import ConnectOptions, WorkerOptions

logger = logging.getLogger("heatsink")
CLOSED = "this client is not open: use it inside `with heatsink.connect_sync(…)`"
NOT_ASYNC_WITH = (
    "this client needs `with`: write `with heatsink.connect_sync(…) as hs:`, or use "
    "`async with heatsink.connect(…) as hs:` in code with asyncio"
)


class BlockingConsumer(blocking_calls.BlockingConsumer):
    """Runs items of the queue, as `Consumer` does.

    `run` blocks until another thread, or a signal handler, calls `stop`::

        worker = hs.worker(actions, workers=16)
        worker.run()
    """

    def run(self) -> None:
        """Run items until `stop` is called, then give up the partitions and return.

        Handlers that are plain functions run in threads and may use this client. On Ctrl-C, `run`
        finishes or gives back the running items before it raises `KeyboardInterrupt`.
        """
        running = self._loop.start(self._part.run)
        try:
            self._loop.result(running)
        except KeyboardInterrupt:
            self.stop()
            self._loop.result(running)
            raise


class BlockingHeatsink(blocking_calls.BlockingCalls):
    """The calls of `Heatsink` for any thread, without `await`.

    Made by `connect_sync`; outside `with` every call raises `Closed`::

        with heatsink.connect_sync("sqlite:///chat.db") as hs:
            hs.log.append("conv_1", b"hello")
    """

    def __init__(self, client: Heatsink, clock: Clock) -> None:
        super().__init__(LoopThread(CLOSED, clock), client)
        self._is_entered = False
        self._reads: BlockingReads | None = None

    def __enter__(self) -> BlockingHeatsink:
        if self._is_entered:
            raise Closed("a client can be opened once only: call heatsink.connect_sync() again")
        self._is_entered = True
        self._loop.begin(self._part.__aenter__)
        self._reads = self._loop.run(self._part.parts.reading.blocking, self._loop.soon)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:  # type checkers report `async with` by themselves

        async def __aenter__(self) -> Never:
            raise InvalidInput(NOT_ASYNC_WITH)

        async def __aexit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """Close the client; calls that other threads are waiting for end with `Closed`.

        The end of `with` does this: `hs.close()`
        """
        self._loop.end(self._part.close)
        if self._reads is not None:
            self._reads.close()

    @property
    def log(self) -> BlockingLog:
        """Logs: conversations, feeds, audit trails: `hs.log.append("conv_1", b"hello")`"""
        self._loop.check()
        return BlockingLog(self._loop, self._part.log)

    @property
    def counters(self) -> BlockingCounters:
        """Counters for many concurrent writers: `hs.counters.add("video:42:views", 1)`"""
        self._loop.check()
        return BlockingCounters(self._loop, self._part.counters)

    @property
    def reads(self) -> BlockingReads:
        """A cache for hot reads. Simultaneous readers of a key share one call of your function.

        In this client your function is a plain function, not an `async def`:
        `hs.reads.get("product:7", load)`
        """
        self._loop.check()
        if self._reads is None:
            raise Closed(CLOSED)
        return self._reads

    @property
    def bulk(self) -> BlockingBulk:
        """Bulk actions; the first call opens the queue: `hs.bulk.submit("resize", items)`"""
        self._loop.check()
        return self._bulk

    @property
    def timelines(self) -> BlockingTimelines:
        """Follows, posts and home timelines: `hs.timelines.home("ada")`"""
        self._loop.check()
        return self._timelines

    @property
    def settings(self) -> BlockingDeploymentSettings:
        """The settings of the whole deployment, and the values in force in this process.

        `hs.settings.get("rules.buckets_max").value`
        """
        self._loop.check()
        return BlockingDeploymentSettings(self._loop, self._part.settings)

    @property
    def schedules(self) -> BlockingSchedules:
        """Schedules: batches that start by themselves at certain times.

        `hs.schedules.set("tidy", "delete-old", [{"days": 30}], every=3600)`
        """
        self._loop.check()
        return BlockingSchedules(self._loop, self._part.schedules)

    @cached_property
    def _bulk(self) -> BlockingBulk:
        return BlockingBulk(self._loop, self._loop.run(lambda: self._part.bulk))

    @cached_property
    def _timelines(self) -> BlockingTimelines:
        return BlockingTimelines(self._loop, self._loop.run(lambda: self._part.timelines))

    def worker(self, actions: Actions, **settings: Unpack[WorkerOptions]) -> BlockingConsumer:
        """Return a consumer, which runs bulk actions in this process.

        `settings` are the fields of `ConsumerSettings`. Raises `InvalidSetting` for a value that is
        not valid::

            hs.worker(actions, workers=16).run()
        """
        consumer = self._loop.run(lambda: self._part.worker(actions, **settings))
        return BlockingConsumer(self._loop, consumer)


def connect_sync(url: str, **options: Unpack[ConnectOptions]) -> BlockingHeatsink:
    """Return a client that any number of threads may use, without asyncio.

    Arguments and errors are those of `connect`::

        with heatsink.connect_sync("sqlite:///chat.db") as hs:
            hs.log.append("conv_1", b"hello")
    """
    with suppress(RuntimeError):  # no event loop runs here, as it should be
        asyncio.get_running_loop()
        logger.warning(
            "connect_sync was called inside an event loop, which every call of this client blocks: "
            "use `async with heatsink.connect(url)` there"
        )
    return BlockingHeatsink(connect(url, **options), options.get("clock") or SystemClock())
