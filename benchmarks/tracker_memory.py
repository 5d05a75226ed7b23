"""What the tracker keeps of ten million distinct keys, and whether it finds the hot ones.

Nine records in ten are of a key never seen before; the tenth is of one of nine hot keys, in fixed
proportions, so what each had in a window is known exactly. With windows, the tracker is rolled once
per second of measured time, as a server does; without, it has to do with one window for all.
What may go unreported of a key is at most the window's records divided by the tracker's capacity,
or the floor. A hot key above that counts as found if it is reported with a count that is right
within its error. Measured in a process of its own: growth of resident memory, and allocations at
their peak.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import count
from time import perf_counter

import msgspec

from heatsink.heat.count import CAPACITY, ERROR_MAX, NO_KEYS, Tracker, thinned
from heatsink.heat.heat import Heat
from heatsink.heat.report import KEYS_MAX

from .harness import Bench, Scale, at_least, at_most
from .memory import apart, resident_bytes

BLOCK = 1_000
HOT_SHARES = {f"hot-{weight}": weight for weight in (1, 2, 3, 4, 5, 10, 15, 25, 35)}
WINDOW_S = 1.0
MEGABYTES_MAX = 16


class Outcome(msgspec.Struct):
    per_record_s: float
    resident_bytes: int
    hot: int = 0
    found: int = 0
    bound_used: float = 0.0


def blocks(distinct: int) -> Iterator[list[str]]:
    """Keys to record, until so many were new: in each thousand, a hundred of the hot ones."""
    hot = [key for key, weight in HOT_SHARES.items() for _ in range(weight)]
    new, numbers = BLOCK - len(hot), count()
    for _ in range(-(-distinct // new)):
        yield [f"conversation-{next(numbers):012d}" for _ in range(new)] + hot


def judge(tracker: Tracker, recorded_blocks: int, outcome: Outcome) -> None:
    """End the window and compare what would be reported with what is known."""
    top = tracker.roll()
    reported, tau = thinned(top.listed(NO_KEYS, tracker.rng), KEYS_MAX, tracker.rng)
    truth = {key: weight * recorded_blocks for key, weight in HOT_SHARES.items()}
    least = max(tau, top.tau, round(top.floor / ERROR_MAX))
    above = {key: writes for key, writes in truth.items() if writes > least}
    allowed = max(recorded_blocks * BLOCK / CAPACITY, 1)
    outcome.bound_used = max(outcome.bound_used, top.floor / allowed)
    outcome.hot += len(above)
    outcome.found += sum(_is_right(reported.get(key), writes) for key, writes in above.items())


def _is_right(heat: Heat | None, writes: int) -> bool:
    return heat is not None and heat.writes <= writes <= heat.writes + heat.error


def follow(distinct: int, windows: bool) -> Outcome:
    tracker, before = Tracker(), resident_bytes()
    outcome = Outcome(0.0, 0)
    started_s = window_s = perf_counter()
    in_window = recorded = 0
    for block in blocks(distinct):
        for key in block:
            tracker.record(key, 1, 200)
        in_window += 1
        recorded += BLOCK
        if windows and perf_counter() - window_s >= WINDOW_S:
            judge(tracker, in_window, outcome)
            window_s, in_window = perf_counter(), 0
        outcome.resident_bytes = max(outcome.resident_bytes, resident_bytes() - before)
    judge(tracker, in_window, outcome)
    outcome.per_record_s = (perf_counter() - started_s) / recorded
    return outcome


def traced_peak(distinct: int) -> int:
    """Allocations at their highest, also inside an eviction. Tracing is slow, so of fewer keys."""
    tracemalloc.start()
    tracker = Tracker()
    for block in blocks(distinct):
        for key in block:
            tracker.record(key, 1, 200)
    return tracemalloc.get_traced_memory()[1]


async def run(bench: Bench, scale: Scale) -> None:
    distinct = scale(1_000_000, 10_000_000)
    for name, windows in {"windows of 1 s": True, "one window": False}.items():
        outcome = apart(follow, distinct, windows)
        megabytes = outcome.resident_bytes / 1e6
        at = f"{distinct // 1_000_000} M keys, {name}"
        bench.add(f"resident memory, {at}", "MB", [megabytes], at_most(MEGABYTES_MAX))
        found = [float(outcome.found)]
        bench.add(f"hot keys found, {at}", f"of {outcome.hot}", found, at_least(outcome.hot))
        bench.add(f"unreported, {at}", "of its bound", [outcome.bound_used], at_most(1.0))
        bench.add(f"record and key, {at}", "µs", [outcome.per_record_s])
    peak = apart(traced_peak, scale(100_000, 500_000)) / 1e6
    bench.add("allocations at their peak", "MB", [peak], at_most(MEGABYTES_MAX))
