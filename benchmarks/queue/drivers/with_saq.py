"""SAQ: 32 at once, since that was its best."""

from __future__ import annotations

import asyncio
from typing import Any

from saq import Queue, Worker
from stopwatch import URL, main, run_item

queue = Queue.from_url(f"{URL}?max_connections=600")


async def item(_: Any, *, payload: list[int]) -> None:
    await run_item(*payload)


async def enqueue(*order: int) -> None:
    for first in range(0, order[1], 200):
        calls = range(first, min(first + 200, order[1]))
        await asyncio.gather(*(queue.enqueue("item", payload=list(order)) for _ in calls))


async def one(*payload: int) -> None:
    await queue.enqueue("item", payload=list(payload))


async def work() -> None:
    await Worker(queue, functions=[("item", item)], concurrency=32).start()


if __name__ == "__main__":
    main(enqueue, work, one)
