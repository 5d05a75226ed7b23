"""What a view of 200,000 hot keys, three epochs each, weighs, and how fast it starts and answers.

Measured in a process of its own, from the SQLite file to a loaded view. The alternative to a lookup
in the view is the read of one layout from the store, which nobody has to make thanks to it.
"""

from __future__ import annotations

import asyncio
from itertools import product
from random import Random
from time import perf_counter

import msgspec

from heatsink.registry.decisions import BUCKETS, LogEntry, View, for_key
from heatsink.registry.registry import Registry
from heatsink.stores.stores import Stores

from .clients import CLOCK, FOUNDING, sqlite_url, stores_at
from .harness import Bench, Scale, interleave
from .memory import apart, resident_bytes

EPOCHS = (4, 8, 2)
GROUP = 2_000
REASON = "4,000 write units/s at 800 a bucket"
LOOKUPS = 2_000
NEWEST_MS = 1_000


class Start(msgspec.Struct):
    snapshot_s: float
    load_s: float
    open_s: float
    grown_bytes: int


def name(number: int) -> str:
    return f"conversation-{number:06d}"


async def fill(url: str, keys: int) -> None:
    """One version per group of keys and epoch: groups do not share the start of an epoch."""
    stores = stores_at(url)
    reading = await stores.registry.found(FOUNDING)
    meta = await stores.lease.lead(reading.meta, "benchmark", 0)
    groups = [range(first, first + GROUP) for first in range(0, keys, GROUP)]
    for version, (buckets, group) in enumerate(product(EPOCHS, groups), start=1):
        decisions = tuple(for_key(name(number), BUCKETS, buckets, REASON) for number in group)
        entry = LogEntry(version, 0, meta.closed_ms + version, decisions)
        await stores.registry.append(entry, meta.term)
    await stores.close()


async def start(url: str) -> Start:
    stores, before = stores_at(url), resident_bytes()
    started_s = perf_counter()
    snapshot = await stores.registry.snapshot()
    read_s = perf_counter()
    view = View()
    view.load(snapshot)
    loaded_s = perf_counter()
    del snapshot
    grown = resident_bytes() - before
    opened_s = await open_registry(stores)
    await stores.close()
    return Start(read_s - started_s, loaded_s - read_s, opened_s, grown)


async def open_registry(stores: Stores) -> float:
    registry = Registry(stores.registry, CLOCK)
    started_s = perf_counter()
    await registry.open(FOUNDING)
    seconds = perf_counter() - started_s
    await registry.close()
    return seconds


def started_apart(url: str) -> Start:
    return asyncio.run(start(url))


async def look_up(bench: Bench, scale: Scale, url: str, keys: int) -> None:
    stores, view, rng = stores_at(url), View(), Random(1)
    view.load(await stores.registry.snapshot())
    asked = [name(rng.randrange(keys)) for _ in range(LOOKUPS)]

    async def from_view() -> float:
        started_s = perf_counter()
        for key in asked:
            view.layout(key).epoch_at(NEWEST_MS)
        return (perf_counter() - started_s) / LOOKUPS

    async def from_store() -> float:
        started_s = perf_counter()
        for key in asked:
            (await stores.registry.layout(key)).epoch_at(NEWEST_MS)
        return (perf_counter() - started_s) / LOOKUPS

    ours, read = await interleave(scale(5, 31), from_view, from_store)
    await stores.close()
    bench.add("look a layout and epoch up", "µs", ours, None, ("read from SQLite", read))


async def run(bench: Bench, scale: Scale) -> None:
    keys = scale(20_000, 200_000)
    with sqlite_url() as url:
        await fill(url, keys)
        starts = [apart(started_apart, url) for _ in range(scale(1, 3))]
        of = f"{keys:,} keys"
        bench.add(f"memory, {of}", "MB", [start.grown_bytes / 1e6 for start in starts])
        bench.add("memory per key", "bytes", [start.grown_bytes / keys for start in starts])
        bench.add(f"snapshot from SQLite, {of}", "ms", [start.snapshot_s for start in starts])
        bench.add(f"View.load, {of}", "ms", [start.load_s for start in starts])
        bench.add(f"Registry.open, {of}", "ms", [start.open_s for start in starts])
        await look_up(bench, scale, url, keys)
