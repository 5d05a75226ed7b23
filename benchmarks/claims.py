"""How fast one worker process drains a batch if the queue's Redis answers late, on virtual time.

The consumer is the production one, the queue is in memory, and each call to it takes a chosen time.
32 workers run items of 1 ms, so at most 32,000 items a second can end. The alternative claims a
fixed number of items ahead: the best of several sizes, found anew for each answer time. Nobody
knows the answer time beforehand, and a large size delays small batches: the last lines show how
long 20 items take behind a large batch of another tenant. Virtual time has no noise, so a case runs
once. A rate includes the first moments, about 0.3 s with answers after 20 ms, in which the process
learns its pace: a batch that ends within that time is slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from heatsink.bulk.actions import Context
from heatsink.bulk.work import pump
from heatsink.bulk.work.pump import Pump
from heatsink.lab.world import ACTION, WorkerFleet, world
from heatsink.stores.memory.queue.queue import MemoryQueue
from heatsink.testing import SkewedClock, run_on_virtual_time

from .harness import Bench, Scale, ratio_at_least

ANSWERS_MS = (0, 1, 5, 20)
SIZES = (32, 128, 512, 4_096)
WORKERS = 32
SERVICE_S = 0.001
SMALL = 20
WARM_S = 1.0


@contextmanager
def answering_after(answer_s: float) -> Iterator[None]:
    """Let every claim and every report of outcomes take `answer_s`."""

    def late(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def answer(*arguments: Any) -> Any:
            await asyncio.sleep(answer_s / 2)
            result = await call(*arguments)
            await asyncio.sleep(answer_s / 2)
            return result

        return answer

    with (
        patch.object(MemoryQueue, "claim", late(MemoryQueue.claim)),
        patch.object(MemoryQueue, "settle", late(MemoryQueue.settle)),
    ):
        yield


@contextmanager
def fixed(size: int | None) -> Iterator[None]:
    """Claim `size` items ahead, whatever the pace and the answer time; None is the real thing."""
    if size is None:
        yield
        return
    with patch.object(Pump, "_ahead", size), patch.object(pump, "CLAIM_MAX", max(SIZES)):
        yield


def drained(answer_s: float, items: int, size: int | None = None) -> float:
    """Items a second."""

    async def run() -> float:
        clock = SkewedClock()

        async def handle(_: Any, __: Context) -> None:
            await clock.sleep(SERVICE_S)

        async with world(WorkerFleet(workers=WORKERS), handle, clock) as lab:
            batch = await lab.bulk.submit(ACTION, range(items))
            began_s = lab.now_s()
            await lab.until_run(batch)
            return items / (lab.now_s() - began_s)

    with fixed(size), answering_after(answer_s):
        return run_on_virtual_time(run())


def small_batch(answer_s: float, items: int, size: int | None = None) -> float:
    """Seconds of 20 items behind a large batch of another tenant."""

    async def run() -> float:
        clock = SkewedClock()

        async def handle(_: Any, __: Context) -> None:
            await clock.sleep(SERVICE_S)

        async with world(WorkerFleet(workers=WORKERS), handle, clock) as lab:
            await lab.bulk.submit(ACTION, range(items), tenant="large")
            await clock.sleep(WARM_S / 2)
            began_s = lab.now_s()
            batch = await lab.bulk.submit(ACTION, range(SMALL), tenant="small")
            await lab.until_run(batch)
            return lab.now_s() - began_s

    with fixed(size), answering_after(answer_s):
        return run_on_virtual_time(run())


async def run(bench: Bench, scale: Scale) -> None:
    """In threads: virtual time needs an event loop of its own."""
    items = scale(64_000, 128_000)
    for answer_ms in ANSWERS_MS:
        answer_s = answer_ms / 1_000
        rate = await asyncio.to_thread(drained, answer_s, items)
        rates = {size: await asyncio.to_thread(drained, answer_s, items, size) for size in SIZES}
        best = max(SIZES, key=rates.__getitem__)
        what = f"items drained, answers after {answer_ms} ms"
        other = f"fixed at {best:,}", [rates[best]]
        bench.add(what, "/s", [rate], ratio_at_least(0.9), other)
        small_s = await asyncio.to_thread(small_batch, answer_s, items)
        fixed_s = await asyncio.to_thread(small_batch, answer_s, items, best)
        what = f"{SMALL} items behind a large batch, answers after {answer_ms} ms"
        bench.add(what, "ms", [small_s], None, (f"fixed at {best:,}", [fixed_s]))
