"""`heatsink bench`: measures how fast a store is through Heatsink, and when called directly.

Heatsink and the directly called store (the *bare store*) get the same calls under equal conditions:
in each round both are measured, one after the other. The measurement of one of them is a *turn*.
The difference is Heatsink's overhead.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import click
import msgspec
from rich.console import Console
from rich.table import Table

from heatsink.client import Heatsink, connect
from heatsink.client.urls import open_stores
from heatsink.errors import InvalidSetting, Retryable, Unavailable
from heatsink.primitives.chance import fresh_random
from heatsink.primitives.clock import Clock, SystemClock, now_ms
from heatsink.primitives.cut import Cut
from heatsink.primitives.ids import COUNTER_BITS, IdScheme, Snowflake
from heatsink.primitives.words import counted
from heatsink.server.commands.configuration import Number, WholeRange, json_option
from heatsink.server.commands.coordinator import ids_of
from heatsink.server.commands.progress import progress_bar
from heatsink.spread.store import Ask, Row
from heatsink.stores.stores import Stores

BODY = b"x" * 200
KEYS = 64  # enough that no key gets hot
PAGE = 50
ROUNDS = 5  # fewer if a call takes longer than a turn
ROUND_FITS = 0.9
TURN_S_MIN = 0.25
SETTLE_S = 1.0
REFUSED_PAUSE_S = 0.02
CLEAN_UP_S = 60.0
BRIEFLY_S = 1.5  # to erase rows after Ctrl-C, or in a store that does not answer any more
CLEAN_UP_PAUSE_S = 0.5
ERASED_AT_ONCE = 32
Call = Callable[[], Awaitable[object]]
Erase = Callable[[str], Awaitable[object]]
CAPTION = (
    "“of it” is the median of the rounds' ratios (both run in each round, in turns), "
    "not the ratio of the medians shown."
)


class Line(msgspec.Struct, frozen=True):
    """Results of one kind of call. Rates are medians over the rounds.

    `ratio` is the median of all rounds' ratios: Heatsink's rate in a round, divided by the bare
    store's rate in the same round. The two turns of a round run under the same conditions, so
    `ratio` is more exact than the ratio of the two medians, and may differ from it. Rates leave out
    refused calls and calls that timed out, which are counted separately. A figure is None if it
    needs a successful call and there was none.
    """

    what: str
    per_s: float
    p50_ms: float | None
    p99_ms: float | None
    bare_per_s: float
    ratio: float | None
    refused: int
    bare_refused: int
    unanswered: int = 0
    bare_unanswered: int = 0


@dataclass(frozen=True)
class BenchPlan:
    """The plan of a benchmark: `seconds` is its whole duration, `at_once` the concurrent calls."""

    seconds: float = 12.0
    at_once: int = 32

    @property
    def turns(self) -> int:
        return len(KINDS) * 2 * ROUNDS

    @property
    def kind_s(self) -> float:
        return self.seconds / len(KINDS)

    @property
    def turn_s(self) -> float:
        return self.seconds / self.turns

    @property
    def longest_turn_s(self) -> float:
        """Seconds after which a turn stops waiting for answers.

        This is three quarters of `kind_s`, the time for all turns of one kind of call, but at least
        TURN_S_MIN.
        """
        return max(self.kind_s / 2 * 1.5, TURN_S_MIN)


@dataclass
class Samples:
    times_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    refused: int = 0
    unanswered: int = 0
    lost: Unavailable | None = None
    """The last call's error, if the store could not be reached."""


class Contest:
    """Makes the same calls through Heatsink and directly on the store, on keys of its own."""

    def __init__(self, hs: Heatsink, stores: Stores, ids: IdScheme, clock: Clock, name: str):
        self._hs = hs
        self._stores = stores
        self._ids = ids
        self._clock = clock
        self._turn = count()
        self._name = name
        self._writes: Counter[str] = Counter()
        self.keys = [f"bench:{name}:{number}" for number in range(KEYS)]
        self.partitions = [f"bench:{name}:bare:{number}" for number in range(KEYS)]

    def append(self) -> Awaitable[object]:
        return self._hs.log.append(self._to_write(self.keys), BODY)

    def put(self) -> Awaitable[object]:
        row = Row(self._raw(), BODY, 0, 1)
        return self._stores.log.put(self._to_write(self.partitions), row)

    def page(self) -> Awaitable[object]:
        return self._hs.log.page(self.keys[next(self._turn) % KEYS], limit=PAGE)

    def query(self) -> Awaitable[object]:
        ask = Ask(None, None, PAGE + 1, newest_first=True)
        return self._stores.log.query(self.partitions[next(self._turn) % KEYS], ask)

    def add(self) -> Awaitable[object]:
        return self._hs.counters.add(self._to_write(self.keys))

    def add_bare(self) -> Awaitable[object]:
        partition = self._to_write(self.partitions)
        return self._stores.counters.add(partition, self._raw(), now_ms(self._clock), 1)

    def _to_write(self, names: list[str]) -> str:
        name = names[next(self._turn) % KEYS]
        self._writes[name] += 1
        return name

    def _raw(self) -> bytes:
        number = next(self._turn) % (1 << COUNTER_BITS)
        return self._ids.from_parts(now_ms(self._clock), number, 0)

    async def clean_up(self, patience_s: float = CLEAN_UP_S) -> None:
        """Erase all rows of this run, and retry while the store refuses.

        After `patience_s` seconds this raises `Unavailable`, which says how many rows may be left
        and under which keys.
        """
        deadline_s = self._clock.monotonic_s() + patience_s
        cut = Cut(self._clock, "the store did not erase all rows in time")
        todo: list[tuple[Erase, str]] = [(self._hs.log.erase, key) for key in self.keys]
        todo += [(self._stores.log.erase, partition) for partition in self.partitions]
        left: list[tuple[str, Retryable]] = []

        async def work() -> None:
            while todo:
                erase, name = todo.pop()
                try:
                    await self._insist(erase, name, cut, deadline_s)
                except Retryable as refusal:
                    left.append((name, refusal))

        await asyncio.gather(*(work() for _ in range(ERASED_AT_ONCE)))
        if left:
            raise self._left([name for name, _ in left], left[0][1])

    async def _insist(self, erase: Erase, name: str, cut: Cut, deadline_s: float) -> None:
        while True:
            try:
                with cut(deadline_s):
                    await erase(name)
                return
            except Retryable:
                if self._clock.monotonic_s() + CLEAN_UP_PAUSE_S > deadline_s:
                    raise
                await self._clock.sleep(CLEAN_UP_PAUSE_S)

    def _left(self, names: list[str], refusal: Retryable) -> Unavailable:
        rows = sum(self._writes[name] for name in names)
        keys = f"bench:{self._name}:{{n}}", f"bench:{self._name}:bare:{{n}}"
        return Unavailable(
            f"up to {counted(rows, 'row')} of this run may be left ({refusal}): erase them when "
            f"the store answers and has room, with hs.log.erase(key) for the keys {keys[0]} and "
            f"{keys[1]}, n from 0 to {KEYS - 1}"
        )


KINDS: dict[str, tuple[Callable[[Contest], Call], Callable[[Contest], Call]]] = {
    "append": (lambda contest: contest.append, lambda contest: contest.put),
    f"page of {PAGE}": (lambda contest: contest.page, lambda contest: contest.query),
    "add to a counter": (lambda contest: contest.add, lambda contest: contest.add_bare),
}


@asynccontextmanager
async def contest(url: str, clock: Clock, rng: Random) -> AsyncIterator[Contest]:
    """Open Heatsink and the bare store at one URL, and yield a `Contest` between them.

    At the end of the block, erase all rows that the contest has written. If the block was
    interrupted, or found that the store does not answer, try this only for a moment.
    """
    ids = await ids_of(url, clock)
    if isinstance(ids, Snowflake):
        raise InvalidSetting(
            "url names a store with Snowflake ids, which bench cannot make: name another store",
            field="url",
        )
    async with connect(url, ids=ids, clock=clock, rng=rng) as hs:
        stores = open_stores(url, clock)
        try:
            await stores.open()
            found = Contest(hs, stores, ids, clock, f"{rng.getrandbits(48):012x}")
            patience_s, is_interrupted = CLEAN_UP_S, False
            try:
                yield found
            except (Unavailable, asyncio.CancelledError) as error:
                patience_s = BRIEFLY_S
                is_interrupted = isinstance(error, asyncio.CancelledError)
                raise
            finally:
                try:
                    await found.clean_up(patience_s)
                except Unavailable as error:
                    if not is_interrupted:
                        raise
                    click.echo(f"heatsink: {error}", err=True)
        finally:
            await stores.close()


async def measure(
    found: Contest, plan: BenchPlan, clock: Clock, tick: Callable[[], object]
) -> list[Line]:
    lines = []
    for what, kinds in KINDS.items():
        ours, bare = (kind(found) for kind in kinds)
        lines.append(_line(what, *await _rounds((ours, bare), plan, clock, tick)))
    if any(line.unanswered or line.bare_unanswered for line in lines):
        await clock.sleep(SETTLE_S)  # late writes may still arrive, and must be erased too
    return lines


async def _rounds(
    calls: tuple[Call, Call], plan: BenchPlan, clock: Clock, tick: Callable[[], object]
) -> tuple[Samples, Samples]:
    """Measure both calls in turn, for as many rounds as there is time for, but at most ROUNDS.

    A turn lasts until its slowest call has ended. Returns the samples of each call.
    """
    both = Samples(), Samples()
    end_s = clock.monotonic_s() + plan.kind_s
    for _ in range(ROUNDS):
        began_s = clock.monotonic_s()
        for call, samples in zip(calls, both, strict=True):
            await _turn(call, plan, clock, samples)
            tick()
        now_s = clock.monotonic_s()
        if end_s - now_s < ROUND_FITS * (now_s - began_s):
            break
    return both


async def _turn(call: Call, plan: BenchPlan, clock: Clock, samples: Samples) -> None:
    began_s = clock.monotonic_s()
    end_s, before = began_s + plan.turn_s, len(samples.times_s)
    cut, cut_s = Cut(clock, "the call did not end within its turn"), began_s + plan.longest_turn_s

    async def repeat() -> None:
        started_s = clock.monotonic_s()
        while True:  # at least once, even if it starts late
            try:
                with cut(cut_s):
                    await call()
            except Retryable as error:
                if clock.monotonic_s() >= cut_s:
                    samples.unanswered += 1
                    return
                samples.refused += 1
                samples.lost = error if isinstance(error, Unavailable) else None
                await clock.sleep(REFUSED_PAUSE_S)
            else:
                samples.lost = None
                samples.times_s.append(clock.monotonic_s() - started_s)
            started_s = clock.monotonic_s()
            if started_s >= end_s:
                return
            await clock.sleep(0)

    await asyncio.gather(*(repeat() for _ in range(plan.at_once)))
    done = len(samples.times_s) - before
    if not done and samples.lost is not None:
        raise Unavailable(f"the store does not answer any more: {samples.lost}")
    samples.rates.append(done / (clock.monotonic_s() - began_s))


def _line(what: str, ours: Samples, bare: Samples) -> Line:
    times_ms = [1000 * time_s for time_s in ours.times_s]
    cuts = quantiles(times_ms, n=100) if len(times_ms) > 1 else times_ms * 99
    ratios = [one / two for one, two in zip(ours.rates, bare.rates, strict=True) if two]
    return Line(
        what=what,
        per_s=round(median(ours.rates), 1),
        p50_ms=round(cuts[49], 3) if cuts else None,
        p99_ms=round(cuts[98], 3) if cuts else None,
        bare_per_s=round(median(bare.rates), 1),
        ratio=round(median(ratios), 3) if ratios else None,
        refused=ours.refused,
        bare_refused=bare.refused,
        unanswered=ours.unanswered,
        bare_unanswered=bare.unanswered,
    )


@click.command()
@click.argument("url", required=False)
@click.option(
    "--seconds", type=Number(1, 3_600), default=12.0, help="Duration of the whole benchmark."
)
@click.option(
    "--at-once", type=WholeRange(1, 1_000), default=32, help="Number of concurrent calls."
)
@json_option
def bench(url: str | None, seconds: float, at_once: int, as_json: bool) -> None:
    """Measure how fast the store at URL is through Heatsink, compared with direct calls.

    Without URL, bench uses a new SQLite file in the current folder and removes it afterwards. Bench
    writes rows to keys of its own and erases these rows at the end. DynamoDB bills you for the
    writes.
    """
    with _url(url) as where:
        asyncio.run(_run(where, BenchPlan(seconds, at_once), as_json))


@contextmanager
def _url(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    try:
        folder = TemporaryDirectory(prefix="heatsink-bench-", dir=Path.cwd())
    except OSError as error:
        raise InvalidSetting(
            f"bench cannot make its SQLite file in the current folder ({error}): run bench in a "
            "folder that you can write to, or pass the URL of a store"
        ) from None
    with folder as name:
        yield f"sqlite:///{name}/bench.db"


async def _run(url: str, plan: BenchPlan, as_json: bool) -> None:
    """Measure, show the figures, and then erase the rows.

    The figures come first, because erasing may take long and fail.
    """
    clock = SystemClock()
    async with contest(url, clock, fresh_random()) as found:
        with progress_bar() as bar:
            turns = bar.add_task("measuring", total=plan.turns)
            lines = await measure(found, plan, clock, lambda: bar.advance(turns))
            bar.update(turns, completed=plan.turns)
        _show(lines, as_json)


def _show(lines: list[Line], as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(lines).decode())
        return
    Console().print(_table(lines))
    for line in lines:
        if line.refused or line.bare_refused:
            click.echo(
                f"{line.what}: the store refused {counted(line.refused, 'call')} through Heatsink, "
                f"which retries, and {line.bare_refused:,} direct calls, which are not retried"
            )
        if line.unanswered or line.bare_unanswered:
            click.echo(
                f"{line.what}: {counted(line.unanswered, 'call')} through Heatsink and "
                f"{line.bare_unanswered:,} direct calls timed out: raise --seconds"
            )


def _table(lines: list[Line]) -> Table:
    table = Table("call", box=None, caption=CAPTION, caption_justify="left")
    for title in ("a second", "half within", "99 % within", "bare store", "of it"):
        table.add_column(title, justify="right")
    for line in lines:
        times = (_figure(line.p50_ms, ",.2f", " ms"), _figure(line.p99_ms, ",.2f", " ms"))
        ratio = _figure(line.ratio and 100 * line.ratio, ",.0f", " %")
        table.add_row(line.what, f"{line.per_s:,.0f}", *times, f"{line.bare_per_s:,.0f}", ratio)
    return table


def _figure(value: float | None, shape: str, unit: str = "") -> str:
    return "–" if value is None else f"{value:{shape}}{unit}"
