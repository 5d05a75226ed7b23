"""A process that leads scales the queue's workers, and its metrics tell."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

import heatsink
from heatsink.bulk import Actions, BulkSettings
from heatsink.bulk.scaling.rules import WorkerRules
from heatsink.service.queue_metrics import QueueCollector, WorkCollector
from heatsink.testing import SkewedClock, run_on_virtual_time


async def play() -> tuple[dict[int, int], list[str], str]:
    clock, actions = SkewedClock(), Actions()

    @actions.action("slow")
    async def slow(_item: Any, _context: Any) -> None:
        await clock.sleep(0.4)

    async with heatsink.connect(
        "memory://",
        clock=clock,
        rng=Random(1),
        bulk=BulkSettings(partitions=1),
        workers=WorkerRules(workers_max=40, drain_s=10.0),
    ) as hs:
        worker = hs.worker(actions)
        running = asyncio.ensure_future(worker.run())
        await clock.sleep(2.0)
        await hs.bulk.submit("slow", range(5_000))
        await clock.sleep(60.0)
        watch = hs.queue_watch
        assert watch is not None
        registry = CollectorRegistry()
        registry.register(QueueCollector(lambda: watch.latest))
        registry.register(WorkCollector(worker))
        seen = worker.workers, [d.reason for d in watch.targets], generate_latest(registry).decode()
        worker.stop()
        await running
        return seen


def test_workers_grow_by_decision_and_metrics_say_so() -> None:
    workers, reasons, metrics = run_on_virtual_time(play())
    assert workers[0] > 8
    assert reasons
    assert all(reasons)
    assert f'heatsink_queue_workers{{partition="0"}} {workers[0]}.0' in metrics
    assert 'heatsink_queue_runnable{partition="0"}' in metrics
    assert 'heatsink_worker_items_total{action="slow",outcome="done",tenant="default"}' in metrics
    assert "heatsink_worker_fenced_total 0.0" in metrics
