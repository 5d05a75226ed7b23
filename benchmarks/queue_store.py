"""What a queue in Redis costs by itself: items that do nothing, in chunks of 100, one partition.

Two loops claim 500 items at a time and settle them; nothing decodes or runs an item. The
alternative is the least that somebody would write by hand: items in a list, popped 500 at a time
and counted when done, with no lease, no fairness, and lost if the worker dies. Both log to disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from random import Random
from time import perf_counter
from uuid import uuid4

from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.store import Chunk, ClaimRequest, Outcome, Part, QueueStores
from heatsink.primitives.clock import SystemClock, now_ms
from heatsink.stores.redis.address import parse
from heatsink.stores.redis.connection import Connection
from heatsink.stores.redis.queue import open_queue
from heatsink.testing.redis import RedisServer

from .harness import Bench, Samples, Scale, at_least, interleave

ITEM = b'{"to": "a@b"}'
CHUNK = 100
CHUNKS_A_CALL = 20
WANT = 500
LOOPS = 2
PARTITION = 3
SERVICE_US = 20


@asynccontextmanager
async def queue(url: str) -> AsyncIterator[QueueStores]:
    stores = open_queue(
        url, SystemClock(), Random(1), BulkSettings(stage=uuid4().hex, durability="relaxed")
    )
    await stores.fleet.own(PARTITION, "me", 600_000)
    yield stores
    await stores.close()


async def fill(stores: QueueStores, items: int) -> float:
    """Items a second, without the wait for the disk."""
    part = Part("part", "batch", "ada", "mail", now_ms(SystemClock()), "mail/ada")
    body = b",".join([ITEM] * CHUNK)
    started_s = perf_counter()
    for first in range(0, items // CHUNK, CHUNKS_A_CALL):
        chunks = [Chunk(first + n, CHUNK, body) for n in range(CHUNKS_A_CALL)]
        await stores.queue.stage(PARTITION, part, chunks)
    await stores.queue.steer(PARTITION, part.id, "release")
    return items / (perf_counter() - started_s)


async def work(stores: QueueStores) -> int:
    done = 0
    while True:
        request = ClaimRequest("me", uuid4().hex, WANT, 60_000)
        claimed = await stores.queue.claim(PARTITION, request)
        if not claimed.slices:
            return done
        outcomes = [
            Outcome(item.attempt, "d" * item.count, SERVICE_US * item.count)
            for item in claimed.slices
        ]
        await stores.queue.settle(PARTITION, outcomes, [], 60_000)
        done += sum(item.count for item in claimed.slices)


async def pace(loops: list[Awaitable[int]], items: int) -> float:
    started_s = perf_counter()
    done = sum(await asyncio.gather(*loops))
    if done != items:
        raise RuntimeError(f"{done} of {items} items came back")
    return items / (perf_counter() - started_s)


async def ours(url: str, items: int) -> tuple[float, float]:
    async with queue(url) as stores:
        filled = await fill(stores, items)
        return filled, await pace([work(stores) for _ in range(LOOPS)], items)


async def pop(connection: Connection, name: str) -> int:
    done = 0
    while found := await connection.run("LPOP", name, WANT):
        await connection.run("INCRBY", f"{name}:done", len(found))
        done += len(found)
    return done


async def by_hand(url: str, items: int) -> tuple[float, float]:
    connection, name = Connection(parse(url), SystemClock(), Random(1)), uuid4().hex
    started_s = perf_counter()
    for _ in range(0, items, CHUNK * CHUNKS_A_CALL):
        await connection.run("RPUSH", name, *[ITEM] * (CHUNK * CHUNKS_A_CALL))
    filled = items / (perf_counter() - started_s)
    popped = await pace([pop(connection, name) for _ in range(LOOPS)], items)
    await connection.close()
    return filled, popped


async def run(bench: Bench, scale: Scale) -> None:
    items = scale(40_000, 400_000)
    filled: list[Samples] = [[], []]
    with RedisServer(append_only=True) as server:

        async def measure(index: int) -> float:
            make = ours if index == 0 else by_hand
            staged, handled = await make(server.url, items)
            filled[index].append(staged)
            return handled

        handled = await interleave(scale(1, 11), lambda: measure(0), lambda: measure(1))
    alternative = "items/s by hand"
    fills = [samples[1:] for samples in filled]
    bench.add("stage", "items/s", fills[0], other=(alternative, fills[1]))
    target = at_least(100_000)
    bench.add("claim and settle", "items/s", handled[0], target, (alternative, handled[1]))
