"""Heatsink with its defaults: fairness, leases, retries, results once, heartbeats.

The benchmark's Redis keeps nothing on disk, so nobody can be promised that it does: `relaxed`.
"""

from __future__ import annotations

from typing import Any

from stopwatch import URL, main, run_item

from heatsink.bulk import Actions
from heatsink.bulk.settings import BulkSettings
from heatsink.client.queue import connect_queue

SETTINGS = BulkSettings(durability="relaxed")
actions = Actions()


@actions.action("item")
async def item(payload: list[int], _: Any) -> None:
    await run_item(*payload)


def run(settings: BulkSettings, **workers: int) -> None:
    queue = connect_queue(URL, settings)

    async def enqueue(group: int, size: int, pause_ms: int) -> None:
        items = ([group, size, pause_ms] for _ in range(size))
        await queue.bulk.submit("item", items, tenant=f"tenant-{group}")

    async def work() -> None:
        await queue.worker(actions, **workers).run()

    main(enqueue, work)


if __name__ == "__main__":
    run(SETTINGS)
