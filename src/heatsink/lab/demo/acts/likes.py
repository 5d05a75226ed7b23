"""Act 2: everybody likes one video. A plain counter is one row, Heatsink's has several buckets."""

from __future__ import annotations

from heatsink.client.heatsink import Heatsink
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
from heatsink.lab.demo.lanes import LaneMeter, LaneNow, PlainClient, Spread, Totals, spread_of
from heatsink.lab.demo.traffic import Leg, Traffic, TrafficPlan
from heatsink.lab.demo.world import DemoWorld
from heatsink.spread.store import CounterStore

QUIET, PEAK = 1 / 16, 3 / 4  # of the plan's peak


WORDS = """\
The likes of a video are one number in one row, and the row is in one partition. Here a partition
accepts {limit:,} writes a second.

Above that rate, likes are refused. The app retries a few times and gives up, so the number on the
screen is too low.

While the counter is hot, Heatsink splits it into several shards and adds them up for readers.
Every acknowledged like counts once, even if it was sent more than once.

Look at the gap between the likes given and the likes counted. Below, each bar is a row of the
counter: compare its height with the dashed limit, and how much of it is red.

Heatsink's side calls hs.counters.add() and .value(). The plain side uses the same kind of store
with one key. Both numbers are read from the stores twice a second."""


class LikesNow(ActSnapshot, frozen=True, tag="snapshot"):
    """The act at one moment.

    `counted_plain` and `counted_heatsink` are what readers of the two counters get at this moment.
    """

    plain: LaneNow
    heatsink: LaneNow
    counted_plain: int
    counted_heatsink: int
    says: str

    def cells(self) -> dict[str, Cell]:
        return {
            "likes/s": self.heatsink.rates.offered_s,
            "liked": self.heatsink.totals.offered,
            "plain: counted": self.counted_plain,
            "throttled/s": self.plain.rates.throttled_s,
            "Heatsink: counted": self.counted_heatsink,
            "throttled/s ": self.heatsink.rates.throttled_s,
            "shards": self.heatsink.spread.buckets,
        }


class PlainCounter(PlainClient[CounterStore]):
    """The counter without Heatsink: one row of one key, with the retries of an ordinary client."""

    async def call(self, _: bytes) -> bytes:
        token, time_ms = self._mint()
        await self._try(lambda: self._store.add(self._key, token, time_ms, 1))
        return token

    async def value(self) -> int:
        (total,) = await self._store.totals([self._key])
        return total.value


class SpreadCounter:
    """The counter with Heatsink, called as an application calls it."""

    def __init__(self, heatsink: Heatsink, key: str, meter: LaneMeter) -> None:
        self.meter = meter
        self._heatsink = heatsink
        self._key = key

    async def call(self, _: bytes) -> bytes:
        await self._heatsink.counters.add(self._key, 1)
        return b""

    async def spread(self) -> Spread:
        return await spread_of(self._heatsink, self._key)

    async def value(self) -> int:
        return await self._heatsink.counters.value(self._key)


def traffic_of(plan: TrafficPlan) -> Traffic:
    quiet, peak = QUIET * plan.peak, PEAK * plan.peak
    return Traffic(
        (
            Leg("a few likes", 3, quiet, quiet),
            Leg("it is shared", 14, quiet, peak),
            Leg("everybody likes it", 9, peak, peak),
            Leg("the next video", 4, peak, quiet),
        )
    ).faster(plan.speed)


class LikesAct:
    name = "likes"

    def about(self, plan: TrafficPlan) -> About:
        return about(self.name, "A like counter", WORDS.format(limit=plan.limit))

    def seconds(self, plan: TrafficPlan) -> float:
        return traffic_of(plan).seconds

    async def run(self, world: DemoWorld, plan: TrafficPlan, watcher: Watcher) -> ActVerdict:
        key, clock = world.fresh("likes"), world.clock
        meters = LaneMeter(clock), LaneMeter(clock)
        with world.tap.on(key, meters[1]):
            async with world.plain(key, meters[0]) as stores:
                plain = PlainCounter(stores.counters, key, meters[0], clock, world.rng)
                heatsink = SpreadCounter(world.hs, key, meters[1])
                async with duel_of(plain, heatsink, traffic_of(plan), clock) as duel:

                    async def look() -> LikesNow:
                        return await _look(duel, plain, heatsink, plan.limit)

                    await duel.fight(look, watcher)
                counted = await plain.value(), await heatsink.value()
                totals = duel.plain.totals, duel.heatsink.totals
                return judge(duel.offer("likes"), *totals, *counted)


async def _look(duel: Duel, plain: PlainCounter, heatsink: SpreadCounter, limit: int) -> LikesNow:
    second, leg = duel.second, duel.leg
    values = await plain.value(), await heatsink.value()
    lanes = await duel.now()
    return LikesNow(second, leg, *lanes, *values, says=narrate(*lanes, limit))


def narrate(plain: LaneNow, heatsink: LaneNow, limit: int) -> str:
    likes_s, shards = heatsink.rates.offered_s, heatsink.spread.buckets
    if not likes_s:
        if plain.totals.waiting or heatsink.totals.waiting:
            return "All likes were sent. Refused ones are still being retried."
        return f"All likes were sent and answered; the plain row dropped {plain.totals.dropped:,}."
    if plain.rates.throttled_s and likes_s > limit:
        return (
            f"{likes_s:,} likes a second. The plain row accepts {plain.rates.accepted_s:,} and "
            f"refuses {plain.rates.throttled_s:,} tries; Heatsink accepts "
            f"{heatsink.rates.accepted_s:,} in {shards} shards."
        )
    if shards > 1:
        return f"{likes_s:,} likes a second, in {shards} shards of one counter."
    return f"{likes_s:,} likes a second: one row is enough for both."


def judge(
    offer: Offer, plain: Totals, heatsink: Totals, plain_value: int, value: int
) -> ActVerdict:
    exact = value == heatsink.accepted
    complete = heatsink.accepted == heatsink.offered
    behind = plain.offered - plain_value
    line = (
        f"Of {heatsink.offered:,} likes, Heatsink counted {value:,} and the plain counter "
        f"{plain_value:,}. Throttled: {heatsink.throttled:,} with Heatsink, "
        f"{plain.throttled:,} without."
    )
    findings = [
        ActFinding(exact and complete, _exactness(heatsink, value)),
        ActFinding(
            None,
            f"The plain counter is too low by {behind:,} "
            f"({behind / max(plain.offered, 1):.0%}): likes dropped after three tries each.",
        ),
    ]
    return ActVerdict(*settle(line, offer, findings, wrong=not exact))


def _exactness(totals: Totals, value: int) -> str:
    if value == totals.accepted == totals.offered:
        return f"Heatsink acknowledged all {totals.offered:,} likes, and its number is exact."
    return (
        f"Heatsink acknowledged {totals.accepted:,} of {totals.offered:,} likes and counted "
        f"{value:,}."
    )
