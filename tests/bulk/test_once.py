"""Effects in the data store, once per item."""

from __future__ import annotations

import asyncio

import heatsink
from heatsink.bulk import Actions, Context, Retry


async def test_each_of_several_rows_for_one_key_is_there_once() -> None:
    actions = Actions()

    @actions.action("twice", max_attempts=3)
    async def twice(item: int, context: Context) -> None:
        await context.once("conv", b"first %d" % item)
        if context.attempt == 1:
            raise Retry(after=0.0)
        await context.once("conv", b"second %d" % item)
        if context.attempt == 2:
            raise Retry(after=0.0)

    async with heatsink.connect("memory://") as hs:
        worker = hs.worker(actions)
        running = asyncio.ensure_future(worker.run())
        batch = await hs.bulk.submit("twice", range(5))
        assert (await hs.bulk.wait(batch.id, 20.0)).done == 5
        page = await hs.log.page("conv", limit=100)
        worker.stop()
        await running
    rows = sorted(entry.body for entry in page.entries)
    assert rows == [b"%s %d" % (which, i) for which in (b"first", b"second") for i in range(5)]
