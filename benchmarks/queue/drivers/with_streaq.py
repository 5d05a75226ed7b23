"""streaq: 32 at once, enqueued a thousand to a pipeline."""

from __future__ import annotations

from stopwatch import URL, main, run_item
from streaq import Worker

worker = Worker(redis_url=URL, concurrency=32, handle_signals=False)


@worker.task(name="item")
async def item(*payload: int) -> None:
    await run_item(*payload)


async def enqueue(*order: int) -> None:
    async with worker:
        for first in range(0, order[1], 1_000):
            calls = range(first, min(first + 1_000, order[1]))
            await worker.enqueue_many([item.enqueue(*order) for _ in calls])


async def work() -> None:
    await worker.run_async()


if __name__ == "__main__":
    main(enqueue, work)
