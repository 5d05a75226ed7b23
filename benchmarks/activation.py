"""How long after a sudden jump of one key its rows land in a wider layout, on SQLite.

The key goes from nothing to 4,000 writes a second, paced, where a bucket is to take 800. The time
runs from its 801st write to the first acknowledged row of an epoch with more than one bucket. Jumps
begin at random moments of the reporting window and of the coordinator's turn.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from time import perf_counter

from heatsink.client import Heatsink
from heatsink.spread.store import Row

from .clients import BODY, client, sqlite_url, stores_at
from .counting import CountingLog, Counts
from .harness import Bench, Scale

WRITES_S = 4_000
TICK_S = 0.01
ALLOWED = 800
PATIENCE_S = 10.0


class WatchedLog(CountingLog):
    """Notes when the first row of a wider layout is acknowledged."""

    spread_s: float | None = None

    async def put(self, partition: str, row: Row) -> Row | None:
        taken_by = await super().put(partition, row)
        if row.buckets > 1 and self.spread_s is None:
            self.spread_s = perf_counter()
        return taken_by


async def jump(hs: Heatsink, log: WatchedLog, key: str) -> float:
    log.spread_s = over_s = None
    started_s, written = perf_counter(), 0
    writing: set[asyncio.Task[object]] = set()
    while log.spread_s is None and perf_counter() - started_s < PATIENCE_S:
        due = int((perf_counter() - started_s) * WRITES_S)
        for _ in range(due - written):
            task: asyncio.Task[object] = asyncio.ensure_future(hs.log.append(key, BODY))
            writing.add(task)
            task.add_done_callback(writing.discard)
        written = due
        if over_s is None and written > ALLOWED:
            over_s = perf_counter()
        await asyncio.sleep(TICK_S)
    await asyncio.gather(*writing)
    if log.spread_s is None or over_s is None:
        raise RuntimeError(f"{key} was not spread within {PATIENCE_S:g} s")
    return log.spread_s - over_s


async def run(bench: Bench, scale: Scale) -> None:
    rng = Random(1)
    with sqlite_url() as url:
        stores = stores_at(url)
        log = WatchedLog(stores.log, Counts())
        async with client(replace(stores, log=log)) as hs:
            seconds = []
            for number in range(scale(2, 9)):
                await asyncio.sleep(0.5 + rng.random())
                seconds.append(await jump(hs, log, f"conversation-{number}"))
    bench.add("jump to 4,000 writes/s until spread", "ms", seconds)
