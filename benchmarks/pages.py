"""What a page of 50 reads and takes, by buckets, beside asking every bucket for 50.

Pages begin at random rows of one epoch, on SQLite. Rows and rounds are counted at the store; a
round is what is asked without waiting for an answer. The alternative asks all N buckets at once
for a page each and merges: one round, N × 50 rows, and it knows the buckets beforehand.
"""

from __future__ import annotations

import asyncio
from functools import partial
from heapq import merge
from itertools import islice
from operator import attrgetter
from random import Random
from statistics import mean
from time import perf_counter
from uuid import UUID

from heatsink.client import Heatsink
from heatsink.spread.store import Ask, LogStore, Row

from .clients import BODY, client, pin, sqlite_url, stores_at
from .counting import Counts, counting
from .harness import Bench, Samples, Scale, at_most, interleave

LIMIT = 50
BUCKETS = {"one": 1, "two": 2, "eight": 8, "many": 32}
WRITERS = 128
newest_first = attrgetter("raw")
Starts = list[UUID]


async def write(hs: Heatsink, key: str, rows: int) -> Starts:
    """Append rows. Returns their ids but for the oldest, before which no full page is left."""

    async def some() -> Starts:
        return [(await hs.log.append(key, BODY)).id for _ in range(rows // WRITERS)]

    written = await asyncio.gather(*(some() for _ in range(WRITERS)))
    return sorted(id_ for ids in written for id_ in ids)[2 * LIMIT :]


async def fill(url: str, rows: int) -> dict[str, Starts]:
    """A key per number of buckets, and one that was hot once; where pages of each may begin."""
    async with client(stores_at(url)) as hs:
        await pin(hs, {**BUCKETS, "cooled": 8})
        starts = {key: await write(hs, key, rows) for key in BUCKETS}
        await write(hs, "cooled", rows)
        await pin(hs, {"cooled": 1})
        return {**starts, "cooled": await write(hs, "cooled", rows)}


def partitions(key: str) -> list[str]:
    buckets = BUCKETS[key]
    return [key] if buckets == 1 else [f"{key}#{bucket}" for bucket in range(buckets)]


async def paged(hs: Heatsink, key: str, starts: Starts) -> float:
    started_s = perf_counter()
    for id_ in starts:
        page = await hs.log.page(key, limit=LIMIT, before=id_)
        assert len(page.entries) == LIMIT
    return (perf_counter() - started_s) / len(starts)


async def naively_paged(store: LogStore, names: list[str], starts: Starts) -> float:
    started_s = perf_counter()
    for id_ in starts:
        page = await naive_page(store, names, id_.bytes)
        assert len(page) == LIMIT
    return (perf_counter() - started_s) / len(starts)


async def naive_page(store: LogStore, names: list[str], below: bytes) -> list[Row]:
    ask = Ask(None, below, LIMIT, newest_first=True)
    answers = await asyncio.gather(*(store.query(name, ask) for name in names))
    rows = merge(*(answer.rows for answer in answers), key=newest_first, reverse=True)
    return list(islice(rows, LIMIT))


async def counted(hs: Heatsink, counts: Counts, key: str, starts: Starts) -> list[Counts]:
    """What each page asked for; the last one is the newest page, whose end is open."""
    pages = []
    for id_ in [*starts, None]:
        counts.clear()
        await hs.log.page(key, limit=LIMIT, before=id_)
        pages.append(Counts(counts.queries, counts.rows, counts.rounds, counts.layouts))
    return pages


def add_counts(bench: Bench, key: str, pages: list[Counts]) -> None:
    buckets, (*random, newest) = BUCKETS[key], pages
    at, promised = named(buckets), buckets == 8
    rows, rounds = [float(c.rows) for c in random], [float(c.rounds) for c in random]
    naive = (f"asking {buckets} × {LIMIT}", [float(buckets * LIMIT)] * len(rows))
    few, soon = (at_most(100), at_most(1.2)) if promised else (None, None)
    bench.add(f"rows read for 50, {at}", "rows", rows, few, naive, mean)
    bench.add(f"rounds, {at}", "rounds", rounds, soon, middle=mean)
    asked = [float(newest.queries + newest.layouts)]
    bench.add(f"newest page, {at}", "queries", asked, at_most(1) if buckets == 1 else None)


def named(buckets: int) -> str:
    return "1 bucket" if buckets == 1 else f"{buckets} buckets"


def add_cooled(bench: Bench, pages: list[Counts]) -> None:
    queries = [float(c.queries + c.layouts) for c in pages]
    rows: Samples = [float(c.rows) for c in pages]
    bench.add("most queries, cooled down from 8", "queries", queries, at_most(1), middle=max)
    bench.add("most rows read, cooled down from 8", "rows", rows, at_most(51), middle=max)


async def count(bench: Bench, url: str, starts: dict[str, Starts], pages: int) -> None:
    counts, rng = Counts(), Random(2)
    async with client(counting(stores_at(url), counts)) as hs:
        for key in BUCKETS:
            asked = await counted(hs, counts, key, rng.choices(starts[key], k=pages))
            add_counts(bench, key, asked)
        cooled = await counted(hs, counts, "cooled", rng.choices(starts["cooled"], k=pages))
        add_cooled(bench, cooled)


async def time(bench: Bench, url: str, starts: dict[str, Starts], scale: Scale) -> None:
    rng, pages = Random(3), scale(50, 200)
    chosen = {key: rng.choices(starts[key], k=pages) for key in starts}
    stores = stores_at(url)
    async with client(stores) as hs:
        ours = [partial(paged, hs, key, chosen[key]) for key in [*BUCKETS, "cooled"]]
        naive = [
            partial(naively_paged, stores.log, partitions(key), chosen[key]) for key in BUCKETS
        ]
        samples = await interleave(scale(3, 11), *ours, *naive)
    *by_key, cooled = samples[: len(ours)]
    for buckets, page, plain in zip(BUCKETS.values(), by_key, samples[len(ours) :], strict=True):
        bench.add(f"page, {named(buckets)}", "µs", page, None, (f"{buckets} × {LIMIT}", plain))
    one = ("one bucket", by_key[0])
    bench.add("page, 8 buckets against one", "µs", by_key[2], None, one)
    bench.add("page, cooled down against one", "µs", cooled, None, one)


async def run(bench: Bench, scale: Scale) -> None:
    with sqlite_url() as url:
        starts = await fill(url, scale(4_000, 20_000))
        await count(bench, url, starts, scale(300, 2_000))
        await time(bench, url, starts, scale)
