"""taskiq on a Redis stream, which acknowledges."""

from __future__ import annotations

import asyncio
from typing import Any

from stopwatch import URL, main, run_item
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

AT_ONCE = 100


def run(broker: Any, at_once: int) -> None:
    @broker.task(task_name="item")
    async def item(*payload: int) -> None:
        await run_item(*payload)

    async def enqueue(*order: int) -> None:
        for first in range(0, order[1], 100):
            calls = range(first, min(first + 100, order[1]))
            await asyncio.gather(*(item.kiq(*order) for _ in calls))

    async def one(*payload: int) -> None:
        await item.kiq(*payload)

    async def work() -> None:
        broker.is_worker_process = True
        await run_receiver_task(broker, max_async_tasks=at_once, run_startup=True)

    main(enqueue, work, one)


if __name__ == "__main__":
    run(RedisStreamBroker(URL, consumer_id="0"), AT_ONCE)
