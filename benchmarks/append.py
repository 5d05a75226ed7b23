"""What `await hs.log.append` costs over `await store.put` of the same store with the same rows.

The alternative is the least that writes such a row: an id of the milliseconds and a number (so
that it sorts among ours), a `Row`, the put; at eight buckets it takes ready names in turn. Rounds
are short and many, because a disk's mood changes within seconds. What Heatsink runs beside the
application weighs on both, so it has a line of its own. Cold keys are many, in random order, and
SQLite's table has rows of all of them already, as a table in use has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count, cycle, islice
from random import Random
from time import perf_counter, process_time, time

from heatsink.client import Heatsink
from heatsink.spread.store import LogStore, Row
from heatsink.stores.stores import Stores

from .clients import BODY, client, pin, sqlite_url, stores_at
from .harness import Bench, Scale, Target, interleave, ratio_at_most

COLD_KEYS = [f"conversation-{number:04d}" for number in range(4096)]
BUCKETS = 8
HOT_PARTITIONS = [f"hot#{bucket}" for bucket in range(BUCKETS)]
CONCURRENT = 256
Work = Callable[[list[str]], Awaitable[None]]
Clean = Callable[[], Awaitable[None]]
numbers = count(1)


class Plan:
    """How many rows a round writes and how many rounds there are, in a look and in earnest."""

    def __init__(self, callers: int, rows: int, rounds: tuple[int, int]) -> None:
        self.callers = callers
        self.rows = rows
        self.rounds = rounds

    def __str__(self) -> str:
        return "in turn" if self.callers == 1 else f"{self.callers} at once"


PLANS = {
    "memory": (Plan(1, 8_192, (5, 31)), Plan(CONCURRENT, 8_192, (5, 31))),
    "sqlite": (Plan(1, 50, (20, 150)), Plan(CONCURRENT, 2_048, (5, 41))),
}


def names(hot: list[str] | None = None) -> Iterator[str]:
    """Keys or partitions without end: those of the hot key in turn, or cold ones in disorder."""
    return cycle(hot or Random(1).sample(COLD_KEYS, len(COLD_KEYS)))


async def timed(plan: Plan, work: Work, targets: Iterator[str], clean: Clean) -> float:
    """Seconds per row of callers who each write their share, one row after the other."""
    chosen = list(islice(targets, plan.rows))
    shares = [chosen[caller :: plan.callers] for caller in range(plan.callers)]
    started_s = perf_counter()
    await asyncio.gather(*map(work, shares))
    seconds = perf_counter() - started_s
    await clean()
    return seconds / plan.rows


async def append_each(hs: Heatsink, keys: list[str]) -> None:
    for key in keys:
        await hs.log.append(key, BODY)


async def put_each(store: LogStore, partitions: list[str]) -> None:
    for partition in partitions:
        raw = (int(time() * 1000) << 80 | next(numbers)).to_bytes(16, "big")
        await store.put(partition, Row(raw, BODY, 0, 1))


async def measure(bench: Bench, scale: Scale, kind: str, target: Target | None, url: str) -> None:
    stores = stores_at(url)
    async with client(stores) as hs:
        await pin(hs, {"hot": BUCKETS})
        clean = partial(empty, stores.log) if kind == "memory" else nothing
        await fill(stores, scale(8, 24))
        append, put = partial(append_each, hs), partial(put_each, stores.log)
        for plan in PLANS[kind]:
            for where, keys, partitions in (
                ("cold keys", names(), names()),
                (f"{BUCKETS} buckets", names(["hot"]), names(HOT_PARTITIONS)),
            ):
                ours = partial(timed, plan, append, keys, clean)
                plain = partial(timed, plan, put, partitions, clean)
                samples = await interleave(scale(*plan.rounds), ours, plain)
                metric = f"append, {kind}, {where}, {plan}"
                bench.add(metric, "µs", samples[0], target, ("put", samples[1]))
        bench.add(f"beside the application, {kind}", "ms CPU/s", await idle_cost(scale(3, 8)))


async def fill(stores: Stores, rows_per_key: int) -> None:
    """What the table holds before anything is measured."""
    for first in range(0, len(COLD_KEYS), 64):
        keys = COLD_KEYS[first : first + 64]
        await asyncio.gather(*(put_each(stores.log, [key] * rows_per_key) for key in keys))


async def empty(store: LogStore) -> None:
    """A store in memory would grow without end, and each round be slower than the one before."""
    for partition in COLD_KEYS + HOT_PARTITIONS:
        await store.erase(partition)


async def nothing() -> None:
    pass


async def idle_cost(seconds: int) -> list[float]:
    """CPU time of a client that is open and has nothing to do, each second."""
    samples = []
    for _ in range(seconds):
        started_s, used_s = perf_counter(), process_time()
        await asyncio.sleep(1)
        samples.append((process_time() - used_s) * 1000 / (perf_counter() - started_s))
    return samples


async def run(bench: Bench, scale: Scale) -> None:
    await measure(bench, scale, "memory", None, "memory://")
    with sqlite_url() as url:
        await measure(bench, scale, "sqlite", ratio_at_most(1.10), url)
