"""What `Tracker.record` costs on the hot path, beside a plain dict that counts.

Hot keys are few and recur; distinct keys come once each, so every one of them is admitted and all
are evicted in time. Loop, call and garbage collection are included. The dict has no lock, no
bytes, no alarm, and grows for ever. Keys are made beforehand and new in every round, as a server
meets them: their hash is computed on first use, by either contender.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from time import perf_counter

from heatsink.heat.count import CAPACITY, NO_KEYS, Tracker, thinned
from heatsink.heat.report import KEYS_MAX, ReportSettings

from .clients import BODY
from .harness import Bench, Scale, at_most, interleave

HOT_KEYS = 16
numbers = count()
Keys = Callable[[], list[str]]


def fresh_keys(how_many: int) -> list[str]:
    return [f"conversation-{next(numbers):012d}" for _ in range(how_many)]


def hot_keys(calls: int) -> list[str]:
    return fresh_keys(HOT_KEYS) * (calls // HOT_KEYS)


async def recorded(keys_of: Keys) -> float:
    keys, record, size = keys_of(), Tracker().record, len(BODY)
    started_s = perf_counter()
    for key in keys:
        record(key, 1, size)
    return (perf_counter() - started_s) / len(keys)


async def counted(keys_of: Keys) -> float:
    keys, counts = keys_of(), dict[str, int]()
    started_s = perf_counter()
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return (perf_counter() - started_s) / len(keys)


async def longest_call(keys_of: Keys) -> float:
    """The longest that one call holds the event loop up: one that evicts."""
    record, longest_s = Tracker().record, 0.0
    for key in keys_of():
        started_s = perf_counter()
        record(key, 1, 200)
        longest_s = max(longest_s, perf_counter() - started_s)
    return longest_s


async def window_end(keys_of: Keys) -> float:
    """What the reporter does in one go when a window ends, with the table full."""
    tracker, sampling = Tracker(rng=Random(1)), ReportSettings().sampling
    tracker.sample(sampling.tau, sampling.tau_reads, NO_KEYS)
    tracker.roll()
    for key in keys_of():
        tracker.record(key)
    started_s = perf_counter()
    thinned(tracker.roll().listed(NO_KEYS, tracker.rng), KEYS_MAX, tracker.rng)
    return perf_counter() - started_s


async def run(bench: Bench, scale: Scale) -> None:
    rounds, calls = scale(7, 31), scale(50_000, 200_000)
    cases = {"hot keys": (hot_keys, 0.7), "distinct keys": (fresh_keys, 2.5)}
    for name, (make, limit_us) in cases.items():
        keys_of = partial(make, calls)
        ours, plain = await interleave(
            rounds, partial(recorded, keys_of), partial(counted, keys_of)
        )
        bench.add(f"record, {name}", "µs", ours, at_most(limit_us), ("plain dict", plain))
    evicting, full = partial(fresh_keys, 5 * CAPACITY), partial(fresh_keys, 2 * CAPACITY)
    contenders = partial(longest_call, evicting), partial(window_end, full)
    longest, ends = await interleave(scale(5, 15), *contenders)
    bench.add("longest single record (it evicts)", "ms", longest)
    bench.add("end of a window, full table", "ms", ends)
