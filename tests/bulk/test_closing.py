"""A client that is closed while others use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any

import pytest

from heatsink.bulk import Actions, BulkSettings, Context
from heatsink.client.queue import Queue, connect_queue
from heatsink.errors import Closed
from heatsink.testing.redis import RedisServer
from tests.servers import real
from tests.waiting import PATIENCE_S


async def endless() -> AsyncIterator[int]:
    for number in range(1_000_000):
        await asyncio.sleep(0.0001)
        yield number


def working(queue: Queue) -> Any:
    actions = Actions()

    @actions.action("act")
    async def act(_item: int, _: Context) -> None:
        await asyncio.sleep(60.0)

    return queue.worker(actions).run()


USES: dict[str, Callable[[Queue], Any]] = {
    "submit": lambda queue: queue.bulk.submit("act", endless()),
    "wait": lambda queue: queue.bulk.wait("x"),
    "worker": working,
}


@pytest.mark.parametrize("kind", ["memory", "redis"])
@pytest.mark.parametrize("use", USES)
async def test_whoever_uses_a_client_that_is_closed_is_told_so(use: str, kind: str) -> None:
    with ExitStack() as stack:
        url = "memory://"
        if kind == "redis":
            url = stack.enter_context(real(RedisServer)).url
        queue = connect_queue(url, BulkSettings(durability="relaxed"))
        async with queue:
            await queue.bulk.submit("act", [1], id="x")
            using = asyncio.ensure_future(USES[use](queue))
            await asyncio.sleep(0.3)
            assert not using.done()
        with pytest.raises(Closed):
            await asyncio.wait_for(using, PATIENCE_S)
        with pytest.raises(Closed):
            await queue.bulk.status("x")


async def test_a_worker_that_was_stopped_first_ends_in_peace() -> None:
    async with connect_queue("memory://") as queue:
        worker = queue.worker(Actions())
        running = asyncio.ensure_future(worker.run())
        await asyncio.sleep(0.1)
        worker.stop()
    await running
