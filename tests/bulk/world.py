"""A queue in memory with its producers and consumers, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from random import Random
from typing import Any, ParamSpec

from heatsink.bulk import Actions, Bulk, BulkSettings, Context
from heatsink.bulk.settings import ConsumerSettings
from heatsink.bulk.work.consumer import Consumer
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import SkewedClock, run_on_virtual_time

from .process import Process

Parameters = ParamSpec("Parameters")
Handler = Callable[..., Awaitable[Any]]
LATENCY_S = (0.0002, 0.0004)


def on_virtual_time(
    test: Callable[Parameters, Coroutine[Any, Any, None]],
) -> Callable[Parameters, None]:
    @wraps(test)
    def run(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        run_on_virtual_time(test(*arguments, **named))

    return run


async def stubborn_sleep(seconds: float) -> None:
    """Sleep, and ignore cancellations, as a handler in a thread does."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while (left_s := until_s - loop.time()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(left_s)


class Running:
    """A consumer in a process of its own."""

    def __init__(self, process: Process, consumer: Consumer) -> None:
        self.process = process
        self.consumer = consumer
        self._task = process.run(consumer.run())

    async def stop(self) -> None:
        self.consumer.stop()
        await self._task

    def kill(self) -> None:
        self.process.kill()


class World:
    """One queue. `ran` has (batch, item, attempt) for each run of `note`, the simplest action."""

    def __init__(self, partitions: int = 4, **settings: Any) -> None:
        self.clock = SkewedClock()
        self.server = MemoryQueueServer(self.clock)
        self.partitions = partitions
        producer = self.process("producer")
        self.link_of_producer = producer.link
        self.bulk = self.bulk_of(producer, **settings)
        self.actions = Actions()
        self.actions.action("note", max_attempts=3)(self.note)
        self.ran: list[tuple[str, Any, int]] = []
        self.starts_s: list[float] = []

    async def note(self, item: Any, context: Context) -> None:
        self.starts_s.append(self.clock.monotonic_s())
        self.ran.append((context.batch, item, context.attempt))

    def action(self, **options: Any) -> Callable[[Handler], Handler]:
        """Like `actions.action`, under the function's own name."""

        def register(handler: Handler) -> Handler:
            self.actions.action(handler.__name__, **options)(handler)
            return handler

        return register

    def process(self, name: str) -> Process:
        return Process(name, Random(f"{name}"), LATENCY_S)

    def bulk_of(self, process: Process, **settings: Any) -> Bulk:
        chosen = BulkSettings(**{"partitions": self.partitions, **settings})
        return Bulk(process.stores(self.server), chosen, process.clock, process.rng)

    def start(self, name: str = "one", **settings: Any) -> Running:
        process, chosen = self.process(name), ConsumerSettings(**settings)
        bulk = self.bulk_of(process, partitioned=chosen.partitioned)
        return Running(
            process,
            Consumer(
                process.stores(self.server),
                bulk,
                self.actions,
                chosen,
                name,
                process.clock,
                process.rng,
            ),
        )

    @asynccontextmanager
    async def consumer(self, name: str = "one", **settings: Any) -> AsyncIterator[Consumer]:
        running = self.start(name, **settings)
        try:
            yield running.consumer
        finally:
            await running.stop()

    def items_run(self, id: str) -> list[Any]:
        return sorted(item for batch, item, _ in self.ran if batch == id)

    def staged(self) -> list[str]:
        """Parts that are neither released nor dropped."""
        partitions = self.server.queue.partitions.values()
        return [s.part.id for p in partitions for s in p.shares.values() if s.state == "staged"]
