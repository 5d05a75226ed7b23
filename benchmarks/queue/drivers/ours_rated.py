"""Heatsink where each group is a tenant with a rate of its own; notes in Redis when items start."""

from __future__ import annotations

import asyncio
from collections import defaultdict
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
starts: defaultdict[str, list[float]] = defaultdict(list)
NOTE_S = 0.2


@actions.action("item")
async def item(group: int, _: Any) -> None:
    starts[f"starts-{group}"].append(perf_counter())


async def note_starts() -> None:
    """All at once, so that noting does not keep starts from being on time."""
    while True:
        await asyncio.sleep(NOTE_S)
        for name in list(starts):
            await redis.rpush(name, *starts.pop(name))


async def enqueue(group: int, size: int, per_s: int) -> None:
    rate = f"{per_s}/s" if per_s else None
    await queue.bulk.submit("item", [group] * size, tenant=f"tenant-{group}", rate=rate)


async def work() -> None:
    noting = asyncio.ensure_future(note_starts())
    await queue.worker(actions).run()
    noting.cancel()


if __name__ == "__main__":
    main(enqueue, work)
