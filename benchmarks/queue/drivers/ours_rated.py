"""Heatsink where each group is a tenant with a rate of its own; notes in Redis when items start."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from ours import SETTINGS
from redis.asyncio import Redis
from stopwatch import URL, main

from heatsink.bulk import Actions
from heatsink.client.queue import connect_queue

queue = connect_queue(URL, SETTINGS)
redis = Redis.from_url(URL)
actions = Actions()


@actions.action("item")
async def item(group: int, _: Any) -> None:
    await redis.rpush(f"starts-{group}", perf_counter())


async def enqueue(group: int, size: int, per_s: int) -> None:
    rate = f"{per_s}/s" if per_s else None
    await queue.bulk.submit("item", [group] * size, tenant=f"tenant-{group}", rate=rate)


async def work() -> None:
    await queue.worker(actions).run()


if __name__ == "__main__":
    main(enqueue, work)
