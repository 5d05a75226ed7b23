"""How a client starts that finds 200,000 layouts: when it is ready, and how long its loop stalls.

A layout has three epochs. Keys share epochs with those that were decided with them, but no two keys
have the same history. Every start is a new process with a client as an application has it, on a
SQLite file and on our engine; the client leads from its first second on. To compare with an earlier
commit, check it out: `git worktree add --detach .tools/before COMMIT`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import defaultdict
from pathlib import Path

from msgspec.structs import replace

from heatsink.registry.decisions import BUCKETS, Snapshot, for_key
from heatsink.registry.layouts import Layout
from heatsink.stores.dynamodb import make_table, open_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.table import copy_item

from .clients import CLOCK, FOUNDING, sqlite_url, stores_at
from .dynamodb import TABLE, running_engine
from .environments import TOOLS
from .harness import Bench, Samples, Scale, at_most

DRIVER = Path(__file__).parent / "drivers" / "start.py"
BEFORE = TOOLS / "before" / "src"
TOGETHER = 45  # keys that one version decides on
BUCKETS_THEN = (4, 8, 2)
REASON = "4,000 write units/s at 800 a bucket; a bucket should get at most 800"
AT_ONCE = 25  # items of a batch
BATCHES = 16
STALL_MS_MAX, READY_MS_MAX = 50, 1_000
Found = dict[str, Samples]


def snapshot(keys: int) -> Snapshot:
    """Keys are decided in groups, and in other groups each time."""
    layouts, reasons = {}, {}
    for n in range(keys):
        name, versions = f"conversation-{n:06d}", keys // TOGETHER + 1
        starts = [n // TOGETHER + 1, versions + n * 7 % versions, 2 * versions + n * 13 % versions]
        layouts[name] = Layout.of(zip(starts, BUCKETS_THEN, strict=True))
        reasons[name] = for_key(name, BUCKETS, BUCKETS_THEN[-1], REASON)
    return Snapshot(3 * (keys // TOGETHER + 1), layouts, {}, reasons)


async def fill_sqlite(url: str, kept: Snapshot) -> None:
    stores = stores_at(url)
    reading = await stores.registry.found(FOUNDING)
    await stores.registry.restore(replace(reading.meta, version=kept.version), kept)
    await stores.close()


async def fill_engine(endpoint: str, kept: Snapshot) -> str:
    """Write the copies of layouts that processes read when they start. Returns the store's URL."""
    address = parse(TABLE, {"endpoint": endpoint})
    await make_table(address, CLOCK)
    url = f"dynamodb://{TABLE}?endpoint={endpoint}"
    stores = stores_at(url)
    reading = await stores.registry.found(FOUNDING)
    empty = Snapshot(kept.version, {}, {}, {})
    await stores.registry.restore(replace(reading.meta, version=kept.version), empty)
    await stores.close()
    _, client = open_table(address, CLOCK)
    names = iter(kept.layouts)

    async def write() -> None:
        while batch := [name for _, name in zip(range(AT_ONCE), names, strict=False)]:
            items = [copy_item(name, kept.layouts[name], kept.reasons[name]) for name in batch]
            puts = [{"PutRequest": {"Item": item}} for item in items]
            await client.call("BatchWriteItem", {"RequestItems": {TABLE: puts}})

    await asyncio.gather(*(write() for _ in range(BATCHES)))
    await client.close()
    return url


async def started(url: str, source: Path | None, found: Found) -> None:
    environment = {**os.environ, "PYTHONPATH": str(source)} if source else dict(os.environ)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(DRIVER), url), stdout=asyncio.subprocess.PIPE, env=environment
    )
    said, _ = await process.communicate()
    for name, value in json.loads(said).items():
        found[name].append(value)


async def measure(bench: Bench, scale: Scale, url: str, where: str, *sources: Path | None) -> None:
    found: list[Found] = [defaultdict(list) for _ in sources]
    for turn in range(scale(2, 11)):
        order = list(zip(sources, found, strict=True))
        for source, samples in order if turn % 2 else reversed(order):
            await started(url, source, samples)
    ours, theirs = found[0], found[1] if len(found) > 1 else None

    def add(metric: str, name: str, limit: float | None = None) -> None:
        other = ("the commit before", theirs[name]) if theirs else None
        target = at_most(limit) if limit else None
        bench.add(f"{metric}, {where}", "ms", ours[name], target, other)

    add("ready", "ready_s", READY_MS_MAX)
    add("CPU until ready", "cpu_s")
    add("longest stall until ready", "stall_s", STALL_MS_MAX)
    add("its CPU time", "stall_cpu_s", STALL_MS_MAX)
    add("longest stall in the 3 s after", "later_s", STALL_MS_MAX)
    add("its CPU time in the 3 s after", "later_cpu_s", STALL_MS_MAX)


async def run(bench: Bench, scale: Scale) -> None:
    kept = snapshot(scale(20_000, 200_000))
    with sqlite_url() as url:
        await fill_sqlite(url, kept)
        before = [BEFORE] if BEFORE.exists() else []
        await measure(bench, scale, url, "SQLite", None, *before)
    async with running_engine() as endpoint:
        url = await fill_engine(endpoint, kept)
        await measure(bench, scale, url, "engine", None)
