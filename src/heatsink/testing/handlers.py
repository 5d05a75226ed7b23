"""Runs an application's handlers in its tests, without a server and without waiting.

The batch runs on a queue in memory and on virtual time, so that retries with long pauses take no
real time. Handlers that are plain functions run in the caller's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal, NamedTuple

from heatsink.bulk.actions import Action, Actions, Context, Once, no_store
from heatsink.bulk.batch import Failure, Progress, Result
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.settings import BulkSettings, ConsumerSettings
from heatsink.bulk.work.consumer import Consumer
from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import check_kind, shown
from heatsink.stores.memory.queue import MemoryQueueServer

from .clocks import BEGINNING_S, SkewedClock, run_on_virtual_time

STUCK_S = 90 * 86_400.0  # of virtual time


@dataclass(frozen=True)
class Ran:
    """What became of a batch: its counts, the items that failed permanently, and the results.

    There are only results if the batch ran with `results="keep"`.
    """

    progress: Progress
    failures: list[Failure]
    results: list[Result] = field(default_factory=list)


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
    results: Literal["keep"] | None = None,
) -> Ran:
    """Run a batch of items with an application's handlers, lifespan and middleware, to its end.

    `action` may be left out if `actions` has one action only. All calls of a handler happen in this
    thread and on virtual time: `asyncio.sleep(3600)` returns immediately. Handlers must not use
    sockets. With `results="keep"`, `ran.results` has what the handler returned. Raises
    `InvalidSetting` for an unknown action. Errors of the lifespan are raised, too::

        ran = heatsink.testing.run(actions, [{"id": 1}, {"id": -1}], action="tag")
        assert ran.progress.done == 1
        assert ran.failures[0].reason == "no such conversation"
    """
    check_kind("actions", actions, Actions)
    batch = _Wanted(_chosen(actions, action), items, tenant, results)
    return run_on_virtual_time(_run(actions, batch, workers, seed))


class _Wanted(NamedTuple):
    """What `run` submits."""

    action: str
    items: Iterable[Any]
    tenant: str
    results: Literal["keep"] | None


def _chosen(actions: Actions, action: str) -> str:
    if not action and len(actions) == 1:
        return next(iter(actions))
    if actions.get(action) is None:
        if not actions:
            raise InvalidSetting("actions has no action: register one", field="actions")
        known = ", ".join(actions)
        raise InvalidSetting(f"action must be one of {known}, not {shown(action)}", field="action")
    return action


async def _run(actions: Actions, wanted: _Wanted, workers: int, seed: int) -> Ran:
    clock, stores = SkewedClock(), MemoryQueueServer(SkewedClock()).stores()
    bulk = Bulk(stores, BulkSettings(partitions=1), clock, Random(seed))
    settings = ConsumerSettings(workers=workers, workers_max=workers)
    table = actions.wrapped(_in_this_thread)
    consumer = Consumer(stores, bulk, table, settings, "test", clock, Random(seed + 1))
    running = asyncio.ensure_future(consumer.run())
    try:
        keeps = wanted.results
        batch = await bulk.submit(wanted.action, wanted.items, tenant=wanted.tenant, results=keeps)
        ended = asyncio.ensure_future(bulk.wait(batch.id, STUCK_S))
        await asyncio.wait((running, ended), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            ended.cancel()
            await running  # raises the error of the lifespan
        progress = await ended
        failures = [failure async for failure in bulk.failures(batch.id)]
        results = [result async for result in bulk.results(batch.id)] if keeps else []
        return Ran(progress, failures, results)
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
