"""How many adds a second a counter takes, by shards and buffered, beside a blind add.

The blind add raises one number in one partition and remembers no token, so a retry of it counts
twice. It goes through the same writer thread and fsync on SQLite, and through the same limit and
retries where a partition takes 1,000 writes a second. A buffered add is counted when it is durable.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from heatsink.client import Heatsink
from heatsink.stores.sqlite.engine import SqliteDatabase
from heatsink.stores.sqlite.log import run_batch
from heatsink.stores.throttled import TokenBuckets

from .clients import CLOCK, client, pin, sqlite_url, stores_at
from .harness import Bench, Scale, interleave
from .hot_key import LIMIT, accepted_per_second, limited_stores, retried

SHARDS = {"one": 1, "eight": 8}
CALLERS = 256
BUFFERED = 200
Add = Callable[[], Awaitable[object]]


def blind_add_in_memory() -> Add:
    """A number in memory behind the limit of one partition."""
    limits, backoff = TokenBuckets(LIMIT.writes_s, LIMIT.burst_s, CLOCK), retried()
    value = 0

    async def attempt() -> None:
        nonlocal value
        limits.take("plain", 1)
        value += 1

    return lambda: backoff.call(attempt, "plain", backoff.deadline_s())


def blind_add_in(database: SqliteDatabase) -> Add:
    sql = "INSERT INTO shares (partition, value) VALUES ('plain', 1)"
    sql += " ON CONFLICT DO UPDATE SET value = value + 1"

    def add(connection: sqlite3.Connection) -> None:
        connection.execute(sql)

    return partial(database.write, add)


async def added_per_second(adds: int, add: Add) -> float:
    async def some() -> None:
        for _ in range(adds // CALLERS):
            await add()

    started_s = perf_counter()
    await asyncio.gather(*(some() for _ in range(CALLERS)))
    return adds // CALLERS * CALLERS / (perf_counter() - started_s)


async def buffered_per_second(hs: Heatsink, adds: int) -> float:
    """Adds that do not wait one by one; leaving the block waits until all are durable."""
    started_s = perf_counter()
    async with hs.counters.buffered() as counts:
        for _ in range(adds // BUFFERED):
            for _ in range(BUFFERED):
                counts.add_soon("eight")
            await asyncio.sleep(0)
    return adds / (perf_counter() - started_s)


async def throttled_adds(bench: Bench, scale: Scale) -> None:
    seconds = scale(1, 2)
    async with client(limited_stores()) as hs:
        await pin(hs, SHARDS)
        adds: list[Add] = [blind_add_in_memory()]
        adds += [partial(hs.counters.add, key) for key in SHARDS]
        contenders = [partial(accepted_per_second, seconds, add) for add in adds]
        blind, *ours = await interleave(scale(1, 3), *contenders, warm_up=0)
    for shards, rates in zip(SHARDS.values(), ours, strict=True):
        metric = f"adds, {shards} × 1,000 allowed"
        bench.add(metric, "adds/s", rates, None, ("blind, one partition", blind))


async def durable_adds(bench: Bench, scale: Scale, url: str) -> None:
    adds, blind_file = scale(2_048, 8_192), Path(url.removeprefix("sqlite:///")).with_name("b.db")
    database = SqliteDatabase(blind_file, run_batch)
    async with client(stores_at(url)) as hs:
        await pin(hs, SHARDS)
        calls: list[Add] = [blind_add_in(database)]
        calls += [partial(hs.counters.add, key) for key in SHARDS]
        contenders = [partial(added_per_second, adds, call) for call in calls]
        buffered = partial(buffered_per_second, hs, 100 * adds)
        blind, one, eight, soon = await interleave(scale(3, 11), *contenders, buffered)
    await database.close()
    plain = ("blind, one partition", blind)
    bench.add("adds, SQLite, 1 shard, 256 at once", "adds/s", one, None, plain)
    bench.add("adds, SQLite, 8 shards, 256 at once", "adds/s", eight, None, plain)
    bench.add("buffered adds, SQLite, 8 shards", "adds/s", soon, None, plain)


async def run(bench: Bench, scale: Scale) -> None:
    await throttled_adds(bench, scale)
    with sqlite_url() as url:
        await durable_adds(bench, scale, url)
