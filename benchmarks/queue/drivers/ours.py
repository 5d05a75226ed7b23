"""Heatsink with its defaults: fairness, leases, retries, results once, heartbeats.

The benchmark's Redis keeps nothing on disk, so nobody can be promised that it does: `relaxed`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from stopwatch import URL, main, run_item

from heatsink.bulk import Actions
from heatsink.bulk.settings import BulkSettings
from heatsink.client.queue import connect_queue

SETTINGS = BulkSettings(durability="relaxed")
CALLERS = 64
actions = Actions()


@actions.action("item")
async def item(payload: list[int], _: Any) -> None:
    await run_item(*payload)


def run(settings: BulkSettings, together: int = 0, tenants: int = 0, **workers: int) -> None:
    """`together` items are submitted in a call, of as many `tenants`; all of one, if 0."""
    queue = connect_queue(URL, settings)

    async def enqueue(group: int, size: int, pause_ms: int) -> None:
        count = together or size
        calls = iter(range(0, size, count))

        async def submit_each() -> None:
            for first in calls:
                items = [[group, size, pause_ms]] * min(count, size - first)
                number = first // count % tenants if tenants else group
                await queue.bulk.submit("item", items, tenant=f"tenant-{number}")

        await asyncio.gather(*(submit_each() for _ in range(CALLERS)))

    async def work() -> None:
        await queue.worker(actions, **workers).run()

    main(enqueue, work)


if __name__ == "__main__":
    run(SETTINGS)
