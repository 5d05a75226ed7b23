"""A client that is closed while others use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import AsyncMock

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


@pytest.mark.parametrize("ends", ["is cancelled", "runs"])
async def test_a_worker_gives_its_partitions_back_when_its_client_closes(ends: str) -> None:
    """Three runs one after another: no run waits for a lease of the last one."""
    actions = Actions()
    actions.action("act")(AsyncMock(return_value=None))
    with real(RedisServer) as redis:
        for _ in range(3):
            async with connect_queue(redis.url, BulkSettings(durability="relaxed")) as queue:
                fleet = queue.stores.fleet
                for number in range(16):
                    assert await fleet.own(number, "next", 60_000), "nobody has a lease"
                    await fleet.disown(number, "next")
                worker = queue.worker(actions, member_s=600.0)
                running = asyncio.ensure_future(worker.run())
                batch = await queue.bulk.submit("act", range(100))
                assert (await queue.bulk.wait(batch.id, PATIENCE_S)).done == 100
                assert len(worker.partitions) == 16
                if ends == "is cancelled":
                    running.cancel()
            assert await asyncio.gather(running, return_exceptions=True)


async def test_a_handler_may_close_its_own_client() -> None:
    actions, closed = Actions(), asyncio.Event()
    queue = connect_queue("memory://")

    @actions.action("act")
    async def act(_item: int, _: Context) -> None:
        try:
            await queue.close()
        finally:
            closed.set()

    await queue.bulk.submit("act", [1])
    with pytest.raises(Closed):
        await asyncio.wait_for(queue.worker(actions).run(), PATIENCE_S)
    assert closed.is_set()


async def test_a_worker_that_was_stopped_first_ends_in_peace() -> None:
    async with connect_queue("memory://") as queue:
        worker = queue.worker(Actions())
        running = asyncio.ensure_future(worker.run())
        await asyncio.sleep(0.1)
        worker.stop()
    await running
