"""`./dev soak --memory [MINUTES] [--samples FILE] [--trace]`: does a client's memory level off?

One client does a little of everything, at a rate that leaves the machine to others, on the parts
that a fleet has: a DynamoDB engine in a process of its own (its connections, retries and signatures
are what a fleet's clients hold) and a Redis for heat, news and bulk actions. This process is the
client, so its resident memory is what is measured.

Keys come in two kinds. Most are new, and whatever is kept for each of them for ever is a leak. Some
come back: hot keys that are spread and cool down, pins, timelines. What the registry keeps of those
is bounded by their number. Caches are filled before the first sample, and the verdict is about the
last half.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import subprocess
import sys
import tracemalloc
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations, count
from pathlib import Path
from random import Random
from statistics import quantiles
from time import monotonic
from typing import Any
from uuid import UUID

from heatsink import BucketRules, Heatsink, connect
from heatsink.bulk import Actions, BulkSettings
from heatsink.errors import Retryable
from heatsink.reads import ReadSettings
from heatsink.spread.counters import CELLS_MAX, BufferedCounters
from heatsink.stores.embedded import free_port, start_tied
from heatsink.testing.redis import RedisServer
from tests.waiting import until

from .test_fleet import HEATSINK

SAMPLE_S = 30.0
FLAT_KB_H = 1_024  # growth that counts as none
HOT_FOR_S, HOT_KEYS = 40.0, 12
RETURNING = 50
CACHED = 2_000  # entries of each cache of reads
FILL_TOGETHER, FILL_PAUSE_S = 50, 0.2
BODY, HOT_BODY = b"x" * 200, b"x" * 3_000  # a hot key is hot by its bytes: calls cost time here
BUCKET_UNITS_S = 30  # more than a key that is used once costs, or each would be spread
Step = Callable[[], Awaitable[Any]]
COLUMNS = ("seconds", "rss_kb", "blocks", "objects", "tasks", "cpu_s", "calls", "retryable")
KEPT = ("near", "pages", "cells", "layouts", "epochs", "pins", "engine_kb", "redis_kb")


class Load:
    """What the client does. Each step is one call, or a few."""

    def __init__(self, hs: Heatsink, counts: BufferedCounters, rng: Random) -> None:
        self._hs = hs
        self._counts = counts
        self._rng = rng
        self._new = count()
        self._started_s = monotonic()
        self._lately: deque[tuple[str, UUID]] = deque(maxlen=1_000)
        self.calls = self.retryable = 0

    def steps(self) -> dict[Step, float]:
        """How often a second each is done."""
        return {
            self.append_to_new_key: 8,
            self.append_to_hot_key: 16,
            self.page: 3,
            self.cached_page: 4,
            self.get: 4,
            self.delete: 1,
            self.add: 3,
            self.value: 1,
            self.add_buffered: 14,
            self.read_near: 40,
            self.forget: 2,
            self.pin: 0.1,
            self.unpin: 0.1,
            self.explain: 0.2,
            self.submit: 0.05,
            self.follow: 0.3,
            self.post: 0.1,
            self.home: 0.5,
        }

    async def fill(self) -> None:
        """Fill what is bounded, gently: from then on it makes room, and memory must not grow."""
        for _ in range(0, CELLS_MAX, FILL_TOGETHER):
            added = [self._counts.add_soon(self._new_key("views")) for _ in range(FILL_TOGETHER)]
            await asyncio.gather(*added, return_exceptions=True)
            await asyncio.sleep(FILL_PAUSE_S)
        for _ in range(0, 2 * CACHED, FILL_TOGETHER):  # as many names again are remembered
            for _ in range(FILL_TOGETHER):
                await self.read_near()
                await self._hs.log.page(self._new_key("cached"), limit=20, fresh_for=1.0)
            await asyncio.sleep(FILL_PAUSE_S)

    async def repeat(self, step: Step, per_s: float) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(per_s))
            self.calls += 1
            try:
                await step()
            except Retryable:
                self.retryable += 1

    def _new_key(self, kind: str) -> str:
        return f"{kind}-{next(self._new)}-{self._rng.getrandbits(32):08x}"

    def _returning(self, kind: str) -> str:
        return f"{kind}-{self._rng.randrange(RETURNING)}"

    def _hot_key(self) -> str:
        turn = int((monotonic() - self._started_s) / HOT_FOR_S)
        return f"hot-{turn % HOT_KEYS}"

    async def _append(self, key: str, body: bytes) -> None:
        receipt = await self._hs.log.append(key, body, ttl=3600)
        self._lately.append((key, receipt.id))

    async def append_to_new_key(self) -> None:
        await self._append(self._new_key("conversation"), BODY)

    async def append_to_hot_key(self) -> None:
        await self._append(self._hot_key(), HOT_BODY)

    async def page(self) -> None:
        await self._hs.log.page(self._rng.choice(self._lately or [("none", None)])[0], limit=20)

    async def cached_page(self) -> None:
        key = self._rng.choice([self._hot_key(), self._new_key("cached")])
        await self._hs.log.page(key, limit=20, fresh_for=1.0, stale_for=5.0)

    async def get(self) -> None:
        if self._lately:
            await self._hs.log.get(*self._rng.choice(self._lately))

    async def delete(self) -> None:
        if self._lately:
            await self._hs.log.delete(*self._rng.choice(self._lately))

    async def add(self) -> None:
        await self._hs.counters.add(self._new_key("count"))

    async def value(self) -> None:
        await self._hs.counters.value(self._rng.choice([self._hot_key(), self._new_key("count")]))

    async def add_buffered(self) -> None:
        keys = [self._new_key("views"), self._new_key("views"), self._returning("views")]
        self._counts.add_soon(self._rng.choice(keys))

    async def read_near(self) -> None:
        async def load() -> bytes:
            await asyncio.sleep(0)
            return self._rng.randbytes(200)

        key = self._rng.choice([self._new_key("product"), self._returning("product")])
        await self._hs.reads.get(key, load, fresh_for=1.0, stale_for=10.0)

    async def forget(self) -> None:
        self._hs.reads.forget(self._rng.choice([self._new_key("f"), self._returning("product")]))

    async def pin(self) -> None:
        buckets = self._rng.randint(2, 5)
        await self._hs.pin(self._returning("pinned"), buckets=buckets, reason="soak")

    async def unpin(self) -> None:
        await self._hs.unpin(self._returning("pinned"))

    async def explain(self) -> None:
        await self._hs.explain(self._rng.choice([self._hot_key(), self._new_key("why")]))

    async def submit(self) -> None:
        items = [{"number": number} for number in range(self._rng.randint(1, 100))]
        batch = await self._hs.bulk.submit("touch", items, tenant=self._new_key("tenant"))
        await self._hs.bulk.wait(batch.id, timeout_s=120)

    async def follow(self) -> None:
        user = self._rng.choice([self._returning("user"), self._new_key("user")])
        change = self._rng.choice([self._hs.timelines.follow, self._hs.timelines.unfollow])
        await change(user, self._returning("author"))

    async def post(self) -> None:
        await self._hs.timelines.post(self._returning("author"), BODY)

    async def home(self) -> None:
        await self._hs.timelines.home(self._returning("user"), limit=20)


def touch_actions() -> Actions:
    actions = Actions()

    @actions.action("touch")
    async def touch(item: dict[str, int], context: Any) -> None:
        await context.once(f"touched-{item['number']}", b"touched")

    return actions


class Samples:
    """Rows of a file, one every `SAMPLE_S`, and what they say in the end."""

    def __init__(self, file: Path, hs: Heatsink, load: Load, others: dict[str, int]) -> None:
        self._hs = hs
        self._load = load
        self._others = others
        self._file = file.open("w", buffering=1)
        self._file.write(",".join((*COLUMNS, *KEPT)) + "\n")
        self._started_s = monotonic()
        self.rss: list[tuple[float, float]] = []
        self.blocks: list[tuple[float, float]] = []

    def take(self) -> None:
        seconds = monotonic() - self._started_s
        gc.collect()
        blocks, rss_kb = sys.getallocatedblocks(), resident_kb(os.getpid())
        used = resource.getrusage(resource.RUSAGE_SELF)
        row = [
            *(round(seconds), rss_kb, blocks, len(gc.get_objects()), len(asyncio.all_tasks())),
            *(round(used.ru_utime + used.ru_stime, 1), self._load.calls, self._load.retryable),
            *self._kept(),
            *map(resident_kb, self._others.values()),
        ]
        self._file.write(",".join(map(str, row)) + "\n")
        self.rss.append((seconds, rss_kb))
        self.blocks.append((seconds, blocks))

    def _kept(self) -> list[int]:
        view = self._hs.parts.registry.view
        epochs = sum(len(layout.epochs) for layout in view.layouts.values())
        near = self._hs.reads.stats().entries, self._hs.page_stats().entries
        cells = len(self._load._counts._cells)
        return [*near, cells, len(view.layouts), epochs, len(view.pins)]


def resident_kb(process: int) -> int:
    with suppress(OSError):
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize() // 1024
    return 0


def slopes(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Growth per hour of the last half: lower quartile, median, upper quartile of all pairs.

    The median of pairwise slopes (Theil and Sen) shrugs off single steps of the allocator.
    """
    half = points[len(points) // 2 :]
    found = [3600 * (y - x) / (t - s) for (s, x), (t, y) in combinations(half, 2)]
    low, middle, high = quantiles(found, n=4)
    return low, middle, high


def verdict(samples: Samples) -> bool:
    low, middle, high = slopes(samples.rss)
    print(f"resident memory: {samples.rss[0][1] / 1024:.1f} MB at first, ", end="")
    print(f"{samples.rss[-1][1] / 1024:.1f} MB in the end; over the last half it grows by ")
    print(f"{middle:+,.0f} KB an hour (half of all pairs say {low:+,.0f} to {high:+,.0f})")
    low, middle, high = slopes(samples.blocks)
    print(f"Python blocks: {middle:+,.0f} an hour ({low:+,.0f} to {high:+,.0f})")
    is_flat = slopes(samples.rss)[1] <= FLAT_KB_H
    print("flat" if is_flat else f"NOT flat: more than {FLAT_KB_H:,} KB an hour")
    return is_flat


def by_type() -> Counter[str]:
    return Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())


def print_growth(before: Counter[str], trace: tracemalloc.Snapshot | None) -> None:
    print("objects that grew in number since half-time:")
    for name, more in (by_type() - before).most_common(15):
        print(f"  {more:+8,} {name}")
    if trace is not None:
        print("lines that allocated more since half-time:")
        for line in tracemalloc.take_snapshot().compare_to(trace, "lineno")[:25]:
            print(f"  {line}")


@contextmanager
def running_parts() -> Iterator[tuple[str, RedisServer, dict[str, int]]]:
    """A DynamoDB engine and a Redis, and their processes. Both end with this one."""
    with RedisServer(append_only=True) as redis:
        port = free_port()
        store = f"dynamodb://messages?endpoint=http://127.0.0.1:{port}"
        command = [*HEATSINK, "dynamo", "--port", str(port)]
        engine = start_tied(command, redis.path, redis.path / "engine.log")
        try:
            create = [*HEATSINK, "table", "create", store]
            until(lambda: subprocess.run(create, capture_output=True, check=False).returncode == 0)
            assert redis._process is not None
            yield store, redis, {"engine": engine.pid, "redis": redis._process.pid}
        finally:
            engine.kill()
            engine.wait()


async def soak(minutes: float, file: Path, trace: bool, seed: int) -> bool:
    rules = BucketRules(bucket_units_s=BUCKET_UNITS_S, cool_down_s=2 * HOT_FOR_S)
    with running_parts() as (store, redis, others):
        options: dict[str, Any] = {"news": redis.url, "queue": redis.url, "rules": rules}
        options["reads"] = ReadSettings(capacity=CACHED)
        options["bulk"] = BulkSettings(partitions=2)  # idle partitions cost time, not memory
        async with connect(store, **options) as hs, hs.counters.buffered() as counts:
            load = Load(hs, counts, Random(seed))
            await load.fill()
            samples = Samples(file, hs, load, others)
            running = [asyncio.ensure_future(hs.worker(touch_actions()).run())]
            running += [asyncio.ensure_future(load.repeat(*step)) for step in load.steps().items()]
            try:
                await sample(samples, running, minutes, trace)
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
    return verdict(samples)


async def sample(
    samples: Samples, running: Sequence[asyncio.Future[None]], minutes: float, trace: bool
) -> None:
    start_s = monotonic()
    before, first = None, None
    while (now_s := monotonic()) < start_s + 60 * minutes:
        samples.take()
        if before is None and now_s > start_s + 30 * minutes:
            before = by_type()
            first = tracemalloc.take_snapshot() if trace else None
        done, _ = await asyncio.wait(running, timeout=SAMPLE_S, return_when="FIRST_COMPLETED")
        for ended in done:
            ended.result()
    samples.take()
    print_growth(before or Counter(), first)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev soak --memory", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=110.0)
    parser.add_argument("--samples", type=Path, default=Path("memory.csv"), metavar="FILE")
    parser.add_argument("--trace", action="store_true", help="find the lines; costs memory itself")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.trace:
        tracemalloc.start()
    os.nice(19)
    if not asyncio.run(soak(chosen.minutes, chosen.samples, chosen.trace, chosen.seed)):
        sys.exit(1)


if __name__ == "__main__":
    main()
