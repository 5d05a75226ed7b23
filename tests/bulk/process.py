"""Processes that can be killed: all tasks that a process starts, however deep, end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any

from heatsink.bulk.plan import QueuePlan
from heatsink.bulk.reconcile import routed
from heatsink.bulk.store import QueueStores
from heatsink.stores.memory.queue import FIRST, MemoryQueueServer
from heatsink.testing import Faults, Link, SkewedClock, linked_queue

_process: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """A clock and a link of its own. After `kill` it does nothing any more."""

    def __init__(self, name: str, rng: Random, latency_s: tuple[float, float]) -> None:
        self.name = name
        self.rng = rng
        self.clock = SkewedClock()
        self.faults = Faults(latency_s=latency_s)
        self.link = Link(self.clock, self.faults, rng)
        self.is_dead = False
        self.has_stalled = False
        self.tasks: dict[asyncio.Task[Any], None] = {}  # in order, so that a seed replays

    def stall(self, seconds: float) -> None:
        """Stand still, as a stopped process does."""
        self.has_stalled = True
        self.clock.stall(seconds)

    def stores(self, server: MemoryQueueServer, first: QueuePlan = FIRST) -> QueueStores:
        """Calls travel over the link to the place that this process's plan has at that moment."""
        return routed(linked_queue(server.unrouted(self.clock), self.link), first)

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        asyncio.get_running_loop().set_task_factory(_owned_task)  # type: ignore[arg-type]
        context = copy_context()
        context.run(_process.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def kill(self) -> None:
        """No farewell, nothing flushed. What was sent still lands."""
        self.is_dead = True
        self.faults.cut = True
        for task in list(self.tasks):
            if task not in self.link.landings:
                task.cancel()


def _owned_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    context = options.get("context")
    process = context.run(_process.get) if context is not None else _process.get()
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(process.tasks.pop)
    return task
