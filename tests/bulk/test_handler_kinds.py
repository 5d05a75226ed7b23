"""Handlers that are not literally `async def`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial, wraps
from random import Random
from typing import Any

import pytest

from heatsink.bulk import Actions, Bulk, BulkSettings, Context
from heatsink.bulk.batch import Progress
from heatsink.bulk.settings import ConsumerSettings
from heatsink.bulk.work.consumer import Consumer
from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import SystemClock
from heatsink.stores.memory.queue import MemoryQueueServer

ran: list[int] = []


async def runs(item: int, _: Context) -> None:
    await asyncio.sleep(0)
    ran.append(item)


@wraps(runs)
def wrapped(item: int, context: Context) -> Any:
    return runs(item, context)


class Called:
    async def __call__(self, item: int, context: Context) -> None:
        await runs(item, context)


def yields(_item: int, _: Context) -> Iterator[None]:
    yield None


async def yields_async(_item: int, _: Context) -> AsyncIterator[None]:
    yield None


class Yields:
    async def __call__(self, _item: int, _: Context) -> AsyncIterator[None]:
        yield None


async def run_all(handler: Any, count: int = 3, **options: Any) -> tuple[Progress, list[str]]:
    clock = SystemClock()
    server = MemoryQueueServer(clock)
    actions = Actions()
    actions.action("act", max_attempts=1, **options)(handler)
    bulk = Bulk(server.stores(), BulkSettings(partitions=1), clock, Random(1))
    settings = ConsumerSettings(workers=2)
    consumer = Consumer(server.stores(), bulk, actions, settings, "one", clock, Random(2))
    running = asyncio.ensure_future(consumer.run())
    batch = await bulk.submit("act", range(count))
    progress = await bulk.wait(batch.id, 10.0)
    reasons = [failure.reason async for failure in bulk.failures(batch.id)]
    consumer.stop()
    await running
    return progress, reasons


@pytest.mark.parametrize("handler", [wrapped, Called(), partial(runs), Called().__call__])
async def test_whatever_a_handler_returns_to_await_is_awaited(handler: Any) -> None:
    ran.clear()
    progress, _ = await run_all(handler)
    assert (progress.done, sorted(ran)) == (3, [0, 1, 2])


@pytest.mark.parametrize("handler", [yields, yields_async, Yields(), partial(yields)])
def test_a_generator_is_refused_as_a_handler(handler: Any) -> None:
    with pytest.raises(InvalidSetting, match="is a generator, whose code would never run"):
        Actions().action("act")(handler)


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("generator", [yields, yields_async])
async def test_a_generator_that_comes_back_is_an_error(generator: Any, together: int) -> None:
    def hidden(item: Any, context: Any) -> Any:
        return generator(item, context)

    progress, reasons = await run_all(hidden, together=together)
    assert progress.failed == 3
    assert set(reasons) == {"BadAnswer: the handler returned a generator, which never runs"}
