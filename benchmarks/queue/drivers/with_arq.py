"""arq: enqueues one by one, so a hundred at a time; looking every 10 ms it is at its best."""

from __future__ import annotations

import asyncio
from typing import Any

from arq import Worker, create_pool
from arq.connections import RedisSettings
from stopwatch import HOST, PORT, main, run_item

REDIS = RedisSettings(host=HOST, port=int(PORT))
pools: list[Any] = []


async def item(_: Any, *payload: int) -> None:
    await run_item(*payload)


async def enqueue(*order: int) -> None:
    pool = pools[0] if pools else await create_pool(REDIS)
    pools[:] = [pool]
    for first in range(0, order[1], 100):
        calls = range(first, min(first + 100, order[1]))
        await asyncio.gather(*(pool.enqueue_job("item", *order) for _ in calls))


async def one(*payload: int) -> None:
    if not pools:
        pools.append(await create_pool(REDIS))
    await pools[0].enqueue_job("item", *payload)


async def work() -> None:
    worker = Worker(
        [item], redis_settings=REDIS, max_jobs=100, poll_delay=0.01, handle_signals=False
    )
    await worker.async_run()


if __name__ == "__main__":
    main(enqueue, work, one)
