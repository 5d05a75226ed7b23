"""Heatsink with its defaults, one item per call. `DURABILITY` says if it waits for the disk."""

from __future__ import annotations

import os
from typing import Any

from stopwatch import URL, main, run_item

from heatsink.bulk import Actions
from heatsink.bulk.settings import BulkSettings
from heatsink.client.queue import connect_queue

actions = Actions()
queues: list[Any] = []


@actions.action("item")
async def item(payload: list[int], _: Any) -> None:
    await run_item(*payload)


def queue() -> Any:
    """Connect in the event loop, at the first call."""
    if not queues:
        queues.append(connect_queue(URL, BulkSettings(durability=os.environ["DURABILITY"])))
    return queues[0]


async def one(*payload: int) -> None:
    await queue().bulk.enqueue("item", payload)


async def work() -> None:
    await queue().worker(actions).run()


if __name__ == "__main__":
    main(one, work, one)
