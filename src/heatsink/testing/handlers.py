"""Runs an application's handlers in its tests, without a server and without waiting.

The batch runs on a queue in memory and on virtual time, so that retries with long pauses take no
real time. Handlers that are plain functions run in the caller's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from heatsink.bulk.actions import Action, Actions, Context, Once, no_store
from heatsink.bulk.batch import Failure, Progress
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.work.consumer import Consumer, ConsumerSettings
from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import check_kind, shown
from heatsink.stores.memory.queue import MemoryQueueServer

from .clocks import BEGINNING_S, SkewedClock, run_on_virtual_time

STUCK_S = 90 * 86_400.0  # of virtual time


@dataclass(frozen=True)
class Ran:
    """What became of a batch: its counts, and the items that failed permanently."""

    progress: Progress
    failures: list[Failure]


def context(
    *,
    action: str = "test",
    tenant: str = "default",
    batch: str = "test",
    index: int = 0,
    attempt: int = 1,
    state: Any = None,
    once: Once = no_store,
) -> Context:
    """Return a context with which a test can call a handler directly.

    Example::

        await tag({"id": 1}, heatsink.testing.context(attempt=3))
    """
    return Context(batch, tenant, action, int(BEGINNING_S * 1000), index, attempt, once, state)


def run(
    actions: Actions,
    items: Iterable[Any],
    *,
    action: str = "",
    tenant: str = "default",
    workers: int = 8,
    seed: int = 1,
) -> Ran:
    """Run a batch of items with an application's handlers, lifespan and middleware, to its end.

    `action` may be left out if `actions` has one action only. All calls of a handler happen in this
    thread and on virtual time: `asyncio.sleep(3600)` returns immediately. Handlers must not use
    sockets. Raises `InvalidSetting` for an unknown action. Errors of the lifespan are raised, too::

        ran = heatsink.testing.run(actions, [{"id": 1}, {"id": -1}], action="tag")
        assert ran.progress.done == 1
        assert ran.failures[0].reason == "no such conversation"
    """
    check_kind("actions", actions, Actions)
    name = _chosen(actions, action)
    return run_on_virtual_time(_run(actions, name, items, tenant, workers, seed))


def _chosen(actions: Actions, action: str) -> str:
    if not action and len(actions) == 1:
        return next(iter(actions))
    if actions.get(action) is None:
        if not actions:
            raise InvalidSetting("actions has no action: register one", field="actions")
        known = ", ".join(actions)
        raise InvalidSetting(f"action must be one of {known}, not {shown(action)}", field="action")
    return action


async def _run(
    actions: Actions, action: str, items: Iterable[Any], tenant: str, workers: int, seed: int
) -> Ran:
    clock, stores = SkewedClock(), MemoryQueueServer(SkewedClock()).stores()
    bulk = Bulk(stores, BulkSettings(partitions=1), clock, Random(seed))
    settings = ConsumerSettings(workers=workers, workers_max=workers)
    table = actions.wrapped(_in_this_thread)
    consumer = Consumer(stores, bulk, table, settings, "test", clock, Random(seed + 1))
    running = asyncio.ensure_future(consumer.run())
    try:
        batch = await bulk.submit(action, items, tenant=tenant)
        ended = asyncio.ensure_future(bulk.wait(batch.id, STUCK_S))
        await asyncio.wait((running, ended), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            ended.cancel()
            await running  # raises the error of the lifespan
        return Ran(await ended, [failure async for failure in bulk.failures(batch.id)])
    finally:
        consumer.stop()
        await running


def _in_this_thread(action: Action) -> Action:
    if action.is_async:
        return action
    handler = action.handler

    async def call(items: Any, contexts: Any) -> Any:
        answer = handler(items, contexts)
        return await answer if asyncio.iscoroutine(answer) else answer

    return replace(action, handler=call, is_async=True)
