"""Act 3: everybody reads one product page, with one load for each view, or one for many views."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from heatsink.client.heatsink import Heatsink
from heatsink.errors import Unavailable
from heatsink.lab.demo.act import (
    About,
    ActFinding,
    ActSnapshot,
    ActVerdict,
    Cell,
    Duel,
    Offer,
    Watcher,
    about,
    duel_of,
    settle,
)
from heatsink.lab.demo.lanes import UNSPREAD, LaneMeter, LaneNow, PlainClient, Spread, Totals
from heatsink.lab.demo.traffic import READS_A_WRITE, Leg, Traffic, TrafficPlan
from heatsink.lab.demo.world import DemoWorld
from heatsink.primitives.clock import Clock
from heatsink.spread.store import Ask, LogStore, Row

PAGE_BYTES = 12_000  # three read units
FRESH_S, STALE_S = 0.5, 5.0
PRICE_EVERY_S = 4.0
NEWEST = Ask(None, None, 1, newest_first=True)


WORDS = """\
A page that everybody reads is one row. Spreading it over partitions would not help, because the
load comes from reading, not from writing.

The page has {kb} KB, which costs three read units, and a partition serves {units:,} units a
second. So it serves {views:,} views a second, and refuses all others.

With hs.reads, all readers that ask at the same time share one load, and the result is cached for
{fresh:g} s. When the price changes, the cached page is dropped at once.

Look at the loads a second that reach each database while the number of views rises: compare the
line without hs.reads, the line with it, and the dashed limit.

Heatsink's side calls hs.reads.get(key, load, fresh_for={fresh:g}, stale_for={stale:g}) in front
of the same kind of SQLite file. The price changes every {every:g} s, and no view may show a price
that was replaced before the view began."""


class ProductOutcome(msgspec.Struct):
    """What viewers saw. `outdated` views showed a price that had changed before the view began."""

    outdated: int = 0
    oldest_s: float = 0.0


class ProductNow(ActSnapshot, frozen=True, tag="snapshot"):
    plain: LaneNow
    heatsink: LaneNow
    says: str

    def cells(self) -> dict[str, Cell]:
        return {
            "views/s": self.heatsink.rates.offered_s,
            "plain: loads/s": loads_s(self.plain),
            "throttled/s": self.plain.rates.throttled_s,
            "p99 ms": self.plain.rates.p99_ms,
            "Heatsink: loads/s": loads_s(self.heatsink),
            "throttled/s ": self.heatsink.rates.throttled_s,
            "p99 ms ": self.heatsink.rates.p99_ms,
        }


def loads_s(lane: LaneNow) -> int:
    return sum(one.taken_s for one in lane.rates.partitions)


def page_of(price: int) -> bytes:
    return f"price {price}; ".encode().ljust(PAGE_BYTES, b".")


def price_on(page: bytes) -> int:
    return int(page[6 : page.index(b";")])


class PlainPage(PlainClient[LogStore]):
    """Every view reads the database, with the retries of an ordinary client."""

    async def change(self, price: int) -> None:
        raw, _ = self._mint()
        row = Row(raw, page_of(price), epoch_ms=0, buckets=1)
        await self._try(lambda: self._store.put(self._key, row))

    async def call(self, _: bytes) -> bytes:
        answer = await self._try(lambda: self._store.query(self._key, NEWEST))
        return answer.rows[0].raw


class KeptPage:
    """Every view reads through `hs.reads`, as an application does."""

    def __init__(self, heatsink: Heatsink, key: str, meter: LaneMeter, clock: Clock) -> None:
        self.meter = meter
        self.outcome = ProductOutcome()
        self._heatsink = heatsink
        self._key = key
        self._clock = clock
        self._price = 0

    async def change(self, price: int) -> None:
        await self._heatsink.log.append(self._key, page_of(price))
        self._heatsink.reads.forget(self._key)
        self._price = price

    async def _load(self) -> tuple[float, int]:
        began_s = self._clock.monotonic_s()
        page = await self._heatsink.log.page(self._key, limit=1)
        if not page.entries:
            raise Unavailable("the page is missing")
        return began_s, price_on(page.entries[0].body)

    async def call(self, _: bytes) -> bytes:
        price_then = self._price
        loaded_s, price = await self._heatsink.reads.get(
            self._key, self._load, fresh_for=FRESH_S, stale_for=STALE_S
        )
        self.outcome.outdated += price < price_then
        age_s = self._clock.monotonic_s() - loaded_s
        self.outcome.oldest_s = max(self.outcome.oldest_s, age_s)
        return b""

    async def spread(self) -> Spread:
        return UNSPREAD


def traffic_of(plan: TrafficPlan) -> Traffic:
    quiet = plan.peak / 20
    return Traffic(
        (
            Leg("a few readers", 4, quiet, quiet),
            Leg("it is in the news", 5, quiet, plan.peak),
            Leg("everybody reads it", 12, plan.peak, plan.peak),
            Leg("old news", 5, plan.peak, quiet),
        )
    ).faster(plan.speed)


class ProductAct:
    name = "product"

    def about(self, plan: TrafficPlan) -> About:
        return about(
            self.name,
            "A product page",
            WORDS.format(
                kb=PAGE_BYTES // 1_000,
                units=READS_A_WRITE * plan.limit,
                views=plan.limit,
                fresh=FRESH_S,
                stale=STALE_S,
                every=PRICE_EVERY_S,
            ),
        )

    def seconds(self, plan: TrafficPlan) -> float:
        return traffic_of(plan).seconds

    async def run(self, world: DemoWorld, plan: TrafficPlan, watcher: Watcher) -> ActVerdict:
        key, clock = world.fresh("product"), world.clock
        meters = LaneMeter(clock, counts_reads=True), LaneMeter(clock, counts_reads=True)
        async with world.plain(key, meters[0]) as stores:
            plain = PlainPage(stores.log, key, meters[0], clock, world.rng)
            kept = KeptPage(world.hs, key, meters[1], clock)
            async with _changing_prices(plain, kept, clock):
                with world.tap.on(key, meters[1]):
                    async with duel_of(plain, kept, traffic_of(plan), clock) as duel:

                        async def look() -> ProductNow:
                            return await _look(duel, plan.limit)

                        await duel.fight(look, watcher)
        return judge(duel.offer("views"), *meters, kept.outcome)


@asynccontextmanager
async def _changing_prices(plain: PlainPage, kept: KeptPage, clock: Clock) -> AsyncIterator[None]:
    await plain.change(1)
    await kept.change(1)

    async def go_on() -> None:
        for price in range(2, 1_000):
            await clock.sleep(PRICE_EVERY_S)
            await kept.change(price)

    changing = asyncio.ensure_future(go_on())
    try:
        yield
    finally:
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)


async def _look(duel: Duel, limit: int) -> ProductNow:
    second, leg = duel.second, duel.leg
    plain, heatsink = await duel.now()
    return ProductNow(second, leg, plain, heatsink, narrate(plain, heatsink, limit))


def narrate(plain: LaneNow, heatsink: LaneNow, limit: int) -> str:
    views_s, loads = heatsink.rates.offered_s, loads_s(heatsink)
    if not views_s:
        if plain.totals.waiting or heatsink.totals.waiting:
            return "No new views. Refused ones are still being retried."
        return f"All views are over; without hs.reads, {plain.totals.dropped:,} got an error."
    if plain.rates.throttled_s and views_s > limit:
        return (
            f"{views_s:,} views a second. The plain database serves {loads_s(plain):,} loads and "
            f"refuses {plain.rates.throttled_s:,}; with hs.reads, the database gets {loads:,} "
            "loads a second."
        )
    if plain.totals.dropped:
        return f"Fewer views: {views_s:,} a second. With hs.reads, {loads:,} loads a second."
    plainly = loads_s(plain)
    return f"{views_s:,} views a second: {plainly:,} loads without hs.reads, {loads:,} with it."


def judge(
    offer: Offer, plain: LaneMeter, heatsink: LaneMeter, outcome: ProductOutcome
) -> ActVerdict:
    loads, plain_loads = heatsink.taken.total(), plain.taken.total()
    right = not outcome.outdated and outcome.oldest_s <= STALE_S
    line = (
        f"{heatsink.totals.offered:,} views took {loads:,} loads with hs.reads, {plain_loads:,} "
        f"without. Throttled: {heatsink.totals.throttled:,} with hs.reads, "
        f"{plain.totals.throttled:,} without."
    )
    findings = [
        ActFinding(_served(heatsink.totals), _serving(heatsink.totals)),
        ActFinding(
            right,
            f"{outcome.outdated:,} views showed a price that was replaced before the view "
            f"began (allowed: 0). The oldest page shown was {outcome.oldest_s:.2f} s old "
            f"(allowed: {STALE_S:g} s).",
        ),
        ActFinding(
            None,
            f"Without hs.reads, {plain.totals.dropped:,} viewers got an error "
            f"({plain.totals.dropped / max(plain.totals.offered, 1):.0%}) after three tries "
            "each.",
        ),
    ]
    return ActVerdict(*settle(line, offer, findings, wrong=not right))


def _served(totals: Totals) -> bool:
    return totals.accepted == totals.offered


def _serving(totals: Totals) -> str:
    if _served(totals):
        return f"With hs.reads all {totals.offered:,} viewers got their page."
    return f"With hs.reads {totals.dropped:,} of {totals.offered:,} viewers got no page."
