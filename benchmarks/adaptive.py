"""What a request costs the model of adaptive partitions, beside two bare token buckets.

`heatsink plan` charges millions of requests, and the engine every one of its own. The alternative
knows fixed partitions and nothing of heat: a lookup, and the buckets of a partition and a table.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from random import Random
from time import perf_counter

from heatsink.emulator.capacity.limits import LEAST_WRITE, Bucket, SplitSettings, TableCapacity
from heatsink.emulator.capacity.table import SPACE, AdaptiveTable

from .harness import Bench, Scale, at_most, interleave

PARTITIONS = 16
KEYS = 10_000
PER_S = 20_000
CAPACITY = TableCapacity(writes=30_000.0, reads=30_000.0)


def keys(requests: int) -> list[int]:
    """A few keys get most of the requests."""
    rng = Random(1)
    hashes = [rng.getrandbits(64) for _ in range(KEYS)]
    return [hashes[int(KEYS * rng.random() ** 3)] for _ in range(requests)]


async def adaptive(charged: list[int]) -> float:
    """With a review every second, and the splits that the load leads to."""
    settings = SplitSettings(split_after_s=1.0, cool_down_s=1.0)
    table = AdaptiveTable(settings, CAPACITY, PARTITIONS, 0.0)
    charge, second = table.charge, 1.0
    started_s = perf_counter()
    for number, key in enumerate(charged):
        now_s = number / PER_S
        if now_s >= second:
            table.review(now_s)
            second += 1.0
        charge(key, 1.0, 0.0, now_s)
    return (perf_counter() - started_s) / len(charged)


async def bare(charged: list[int]) -> float:
    starts = [number * SPACE // PARTITIONS for number in range(PARTITIONS)]
    buckets = [Bucket(1_000.0, 1.0, 0.0, LEAST_WRITE) for _ in starts]
    table = Bucket(30_000.0, 1.0, 0.0, LEAST_WRITE)
    started_s = perf_counter()
    for number, key in enumerate(charged):
        now_s = number / PER_S
        bucket = buckets[bisect_right(starts, key) - 1]
        if table.lets_pass(now_s) and bucket.lets_pass(now_s):
            table.level -= 1.0
            bucket.level -= 1.0
    return (perf_counter() - started_s) / len(charged)


async def run(bench: Bench, scale: Scale) -> None:
    charged = keys(scale(100_000, 1_000_000))
    ours, plain = await interleave(scale(5, 9), partial(adaptive, charged), partial(bare, charged))
    bench.add("charge", "µs", ours, at_most(10), ("µs bare buckets", plain))
