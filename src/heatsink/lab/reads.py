"""Reads of one hot product page: with a load for every read, or from a cache with shared loads."""

from __future__ import annotations

import asyncio
from bisect import bisect
from itertools import accumulate
from random import Random

import msgspec

from heatsink.reads import Reads
from heatsink.testing import SkewedClock

from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all, simulated
from .world import Saturating

READS_PER_S = 1_000
SECONDS = 20
SPIKE_S = 5
PRODUCTS = 1_000
HOT_SHARE = 0.7
LOAD_S = 0.05
FULL = 16
CASES = {"loaded each time": (0.0, 0.0), "kept for 0.1 s": (0.1, 1.0), "for 0.5 s": (0.5, 5.0)}
STORY = f"""\
{READS_PER_S:,} reads per second of {PRODUCTS:,} products, popular ones more often. From second
{SPIKE_S} on, {HOT_SHARE:.0%} of them are of one product. A load takes {LOAD_S * 1000:.0f} ms while
the database serves no more than {FULL} at a time, and longer beyond that.

All concurrent readers share one load, and the result is cached. It is fresh for a moment. After
that it is served stale, for up to ten times as long, while it is loaded again."""


class ReadsRun(msgspec.Struct, frozen=True):
    case: str
    loads: list[int]
    waits_s: list[float]
    late: int

    def share(self, part: float) -> float:
        return self.waits_s[min(int(len(self.waits_s) * part), len(self.waits_s) - 1)]


class Shop:
    """Readers of products, a database that saturates, and a cache between them."""

    def __init__(self, case: str, seed: int) -> None:
        self.clock = SkewedClock()
        self.loads = [0] * SECONDS
        self.waits_s: list[float] = []
        self._case = case
        self._chance = Random(seed)
        self._database = Saturating(self.clock, LOAD_S, FULL)
        self._reads = Reads(clock=self.clock, rng=Random(seed))
        self._popular = list(accumulate(1 / rank for rank in range(1, PRODUCTS + 1)))

    def product(self, second: float) -> str:
        if second >= SPIKE_S and self._chance.random() < HOT_SHARE:
            return "product:hot"
        place = bisect(self._popular, self._chance.uniform(0, self._popular[-1]))
        return f"product:{place}"

    async def load(self) -> str:
        second = int(self.clock.monotonic_s() - self.began_s)
        self.loads[min(second, SECONDS - 1)] += 1
        await self._database.call()
        return "a page"

    async def look(self, product: str) -> None:
        asked_s = self.clock.monotonic_s()
        fresh_s, stale_s = CASES[self._case]
        if fresh_s:
            await self._reads.get(product, self.load, fresh_for=fresh_s, stale_for=stale_s)
        else:
            await self.load()
        self.waits_s.append(self.clock.monotonic_s() - asked_s)

    async def open(self, reads_per_s: int) -> ReadsRun:
        self.began_s = self.clock.monotonic_s()
        looks = []
        for number in range(reads_per_s * SECONDS):
            product = self.product(number / reads_per_s)
            looks.append(asyncio.ensure_future(self.look(product)))
            await self.clock.sleep(1 / reads_per_s)
        in_time = len(self.waits_s)
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        return ReadsRun(self._case, self.loads, sorted(self.waits_s), len(looks) - in_time)


async def one_run(case: str, reads_per_s: int, seed: int) -> ReadsRun:
    return await Shop(case, seed).open(reads_per_s)


def experiment(reads_per_s: int = READS_PER_S, seed: int = 1) -> LabReport:
    runs = run_all([simulated(one_run, case, reads_per_s, seed) for case in CASES])
    each, _, near = runs
    return LabReport(
        name="reads",
        title=f"Hot reads: one of {PRODUCTS:,} products gets most of the reads",
        story=STORY,
        figures=[
            Figure("loads, no cache", f"{sum(each.loads):,}", f"{each.late:,} never answered"),
            Figure("loads, near cache", f"{sum(near.loads):,}", f"{near.late:,} never answered"),
            Figure("a page, near cache", f"{near.share(0.5) * 1000:.1f} ms", "the median"),
        ],
        tables=[_table(runs)],
        charts=[
            Chart("Loads at the database", "per second", [_line(r, n) for n, r in enumerate(runs)])
        ],
    )


def _table(runs: list[ReadsRun]) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            run.case,
            sum(run.loads),
            round(run.share(0.5) * 1000),
            round(run.share(0.99) * 1000),
            run.late,
        ]
        for run in runs
    ]
    columns = ["a page", "loads", "median, ms", "p99, ms", "not answered in time"]
    return ReportTable(f"{SECONDS} seconds", columns, rows)


def _line(run: ReadsRun, colour: int) -> Series:
    seconds = [float(second) for second in range(SECONDS)]
    return Series(run.case, seconds, [float(count) for count in run.loads], colour=colour)
