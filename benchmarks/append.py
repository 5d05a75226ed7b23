"""What `await hs.log.append` costs over `await store.put` of the same store with the same rows.

The alternative is the least that writes such a row: an id of the milliseconds and a number (so
that it sorts among ours), a `Row` of the same epoch, the put; at eight buckets it takes ready names
in turn, where an append hashes its id. Rounds
are short and many, because a disk's mood changes within seconds. What Heatsink runs beside the
application weighs on both, so it has a line of its own. Cold keys are many, in random order. How
much a put costs on SQLite, and so the ratio, depends on the table: in one that is in use nearly
every cold row dirties a page of its own, in an empty one many rows share a page. Both are shown.

What an append adds to a put is shown apart, too: CPU time on a store that answers 256 puts at once,
as SQLite does, and does nothing else. Beside it stands the least that places a row in Python.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count, cycle, islice
from random import Random
from time import perf_counter, process_time, thread_time, time
from typing import Any

from heatsink.client import Heatsink
from heatsink.heat.count import Tracker
from heatsink.primitives.ids import Uuid7
from heatsink.primitives.keys import seeded_state
from heatsink.registry.layouts import FIRST_EPOCH, Epoch
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff, Retries
from heatsink.spread.log import Log, Receipt
from heatsink.spread.routing import Parts, Router, name_of
from heatsink.spread.store import LogStore, Row
from heatsink.stores.stores import Stores

from .clients import BODY, CLOCK, client, pin, sqlite_url, stores_at
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


class AtOnce:
    """A store that keeps nothing, and answers as many puts at once as there are callers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[Row | None]] = []

    def put(self, _partition: str, _row: Row) -> asyncio.Future[Row | None]:
        future: asyncio.Future[Row | None] = self._loop.create_future()
        self._waiting.append(future)
        if len(self._waiting) == CONCURRENT:
            self._loop.call_soon(self._answer, self._waiting)
            self._waiting = []
        return future

    def _answer(self, waiting: list[asyncio.Future[Row | None]]) -> None:
        for future in waiting:
            future.set_result(None)


class Least:
    """The least that places a row: no check of the arguments, no deadline, no retry, no calls."""

    def __init__(self, store: LogStore, registry: Registry, tracker: Tracker) -> None:
        self._store, self._view, self._note = store, registry.view, tracker.note
        self._begin_hash, self._scheme = seeded_state(registry.meta.seed), Uuid7()
        self._random_bits, self._last = Random(1).getrandbits, 0

    async def append(self, key: str, body: bytes) -> Receipt:
        if int(time() * 1000) >= self._view.horizon_ms:
            await asyncio.sleep(0.1)
        self._last = number = self._last + self._random_bits(32) + 1
        raw = number.to_bytes(16, "big")
        layout = self._view.layouts.get(key)
        if layout is None:
            partition, epoch = key, FIRST_EPOCH
        else:
            epoch, state = layout.epochs[-1], self._begin_hash()
            state.update(raw)
            partition = name_of(key, int.from_bytes(state.digest(), "big") % epoch.buckets)
        self._note((key, 1, len(body), partition))
        row = Row(raw, body, epoch.start_ms, epoch.buckets)
        return Receipt(raw, self._scheme, key, await self._store.put(partition, row) is None)


async def own_work(bench: Bench, scale: Scale, hs: Heatsink) -> None:
    """CPU time of an append beyond that of a put, and the same of the least in Python."""
    registry, tracker, at_once = hs.parts.registry, Tracker(), AtOnce()
    store: Any = at_once
    backoff = Backoff(Retries(), CLOCK, Random(1), tracker, registry.view)
    router = Router(registry, Uuid7(), backoff, CLOCK, Random(1))
    log = Log(store, Parts(registry, router, tracker, backoff, CLOCK, answers_in_s=1.0))
    hot = registry.view.layout("hot").epochs[-1]
    for what, keys, partitions, epoch in (
        ("cold keys", names(), names(), FIRST_EPOCH),
        (f"{BUCKETS} buckets", names(["hot"]), names(HOT_PARTITIONS), hot),
    ):
        appends, leasts, puts = await interleave(
            scale(40, 200),
            partial(cpu, partial(each, log), keys, tracker),
            partial(cpu, partial(each, Least(store, registry, tracker)), keys, tracker),
            partial(cpu, partial(put_each, store, epoch), partitions, tracker),
        )
        least = [one - put for one, put in zip(leasts, puts, strict=True)]
        own = [one - put for one, put in zip(appends, puts, strict=True)]
        metric = f"own work of an append, {what}, {CONCURRENT} at once"
        bench.add(metric, "µs", own, None, ("the least in Python", least))


async def each(log: Log | Least, keys: list[str]) -> None:
    for key in keys:
        await log.append(key, BODY)


async def cpu(work: Work, targets: Iterator[str], tracker: Tracker) -> float:
    """Seconds of CPU time per row; short, so that little else happens meanwhile."""
    rows = 2 * CONCURRENT
    chosen = list(islice(targets, rows))
    started_s = thread_time()
    await asyncio.gather(*(work(chosen[caller::CONCURRENT]) for caller in range(CONCURRENT)))
    used_s = thread_time() - started_s
    tracker.roll()
    return used_s / rows


async def in_memory(bench: Bench, scale: Scale) -> None:
    stores = stores_at("memory://")
    async with client(stores) as hs:
        await pin(hs, {"hot": BUCKETS})
        contest, clean = Contest(bench, scale, stores, hs), partial(empty, stores.log)
        for plan in PLANS["memory"]:
            await contest.cold(plan, "memory", None, clean)
            await contest.hot(plan, "memory", None, clean)
        await own_work(bench, scale, hs)
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
