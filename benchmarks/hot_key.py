"""How many writes a second one hot key takes, by buckets, where a partition takes 1,000.

A thousand callers append to one key, each its next row when the last one is accepted, and retry
what is throttled. The alternative is the plain store: the same callers, limit and retries on one
partition. A first half second spends what the limits let callers save up; it does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from random import Random
from time import perf_counter

from heatsink.errors import Overloaded
from heatsink.heat.count import Tracker
from heatsink.registry.decisions import View
from heatsink.spread.backoff import Backoff, Retries
from heatsink.spread.store import Row
from heatsink.stores.stores import Stores
from heatsink.stores.throttled import PartitionLimit, throttled

from .clients import BODY, CLOCK, client, pin, stores_at
from .harness import Bench, Scale, at_least, interleave

LIMIT = PartitionLimit(writes_s=1_000, reads_s=3_000, burst_s=0.5)
CALLERS = 1_000
SPEND_S = 0.5
REACHED_SHARE = 0.95
BUCKETS = {"one": 1, "two": 2, "four": 4, "eight": 8}
Write = Callable[[], Awaitable[object]]


def limited_stores() -> Stores:
    return throttled(stores_at("memory://"), LIMIT, CLOCK)


def retried() -> Backoff:
    """The retries that Heatsink has, for those who do without the rest of it."""
    return Backoff(Retries(), CLOCK, Random(1), Tracker(), View())


async def accepted_per_second(seconds: float, write: Write) -> float:
    """The rate of writes that came through, once what was saved up is spent."""
    accepted = 0

    async def call_on_and_on() -> None:
        nonlocal accepted
        while True:
            with suppress(Overloaded):
                await write()
                accepted += 1

    callers = [asyncio.ensure_future(call_on_and_on()) for _ in range(CALLERS)]
    await asyncio.sleep(SPEND_S)
    before, started_s = accepted, perf_counter()
    await asyncio.sleep(seconds)
    rate = (accepted - before) / (perf_counter() - started_s)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return rate


def plain_put(stores: Stores) -> Write:
    numbers, backoff = count(), retried()

    def put() -> Awaitable[object]:
        row = Row(next(numbers).to_bytes(16, "big"), BODY, 0, 1)
        return backoff.call(partial(stores.log.put, "plain", row), "plain", backoff.deadline_s())

    return put


async def run(bench: Bench, scale: Scale) -> None:
    seconds, stores = scale(1, 2), limited_stores()
    async with client(stores) as hs:
        await pin(hs, BUCKETS)
        writes: list[Write] = [plain_put(stores)]
        writes += [partial(hs.log.append, key, BODY) for key in BUCKETS]
        contenders = [partial(accepted_per_second, seconds, write) for write in writes]
        plain, *ours = await interleave(scale(1, 3), *contenders, warm_up=0)
    for buckets, rates in zip(BUCKETS.values(), ours, strict=True):
        promised = at_least(REACHED_SHARE * buckets * LIMIT.writes_s)
        metric = f"accepted, {buckets} × 1,000 allowed"
        bench.add(metric, "writes/s", rates, promised, ("one partition", plain))
