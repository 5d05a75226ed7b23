"""One conversation goes viral. It is kept in one bucket, or Heatsink spreads it over several.

The experiment also measures what buckets cost readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from math import ceil
from random import Random

import msgspec

from heatsink.client.heatsink import Heatsink
from heatsink.client.settings import Settings
from heatsink.errors import Retryable, Throttled
from heatsink.heat.heat import KeyHeat, WindowHeat
from heatsink.registry.layouts import COLD
from heatsink.spread.backoff import Retries
from heatsink.spread.policy import BucketPolicy, BucketRules, KeyObservation
from heatsink.spread.store import Answer, Ask, LogStore, Row
from heatsink.stores.memory import memory_stores
from heatsink.stores.throttled import PartitionLimit, throttled
from heatsink.testing import SkewedClock, run_on_virtual_time

from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all, simulated

PEAK_S = 4_000
LIMIT_SHARE = 0.25  # one partition's limit as a share of the peak
FILL = 0.8
GROWTH = 1.2
TOP_S, FADE_S, CALM_S = 10, 6, 18
COOL_DOWN_S = 5.0
RETRIES = Retries(first_s=0.2, longest_s=1.0, deadline_s=2.0)
TICK_S = 0.01
PAGE = 50
PAGES = 40
ROWS = 3_000
BUCKETS = (1, 2, 4, 8, 16, 32, 64)
KEY = "chat"
CASES = {"one bucket": False, "Heatsink": True}
PHASES = (200, 900, 2_200, 4_000, 100)  # writes a second, as in the text on a growing N
PHASE_S, RAMP_S, PHASES_COOL_DOWN_S = 60, 10, 60.0


STORY = f"""\
A conversation with few messages goes viral: its rate grows by 20 % every second, up to what four
partitions accept. Writers retry for {RETRIES.deadline_s:g} s and then give up.

With one bucket, everything above the partition's limit is throttled. Heatsink sees the rate rise
and adds buckets before they are needed; some time after the rush it goes back to one.

Buckets do not make writes more expensive, but reads: a page of {PAGE} must query each of them."""


class HotKeySecond(msgspec.Struct):
    offered: int = 0
    acknowledged: int = 0
    refused: int = 0
    given_up: int = 0
    buckets: int = 1


class HotKeyRun(msgspec.Struct, frozen=True):
    """The result of one case; `found` is the number of rows that were read back at the end."""

    case: str
    seconds: list[HotKeySecond]
    found: int

    def total(self, field: str) -> int:
        return sum(getattr(second, field) for second in self.seconds)


class PageCost(msgspec.Struct, frozen=True):
    """The average cost of a page of a log with `buckets` buckets: its queries and the rows read."""

    buckets: int
    queries: float
    rows: float


class WatchedLog:
    """A log store that counts refused writes, queries, and the rows that queries return."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.refused = self.queries = self.rows = 0
        self.get, self.delete = store.get, store.delete
        self.erase, self.scan = store.erase, store.scan

    def put(self, partition: str, row: Row) -> Awaitable[Row | None]:
        try:
            return self._store.put(partition, row)
        except Throttled:
            self.refused += 1
            raise

    async def query(self, partition: str, ask: Ask) -> Answer:
        answer = await self._store.query(partition, ask)
        self.queries += 1
        self.rows += len(answer.rows)
        return answer


def offered(peak_s: int) -> list[int]:
    """Return the number of writes in each second.

    The rate of a quiet chat grows by 20 % every second up to `peak_s`, stays there, and calms down.
    """
    quiet = peak_s / 20
    rising = [quiet] * 4
    while rising[-1] * GROWTH < peak_s:
        rising.append(rising[-1] * GROWTH)
    fading = accumulate([0.6] * FADE_S, lambda rate, share: rate * share, initial=float(peak_s))
    return [round(rate) for rate in [*rising, *[peak_s] * TOP_S, *fading, *[quiet / 2] * CALM_S]]


class WritingCrowd:
    def __init__(self, case: str, peak_s: int, seed: int) -> None:
        self.clock = SkewedClock()
        limit_s = peak_s * LIMIT_SHARE
        stores = throttled(memory_stores(self.clock), PartitionLimit(writes_s=limit_s), self.clock)
        self._log = WatchedLog(stores.log)
        rules = BucketRules(bucket_units_s=int(limit_s * FILL), cool_down_s=COOL_DOWN_S)
        spreads = CASES[case]  # without a leader, rules have no effect
        settings = Settings(
            rules=rules if spreads else BucketRules(), retries=RETRIES, coordinate=spreads
        )
        self._client = Heatsink(replace(stores, log=self._log), settings, self.clock, Random(seed))
        self._plan = offered(peak_s)
        self.case = case
        self.seconds = [HotKeySecond() for _ in self._plan]

    async def _write(self, hs: Heatsink) -> None:
        try:
            await hs.log.append(KEY, b"hello")
        except Retryable:
            self._now.given_up += 1
        else:
            self._now.acknowledged += 1

    async def play(self) -> HotKeyRun:
        async with self._client as hs:
            async with asyncio.TaskGroup() as writes:
                for second, count in zip(self.seconds, self._plan, strict=True):
                    self._now = second
                    await self._offer(hs, writes, count)
            return HotKeyRun(self.case, self.seconds, await _count(hs))

    async def _offer(self, hs: Heatsink, writes: asyncio.TaskGroup, count: int) -> None:
        """Start `count` writes within a second, not waiting for earlier ones, as a crowd does."""
        refused, ticks = self._log.refused, round(1 / TICK_S)
        for tick in range(ticks):
            for _ in range(count * tick // ticks, count * (tick + 1) // ticks):
                writes.create_task(self._write(hs))
            await self.clock.sleep(TICK_S)
        self._now.offered = count
        self._now.refused = self._log.refused - refused
        self._now.buckets = (await hs.explain(KEY)).buckets


async def _count(hs: Heatsink) -> int:
    found, cursor = 0, None
    while True:
        page = await hs.log.page(KEY, limit=1_000, cursor=cursor)
        found, cursor = found + len(page.entries), page.cursor
        if cursor is None:
            return found


def one_run(case: str, peak_s: int, seed: int) -> HotKeyRun:
    async def play() -> HotKeyRun:
        return await WritingCrowd(case, peak_s, seed).play()

    return run_on_virtual_time(play())


async def page_cost(buckets: int, seed: int) -> PageCost:
    """Read pages that begin anywhere in a log with `buckets` buckets. Return their average cost."""
    clock, chance = SkewedClock(), Random(seed)
    stores = memory_stores(clock)
    log = WatchedLog(stores.log)
    async with Heatsink(replace(stores, log=log), Settings(), clock, Random(seed)) as hs:
        await hs.pin(KEY, buckets=buckets, reason="to measure its cost")
        await clock.sleep(2.0)
        ids = [(await hs.log.append(KEY, b"hello")).id for _ in range(ROWS)]
        log.queries = log.rows = 0
        for before in chance.choices(ids[2 * PAGE :], k=PAGES):
            await hs.log.page(KEY, limit=PAGE, before=before)
    return PageCost(buckets, log.queries / PAGES, log.rows / PAGES)


def phases() -> list[float]:
    """Return the writes in each second of five phases, with a ramp between two of them."""
    rates: list[float] = []
    for level, following in pairwise(PHASES):
        rates += [level] * PHASE_S
        rates += [level + (following - level) * n / RAMP_S for n in range(1, RAMP_S)]
    return [*rates, *[PHASES[-1]] * 4 * PHASE_S]


def buckets_in(rates: list[float], rules: BucketRules) -> list[int]:
    """Return how many buckets the policy gives a key in each second, for these write rates."""
    policy, layout, found = BucketPolicy(rules), COLD, []
    for second, rate in enumerate(rates, 1):
        heat = KeyHeat(rate, rate, 0.0, 0.0, 0.0)
        window = WindowHeat(second, second, True, {KEY: heat}, 0.0)
        seen = KeyObservation([window], {KEY: layout}, {})
        for decision in policy.decide(seen):
            layout = layout.then(second * 1000 + 500, decision.value or 1)
        found.append(layout.buckets)
    return found


def _phases_chart() -> Chart:
    rates, rules = phases(), BucketRules(cool_down_s=PHASES_COOL_DOWN_S)
    needed = [ceil(rate / rules.bucket_units_s) for rate in rates]
    lines = {
        "Heatsink": (buckets_in(rates, rules), "step"),
        "rate / 800": (needed, "dot"),
        "rate / 800, never fewer": (list(accumulate(needed, max)), "step"),
    }
    seconds = [float(second) for second in range(len(rates))]
    return Chart(
        "Buckets at 200, 900, 2,200, 4,000 and 100 writes a second",
        "buckets",
        [
            Series(name, seconds, list(map(float, values)), style, colour)
            for colour, (name, (values, style)) in enumerate(lines.items())
        ],
        note="A minute each. Buckets for a forecast go within 30 s after the rate levelled off.",
    )


def experiment(peak_s: int = PEAK_S, seed: int = 1) -> LabReport:
    wanted = [partial(one_run, case, peak_s, seed) for case in CASES]
    plain, spread, *costs = run_all(
        [*wanted, *(simulated(page_cost, buckets, seed) for buckets in BUCKETS)]
    )
    return LabReport(
        name="hot-key",
        title=f"A hot key: {peak_s:,} writes a second",
        story=STORY,
        figures=[
            Figure("given up, one bucket", f"{plain.total('given_up'):,}", "writes"),
            Figure("given up, Heatsink", f"{spread.total('given_up'):,}", "writes"),
            Figure("buckets at most", str(max(second.buckets for second in spread.seconds))),
        ],
        tables=[_table([plain, spread]), _cost_table(costs)],
        charts=[
            *_run_charts(plain, spread, peak_s * LIMIT_SHARE),
            _phases_chart(),
            *_cost_charts(costs),
        ],
    )


def _table(runs: list[HotKeyRun]) -> ReportTable:
    fields = ["offered", "acknowledged", "refused", "given_up"]
    rows: list[list[Cell]] = [
        [run.case, *(run.total(field) for field in fields), run.found] for run in runs
    ]
    columns = ["case", "offered", "acknowledged", "refusals", "given up", "found"]
    note = "A write may be refused more than once. Found: rows that were read back at the end."
    return ReportTable("The whole run", columns, rows, note)


def _cost_table(costs: list[PageCost]) -> ReportTable:
    rows: list[list[Cell]] = [
        [cost.buckets, round(cost.queries, 1), round(cost.rows), cost.buckets * PAGE]
        for cost in costs
    ]
    columns = ["buckets", "queries", "rows read", f"if each is asked for {PAGE}"]
    return ReportTable(f"What a page of {PAGE} costs", columns, rows)


def _run_charts(plain: HotKeyRun, spread: HotKeyRun, limit_s: float) -> list[Chart]:
    end = float(len(plain.seconds) - 1)
    limit = Series("limit of one partition", [0.0, end], [limit_s, limit_s], "dot", 2)
    wanted = _line("offered", plain, "offered", 4, "fill")
    return [
        Chart(
            "Writes acknowledged",
            "writes a second",
            [
                wanted,
                limit,
                _line("one bucket", plain, "acknowledged", 1),
                _line("Heatsink", spread, "acknowledged", 0),
            ],
        ),
        Chart(
            "Throttled writes",
            "a second",
            [
                _line("one bucket", plain, "refused", 1),
                _line("Heatsink", spread, "refused", 0),
            ],
        ),
        Chart("Buckets", "buckets", [_line("Heatsink", spread, "buckets", 0, "step")]),
    ]


def _line(name: str, run: HotKeyRun, field: str, colour: int, style: str = "plain") -> Series:
    seconds = [float(second) for second in range(len(run.seconds))]
    values = [float(getattr(second, field)) for second in run.seconds]
    return Series(name, seconds, values, style, colour)


def _cost_charts(costs: list[PageCost]) -> list[Chart]:
    buckets = [str(cost.buckets) for cost in costs]
    each = [float(cost.buckets * PAGE) for cost in costs]
    rows = Series("Heatsink", buckets, [round(cost.rows, 1) for cost in costs], colour=0)
    naive = Series(f"asking each bucket for {PAGE}", buckets, each, colour=1)
    title = f"Rows read for a page of {PAGE}"
    return [Chart(title, "rows", [rows, naive], "buckets", "bars", log=True)]
