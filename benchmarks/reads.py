"""A cached hit beside other caches of the asyncio world, and how few loads a small cache needs.

All of them run in one process and take turns, in an environment of their own (`caches.txt`): ours
is put there by its path. A hit is one of 16 hot keys, already kept and valid for long. `get` is
the plain call of each; async-lru has only a decorator, so both are compared with that. The
bare gets of cachebox (Rust: a lookup and a clock) and theine (TinyLFU) load nothing and await
nothing: they are the floor.

The trace is skewed (Zipf, exponent 1) over 100,000 keys, of which 1 % fit, and the hot spot moves
on by 500 keys every 20,000 reads. What was not kept is loaded; each sample is another trace.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from .environments import TOOLS
from .harness import Bench, Scale, Target, at_most, interleave, ratio_at_most

REQUIREMENTS = Path(__file__).with_name("caches.txt")
ENVIRONMENT = TOOLS / "caches-venv"
SOURCE = Path(__file__).resolve().parents[1] / "src"
PROGRAM = """
import asyncio, json, sys
from collections import OrderedDict
from itertools import accumulate, islice
from random import Random
from time import perf_counter
import aiocache, cachebox, cashews, theine
from async_lru import alru_cache
from heatsink.reads import BlockingReads, Reads, ReadSettings

LONG_S, IDS, KEYS, READS, FIT = 600, list(range(16)), 100_000, 100_000, 1_000
names = {id: f"product:{id}" for id in IDS}

async def product(id): return {"id": id}
async def load(): return {"id": 1}

reads, threads = Reads(), BlockingReads()
ours = reads.cached(key="product:{id}", fresh_for=LONG_S, stale_for=LONG_S)(product)
lru = alru_cache(maxsize=1_000, ttl=LONG_S)(product)
waves = cashews.Cache(); waves.setup("mem://")
waves_product = waves(ttl=LONG_S, key="product:{id}")(product)
aio = aiocache.SimpleMemoryCache()
aio_product = aiocache.cached(ttl=LONG_S, key_builder=lambda f, id: f"product:{id}")(product)
box, tiny = cachebox.TTLCache(1_000, LONG_S), theine.Cache(1_000)

async def get(keys):
    for key in keys: await reads.get(key, load, fresh_for=LONG_S, stale_for=LONG_S)
async def get_in_thread(keys):
    for key in keys: threads.get(key, dict, fresh_for=LONG_S, stale_for=LONG_S)
async def get_cashews(keys):
    for key in keys: await waves.get(key)
async def get_aiocache(keys):
    for key in keys: await aio.get(key)
async def get_cachebox(keys):
    for key in keys: box.get(key)
async def get_theine(keys):
    for key in keys: tiny.get(key)
def called(function):
    async def call(ids):
        for id in ids: await function(id)
    return call

HITS = {
    "get": get, "blocking": get_in_thread, "cashews.get": get_cashews,
    "aiocache.get": get_aiocache, "cachebox": get_cachebox, "theine": get_theine,
    "cached": called(ours), "async-lru": called(lru), "cashews": called(waves_product),
    "aiocache": called(aio_product),
}
BY_ID = {"cached", "async-lru", "cashews", "aiocache"}

async def prepare():
    for id, key in names.items():
        await reads.get(key, load, fresh_for=LONG_S, stale_for=LONG_S)
        await waves.set(key, 1, expire=LONG_S)
        await aio.set(key, 1, ttl=LONG_S)
        threads.get(key, dict, fresh_for=LONG_S, stale_for=LONG_S)
        box[key] = 1
        tiny.set(key, 1)
        for name in BY_ID: await HITS[name]([id])

async def hit(name, calls):
    wanted = (IDS if name in BY_ID else list(names.values())) * (calls // len(IDS))
    started_s = perf_counter()
    await HITS[name](wanted)
    return (perf_counter() - started_s) / len(wanted)

def trace(seed):
    weights = list(accumulate(1 / rank for rank in range(1, KEYS + 1)))
    ranks = Random(seed).choices(range(KEYS), cum_weights=weights, k=READS)
    return [f"product:{(rank + read // 20_000 * 500) % KEYS}" for read, rank in enumerate(ranks)]

async def loads_of_ours(keys):
    cache = Reads(ReadSettings(capacity=FIT))
    for key in keys: await cache.get(key, load, fresh_for=LONG_S, stale_for=LONG_S)
    return cache.stats().loads
async def loads_of_lru(keys):
    kept, loads = OrderedDict(), 0
    for key in keys:
        if key in kept: kept.move_to_end(key); continue
        loads += 1
        kept[key] = 1
        if len(kept) > FIT: kept.popitem(last=False)
    return loads
async def loads_of_theine(keys):
    cache, loads = theine.Cache(FIT), 0
    for key in keys:
        if not cache.get(key)[1]: loads += 1; cache.set(key, 1)
    cache.close()
    return loads
LOADS = {"ours": loads_of_ours, "LRU": loads_of_lru, "theine": loads_of_theine}

async def main():
    await prepare()
    for line in sys.stdin:
        what, name, number = line.split("|")
        answer = hit(name, int(number)) if what == "hit" else LOADS[name](trace(int(number)))
        print(json.dumps(await answer), flush=True)

asyncio.run(main())
"""
HITS: dict[str, tuple[tuple[str, Target | None], ...]] = {
    "get": (
        ("cashews.get", ratio_at_most(0.2)),
        ("aiocache.get", ratio_at_most(0.2)),
        ("async-lru", ratio_at_most(1.0)),
        ("cachebox", None),
        ("theine", None),
    ),
    "cached": (
        ("cashews", ratio_at_most(0.2)),
        ("aiocache", ratio_at_most(0.2)),
        ("async-lru", ratio_at_most(1.0)),
    ),
    "blocking": (("cachebox", None), ("theine", None)),
}
TITLES = {
    "get": "await get, a hit",
    "cached": "decorated call, a hit",
    "blocking": "blocking get, a hit",
}


def get_caches() -> Path | None:
    """Their Python, made the first time; None if they cannot be had here."""
    python, made_from = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "made-from"
    wanted = REQUIREMENTS.read_text()
    if made_from.exists() and made_from.read_text() == wanted:
        return python
    uv = str(TOOLS / "bin" / "uv")
    make = [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(ENVIRONMENT)]
    install = [uv, "pip", "install", "--quiet", "--require-hashes", "--python", str(python)]
    try:
        for command in (make, [*install, "-r", str(REQUIREMENTS)]):
            subprocess.run(command, check=True)  # noqa: S603  the commands are the ones above
    except (OSError, subprocess.CalledProcessError):
        return None
    made_from.write_text(wanted)
    return python


@contextmanager
def caches_process(python: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(  # noqa: S603  the program is the one above
        [str(python), "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        yield process  # the end of its input ends it


async def ask(process: subprocess.Popen[str], what: str, name: str, number: int) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{what}|{name}|{number}\n")
    process.stdin.flush()
    return float(json.loads(await asyncio.to_thread(process.stdout.readline)))


async def compare_hits(bench: Bench, scale: Scale, process: subprocess.Popen[str]) -> None:
    names = list(
        dict.fromkeys([*HITS, *(other for others in HITS.values() for other, _ in others)])
    )
    slow = {"cashews", "aiocache", "cashews.get", "aiocache.get"}
    turns = [
        partial(
            ask, process, "hit", name, scale(800, 1_600) if name in slow else scale(8_000, 32_000)
        )
        for name in names
    ]
    samples = dict(zip(names, await interleave(scale(7, 31), *turns), strict=True))
    bench.add(TITLES["get"], "µs", samples["get"], at_most(1.0))
    for ours, others in HITS.items():
        for other, target in others:
            bench.add(TITLES[ours], "µs", samples[ours], target, (other, samples[other]))


async def compare_loads(bench: Bench, scale: Scale, process: subprocess.Popen[str]) -> None:
    loads: dict[str, list[float]] = {"ours": [], "LRU": [], "theine": []}
    for seed in range(scale(2, 7)):
        for name, counted in loads.items():
            counted.append(await ask(process, "loads", name, seed))
    for other in ("LRU", "theine"):
        target = ratio_at_most(1.0)
        bench.add("loads per 100,000 reads", "", loads["ours"], target, (other, loads[other]))


async def run(bench: Bench, scale: Scale) -> None:
    python = get_caches()
    if python is None:
        print(" the other caches cannot be had here", end="", file=sys.stderr)
        return
    with caches_process(python) as process:
        await compare_hits(bench, scale, process)
        await compare_loads(bench, scale, process)
