"""What surrounds handlers: the lifespan of a worker, and middleware."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from random import Random
from typing import Any

import pytest

from heatsink.bulk import Actions, Bulk, BulkSettings, Context, Fail, Retry
from heatsink.bulk.settings import ConsumerSettings
from heatsink.bulk.work.consumer import Consumer
from heatsink.errors import Conflict, InvalidSetting
from heatsink.primitives.clock import SystemClock
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import context, run


def nothing(*_: Any) -> None:
    pass


def test_a_lifespan_is_open_while_handlers_run_and_they_share_what_it_yields() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[dict[str, str]]:
        events.append("opened")
        yield {"database": "db"}
        events.append("closed")

    actions = Actions(lifespan=lifespan)

    @actions.action("tag")
    async def tag(item: int, context: Context) -> None:
        events.append(f"{context.state['database']} {item}")

    run(actions, [1, 2], workers=1)
    assert events == ["opened", "db 1", "db 2", "closed"]


def test_a_plain_context_manager_is_a_lifespan_too() -> None:
    @contextmanager
    def lifespan() -> Iterator[str]:
        yield "ready"

    actions, got = Actions(lifespan=lifespan), []
    actions.action("tag")(lambda _, context: got.append(context.state))
    run(actions, [1])
    assert got == ["ready"]


def test_a_lifespan_that_fails_ends_the_worker_with_its_error() -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    actions = Actions(lifespan=lifespan)
    actions.action("tag")(nothing)
    with pytest.raises(OSError, match="no database"):
        run(actions, [1])


def test_middleware_surrounds_every_attempt_in_order() -> None:
    events: list[str] = []

    @contextmanager
    def outer(context: Context) -> Iterator[None]:
        events.append(f"outer {context.attempt}")
        yield
        events.append("outer ended")

    @asynccontextmanager
    async def inner(_: Context) -> AsyncIterator[None]:
        try:
            yield
        except KeyError:
            raise Retry(after=60.0) from None

    actions = Actions(middleware=[outer, inner])

    @actions.action("tag")
    async def tag(item: int, context: Context) -> None:
        if context.attempt == 1:
            raise KeyError(item)

    assert run(actions, [1]).progress.done == 1
    assert events == ["outer 1", "outer 2", "outer ended"]


def test_an_error_that_middleware_suppresses_leaves_the_item_done() -> None:
    actions = Actions(middleware=[lambda _: suppress(ValueError)])

    @actions.action("tag")
    async def tag(item: int, _: Context) -> None:
        raise ValueError(item)

    assert run(actions, [1]).progress.done == 1


async def test_plain_middleware_is_entered_in_the_thread_of_a_plain_handler() -> None:
    threads: list[str] = []

    @contextmanager
    def closing(_: Context) -> Iterator[None]:
        threads.append(threading.current_thread().name)
        yield
        threads.append(threading.current_thread().name)

    actions = Actions(middleware=[closing])
    actions.action("tag")(lambda *_: threads.append(threading.current_thread().name))
    clock = SystemClock()
    stores = MemoryQueueServer(clock).stores()
    bulk = Bulk(stores, BulkSettings(partitions=1), clock, Random(1))
    settings = ConsumerSettings(workers=1)
    consumer = Consumer(stores, bulk, actions, settings, "one", clock, Random(2))
    async with _running(consumer):
        batch = await bulk.submit("tag", [1])
        await bulk.wait(batch.id, 10.0)
    assert len(threads) == 3
    assert set(threads) == {"heatsink-handler"}


async def test_a_worker_runs_once() -> None:
    clock = SystemClock()
    stores = MemoryQueueServer(clock).stores()
    bulk = Bulk(stores, BulkSettings(partitions=1), clock, Random(1))
    consumer = Consumer(stores, bulk, Actions(), ConsumerSettings(), "one", clock, Random(2))
    async with _running(consumer):
        await asyncio.sleep(0)
        with pytest.raises(Conflict, match="make another one"):
            await consumer.run()
    with pytest.raises(Conflict, match="make another one"):
        await consumer.run()


@asynccontextmanager
async def _running(consumer: Consumer) -> AsyncIterator[None]:
    running = asyncio.ensure_future(consumer.run())
    try:
        yield
    finally:
        consumer.stop()
        await running


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({"lifespan": 5}, "lifespan", "must be a function"),
        ({"lifespan": lambda _: None}, "lifespan", "with no parameter"),
        ({"middleware": print}, "middleware", "must be a list of functions"),
        ({"middleware": [lambda: None]}, "middleware[0]", "with one parameter, the context"),
    ],
)
def test_a_wrong_lifespan_or_middleware_is_refused_at_once(
    options: Any, field: str, said: str
) -> None:
    with pytest.raises(InvalidSetting, match=said) as refused:
        Actions(**options)
    assert refused.value.field == field


def test_what_returns_no_context_manager_is_named() -> None:
    def broken(_: Any = None) -> Any:
        return 1

    actions = Actions(middleware=[broken])
    actions.action("tag", max_attempts=1)(nothing)
    (failure,) = run(actions, [1]).failures
    assert failure.reason == "BadAnswer: the middleware broken must return a context manager"
    actions = Actions(lifespan=broken)
    actions.action("tag")(nothing)
    with pytest.raises(InvalidSetting, match="lifespan must return a context manager, not 1"):
        run(actions, [1])


async def test_a_handler_can_be_called_directly_with_a_context_made_for_it() -> None:
    async def tag(item: int, context: Context) -> str:
        if context.attempt > 1:
            raise Fail("twice")
        return f"{context.tenant} {item} {context.state}"

    assert await tag(1, context(tenant="acme", state="db")) == "acme 1 db"
    with pytest.raises(Fail):
        await tag(1, context(attempt=2))


def test_a_test_of_handlers_names_a_wrong_action() -> None:
    actions = Actions()
    actions.action("tag")(nothing)
    with pytest.raises(InvalidSetting, match="action must be one of tag, not 'tagg'"):
        run(actions, [1], action="tagg")
