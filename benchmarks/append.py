"""What `await hs.log.append` costs over `await store.put` of the same store with the same rows.

The alternative is the least that writes such a row: an id of the milliseconds and a number (so
that it sorts among ours), a `Row` of the same epoch, the put; at eight buckets it takes ready names
in turn, where an append hashes its id. Rounds
are short and many, because a disk's mood changes within seconds. What Heatsink runs beside the
application weighs on both, so it has a line of its own. Cold keys are many, in random order. How
much a put costs on SQLite, and so the ratio, depends on the table: in one that is in use nearly
every cold row dirties a page of its own, in an empty one many rows share a page. Both are shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count, cycle, islice
from random import Random
from time import perf_counter, process_time, time

from heatsink.client import Heatsink
from heatsink.registry.layouts import FIRST_EPOCH, Epoch
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
Targets = tuple[Iterator[str], Iterator[str]]
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


async def put_each(store: LogStore, epoch: Epoch, partitions: list[str]) -> None:
    start_ms, buckets = epoch.start_ms, epoch.buckets
    for partition in partitions:
        raw = (int(time() * 1000) << 80 | next(numbers)).to_bytes(16, "big")
        await store.put(partition, Row(raw, BODY, start_ms, buckets))


class Contest:
    """Appends against puts on one store, with the client open all the time."""

    def __init__(self, bench: Bench, scale: Scale, stores: Stores, hs: Heatsink) -> None:
        self._bench = bench
        self._scale = scale
        self._append = partial(append_each, hs)
        self._store = stores.log
        self._hot = hs.parts.registry.view.layout("hot").epochs[-1]

    async def cold(self, plan: Plan, where: str, target: Target | None, clean: Clean) -> None:
        put = partial(put_each, self._store, FIRST_EPOCH)
        await self._compare(plan, f"{where}, cold keys", target, clean, put, (names(), names()))

    async def hot(self, plan: Plan, where: str, target: Target | None, clean: Clean) -> None:
        targets = names(["hot"]), names(HOT_PARTITIONS)
        put = partial(put_each, self._store, self._hot)
        await self._compare(plan, f"{where}, {BUCKETS} buckets", target, clean, put, targets)

    async def _compare(
        self,
        plan: Plan,
        what: str,
        target: Target | None,
        clean: Clean,
        put: Work,
        targets: Targets,
    ) -> None:
        ours = partial(timed, plan, self._append, targets[0], clean)
        plain = partial(timed, plan, put, targets[1], clean)
        appends, puts = await interleave(self._scale(*plan.rounds), ours, plain)
        self._bench.add(f"append, {what}, {plan}", "µs", appends, target, ("put", puts))


async def in_memory(bench: Bench, scale: Scale) -> None:
    stores = stores_at("memory://")
    async with client(stores) as hs:
        await pin(hs, {"hot": BUCKETS})
        contest, clean = Contest(bench, scale, stores, hs), partial(empty, stores.log)
        for plan in PLANS["memory"]:
            await contest.cold(plan, "memory", None, clean)
            await contest.hot(plan, "memory", None, clean)
        bench.add("beside the application, memory", "ms CPU/s", await idle_cost(scale(3, 8)))


async def on_sqlite(bench: Bench, scale: Scale, url: str) -> None:
    stores, target = stores_at(url), ratio_at_most(1.10)
    async with client(stores) as hs:
        await pin(hs, {"hot": BUCKETS})
        contest = Contest(bench, scale, stores, hs)
        at_once = PLANS["sqlite"][1]
        await contest.cold(at_once, "sqlite, empty table", target, partial(empty, stores.log))
        await fill(stores, scale(8, 24))
        for plan in PLANS["sqlite"]:
            await contest.cold(plan, "sqlite", target, nothing)
            await contest.hot(plan, "sqlite", target, nothing)
        bench.add("beside the application, sqlite", "ms CPU/s", await idle_cost(scale(3, 8)))


async def fill(stores: Stores, rows_per_key: int) -> None:
    """What the table holds before anything is measured."""
    for first in range(0, len(COLD_KEYS), 64):
        keys = COLD_KEYS[first : first + 64]
        await asyncio.gather(
            *(put_each(stores.log, FIRST_EPOCH, [key] * rows_per_key) for key in keys)
        )


async def empty(store: LogStore) -> None:
    """For a store in memory, which would grow without end, and for a table that shall be new."""
    await asyncio.gather(*(store.erase(name) for name in COLD_KEYS + HOT_PARTITIONS))


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
    await in_memory(bench, scale)
    with sqlite_url() as url:
        await on_sqlite(bench, scale, url)
