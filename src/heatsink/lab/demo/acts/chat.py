"""Act 1: one conversation goes viral, on a plain store and on Heatsink.

Both get the same messages. At the end the act reads all messages back from both stores. It also
simulates a rush on a new table whose store splits hot partitions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from heatsink.client.heatsink import Heatsink
from heatsink.lab.demo.act import (
    About,
    ActFinding,
    ActSnapshot,
    ActVerdict,
    Duel,
    Offer,
    Watcher,
    about,
    duel_of,
    settle,
)
from heatsink.lab.demo.lanes import (
    Contender,
    DemoLane,
    LaneMeter,
    LaneNow,
    PlainClient,
    Spread,
    Totals,
    spread_of,
)
from heatsink.lab.demo.traffic import TrafficPlan
from heatsink.lab.demo.world import DemoWorld
from heatsink.lab.partitions import CASES, LAST_S, PARTITIONS, PartitionsSecond, seconds
from heatsink.primitives.clock import Clock
from heatsink.primitives.words import counted
from heatsink.spread.store import LogStore, Row

PAGE_ROWS = 1_000
NAMES = ("plain", "adaptive", "buckets", "buckets + adaptive")
THROTTLED_SHARE_MAX = 0.01
RECOVERY_S_MAX = 3.0
ALL_OFFERED = Offer("messages", due=0, made=0)
WORDS = """\
A database stores its rows in partitions. All rows of one key, such as one conversation, are in
the same partition.

A partition accepts a limited number of writes, here {limit:,} a second (and, for a moment, twice
that from a reserve): if one conversation gets more, the store refuses (throttles) the rest, even if
all other partitions are idle. That is a hot partition.

Below, the same messages go to a plain store and to Heatsink. Heatsink sees the rate rise and
spreads the conversation over more partitions.

Look at the red lines and bars: they are the writes that the store refuses. Compare them on both
sides, and watch the number of partitions that Heatsink uses rise and fall with the traffic. At the
end, one more chart simulates a rush on a new table whose store splits hot partitions by itself.

Both sides write to SQLite files with the same limit per partition key. The plain client tries
each write three times with growing random pauses, like the AWS SDKs in their standard mode.
Heatsink removes partitions after five calm seconds; the default is five minutes. It decides by the
rate of the last tenth of a second, which is high when a busy machine catches up after a pause. The
command “heatsink lab partitions” shows the new table in more detail."""
REPLAYS = (("ramp", "Play the slow rise"), ("jump", "Play the sudden jump"))


class Chat(Contender, Protocol):
    def read_back(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield the id and the body of every stored message."""


class PlainChat(PlainClient[LogStore]):
    """The chat without Heatsink: one key, one partition, and an ordinary client's retries."""

    async def call(self, body: bytes) -> bytes:
        raw, _ = self._mint()
        row = Row(raw, body, epoch_ms=0, buckets=1)
        await self._try(lambda: self._store.put(self._key, row))
        return raw

    async def read_back(self) -> AsyncIterator[tuple[bytes, bytes]]:
        async for _, row in self._store.scan():
            yield row.raw, row.body


class SpreadChat:
    """The chat with Heatsink, called as an application calls it."""

    def __init__(self, heatsink: Heatsink, key: str, meter: LaneMeter) -> None:
        self.meter = meter
        self._heatsink = heatsink
        self._key = key

    async def call(self, body: bytes) -> bytes:
        return (await self._heatsink.log.append(self._key, body)).raw

    async def spread(self) -> Spread:
        return await spread_of(self._heatsink, self._key)

    async def read_back(self) -> AsyncIterator[tuple[bytes, bytes]]:
        cursor: str | None = None
        while True:
            page = await self._heatsink.log.page(
                self._key, limit=PAGE_ROWS, cursor=cursor, order="oldest"
            )
            for entry in page.entries:
                yield entry.raw, entry.body
            cursor = page.cursor
            if cursor is None:
                return


class Narration(msgspec.Struct, frozen=True):
    """Sentences that say what happens right now, for people who do not know hot partitions."""

    plain: str
    heatsink: str


def narrate(plain: LaneNow, heatsink: LaneNow, limit: int) -> Narration:
    return Narration(_of_plain(plain, limit), _of_heatsink(heatsink, limit))


def _of_plain(now: LaneNow, limit: int) -> str:
    offered, refused, gone = now.rates.offered_s, now.rates.throttled_s, now.totals.dropped
    gets = f"The conversation gets {offered:,} writes/s"
    if refused and offered > limit:
        return (
            f"{gets}; its one partition accepts {_accepts(now.rates.accepted_s, limit)}. The rest "
            f"is refused and retried. After three tries a message is dropped: {gone:,} so far."
        )
    if refused or now.totals.waiting > limit / 2:
        return "The rush is over, but refused messages are being retried in the same partition."
    if offered > limit:
        return f"{gets}; its one partition accepts {limit:,}. A small reserve lasts for a moment."
    if gone:
        return f"Calm again, but {gone:,} messages were dropped."
    return f"{gets}. Its one partition accepts {limit:,}, so none is refused."


def _accepts(accepted_s: int, limit: int) -> str:
    if accepted_s <= 1.1 * limit:
        return f"{accepted_s:,}"
    return f"{accepted_s:,} for a moment, from its reserve (its limit is {limit:,})"


def _of_heatsink(now: LaneNow, limit: int) -> str:
    spread, offered = now.spread, now.rates.offered_s
    if now.rates.throttled_s:
        return _of_surprise(now)
    if spread.target > spread.buckets:
        return (
            f"{offered:,} writes/s and rising. Heatsink sees the limit coming: within a second it "
            f"spreads the conversation over {counted(spread.target, 'partition')}."
        )
    if spread.target < spread.buckets:
        return (
            f"The rush is over: Heatsink goes back from {spread.buckets} to "
            f"{counted(spread.target, 'partition')}. No stored message is moved."
        )
    if spread.buckets > 1:
        most = max((one.taken_s for one in now.rates.partitions), default=0)
        return (
            f"{offered:,} writes/s over {counted(spread.buckets, 'partition')}. The busiest gets "
            f"{most:,}; its limit is {limit:,}."
        )
    if spread.widest > 1:
        return "New messages go to one partition again. Readers still find all older messages."
    return f"{offered:,} writes/s: one partition is enough. Heatsink only measures the rate."


def _of_surprise(now: LaneNow) -> str:
    if now.spread.buckets == 1:
        return (
            "The rate jumped above what one partition accepts. Refused messages are retried while "
            f"Heatsink spreads the conversation; {now.totals.dropped:,} are dropped so far."
        )
    return (
        f"New messages go to {counted(now.spread.buckets, 'partition')} now. "
        f"{now.totals.waiting:,} earlier messages are still being retried in their own partition; "
        f"{now.totals.dropped:,} are dropped so far."
    )


class YoungTable(msgspec.Struct, frozen=True):
    """The result of one simulated case on a new table.

    `throttled` are the throttled writes of each second. `buckets` and `partitions` are the numbers
    at the end.
    """

    case: str
    throttled: list[int]
    buckets: int
    partitions: int

    @property
    def throttled_s(self) -> float:
        """Throttled writes a second at the end, when splits and new buckets are in effect."""
        return sum(self.throttled[-LAST_S:]) / LAST_S


async def young_tables(clock: Clock) -> list[YoungTable]:
    """Simulate a rush on a new table once for each case, and return one result per case.

    Other tasks can run after each simulated second.
    """
    found = []
    for name, case in zip(NAMES, CASES, strict=True):
        run: list[PartitionsSecond] = []
        for second in seconds(case):
            run.append(second)
            await clock.sleep(0)
        throttled, last = [second.throttled for second in run], run[-1]
        found.append(YoungTable(name, throttled, last.buckets, len(last.partitions)))
    return found


def why_both(tables: list[YoungTable]) -> ActFinding:
    plain, adaptive, salted, both = tables
    return ActFinding(
        both.throttled_s == 0,
        f"On a new table of {PARTITIONS} partitions (simulated), {plain.throttled_s:,.0f} writes/s "
        f"are throttled. With a store that splits hot partitions, {adaptive.throttled_s:,.0f}: it "
        f"cannot split one key. With Heatsink's buckets alone, {salted.throttled_s:,.0f}: some "
        f"buckets share a partition. With both, the store splits shared partitions: "
        f"{both.throttled_s:,.0f}.",
    )


class Recovery(msgspec.Struct, frozen=True):
    """How long Heatsink took to recover after the traffic jumped.

    `spread_s` is the time until no new write was refused, `drained_s` the time until no write was
    waiting.
    """

    spread_s: float
    drained_s: float


class ReadBack(msgspec.Struct, frozen=True):
    """What was found when all messages of a lane were read back from its store.

    `lost` messages were accepted and are missing; `duplicated` messages are there more than once.
    """

    totals: Totals
    found: int
    lost: int
    duplicated: int


async def read_back(lane: DemoLane, chat: Chat) -> ReadBack:
    """Read all messages of a lane back, and count how many are lost or duplicated.

    Each accepted message must be stored under its id, exactly once.
    """
    found = [row async for row in chat.read_back()]
    there = {(body, raw) for raw, body in found}
    messages = {body for _, body in found}
    return ReadBack(
        totals=lane.totals_now(),
        found=len(found),
        lost=len(lane.accepted.items() - there),
        duplicated=len(found) - len(messages),
    )


class ChatVerdict(ActVerdict, frozen=True, tag="verdict"):
    plain: ReadBack
    heatsink: ReadBack
    throttled_share: float
    recovery: Recovery | None
    young: list[YoungTable]


def reach_verdict(
    plain: ReadBack,
    heatsink: ReadBack,
    recovery: Recovery | None,
    gentle: bool = True,
    young: list[YoungTable] | None = None,
    offer: Offer = ALL_OFFERED,
) -> ChatVerdict:
    """Return the verdict of the act.

    Its `throttled_share` is the number of Heatsink's refused writes, divided by the number of the
    plain store's. Heatsink promises few refusals only for traffic that rises gently (`gentle`).
    """
    share = heatsink.totals.throttled / max(plain.totals.throttled, 1)
    promised = gentle and recovery is None
    findings = [_kept(heatsink), _refused(plain, heatsink, share, promised)]
    if recovery is not None:
        findings += _recovered(recovery)
    findings.append(_gone(plain))
    if young:
        findings.append(why_both(young))
    wrong = bool(heatsink.lost or heatsink.duplicated)
    settled = settle(_line(plain, heatsink), offer, findings, wrong)
    return ChatVerdict(*settled, plain, heatsink, share, recovery, young or [])


def _line(plain: ReadBack, heatsink: ReadBack) -> str:
    ours, theirs = heatsink.totals, plain.totals
    return (
        f"Throttled writes: {ours.throttled:,} with Heatsink, {theirs.throttled:,} without. "
        f"Dropped messages: {ours.dropped:,} with Heatsink, {theirs.dropped:,} without."
    )


def _kept_everything(ended: ReadBack) -> bool:
    return not (ended.lost or ended.duplicated or ended.totals.dropped)


def _kept(ended: ReadBack) -> ActFinding:
    totals = ended.totals
    if _kept_everything(ended):
        return ActFinding(
            True,
            f"Heatsink accepted all {totals.offered:,} messages. Reading them back found each "
            "exactly once.",
        )
    return ActFinding(
        False,
        f"Heatsink dropped {totals.dropped:,}, lost {ended.lost:,} and duplicated "
        f"{ended.duplicated:,} of {totals.offered:,} messages. All three must be 0.",
    )


def _refused(plain: ReadBack, heatsink: ReadBack, share: float, promised: bool) -> ActFinding:
    refused, of = heatsink.totals.throttled, plain.totals.throttled
    good = share < THROTTLED_SHARE_MAX if promised else None
    goal = "" if good is None else f" (goal: under {THROTTLED_SHARE_MAX:.0%})"
    return ActFinding(
        good,
        f"The store throttled {refused:,} writes of Heatsink and {of:,} of the plain client: "
        f"{share:.2%}{goal}.",
    )


def _recovered(recovery: Recovery) -> list[ActFinding]:
    return [
        ActFinding(
            recovery.spread_s <= RECOVERY_S_MAX,
            f"{recovery.spread_s:.1f} s after the jump, Heatsink had spread the conversation: from "
            f"then on, new writes were accepted at the first try (goal: {RECOVERY_S_MAX:g} s).",
        ),
        ActFinding(
            recovery.drained_s <= RECOVERY_S_MAX,
            f"{recovery.drained_s:.1f} s after the jump, the last retried write was accepted "
            f"(goal: {RECOVERY_S_MAX:g} s).",
        ),
    ]


def _gone(plain: ReadBack) -> ActFinding:
    totals = plain.totals
    share = totals.dropped / max(totals.offered, 1)
    return ActFinding(
        None,
        f"The plain client dropped {totals.dropped:,} of the same messages ({share:.0%}) after "
        "three tries each.",
    )


class ChatNow(ActSnapshot, frozen=True, tag="snapshot"):
    plain: LaneNow
    heatsink: LaneNow
    narration: Narration


class ChatAct:
    name = "chat"

    def about(self, plan: TrafficPlan) -> About:
        return about(self.name, "A hot chat", WORDS.format(limit=plan.limit), REPLAYS)

    def seconds(self, plan: TrafficPlan) -> float:
        return plan.traffic.seconds

    async def run(self, world: DemoWorld, plan: TrafficPlan, watcher: Watcher) -> ChatVerdict:
        key, clock = world.fresh("chat"), world.clock
        meters = LaneMeter(clock), LaneMeter(clock)
        with world.tap.on(key, meters[1]):
            async with world.plain(key, meters[0]) as stores:
                plain = PlainChat(stores.log, key, meters[0], clock, world.rng)
                heatsink = SpreadChat(world.hs, key, meters[1])
                async with duel_of(plain, heatsink, plan.traffic, clock) as duel:

                    async def look() -> ChatNow:
                        return await _look(duel, plan.limit)

                    await duel.fight(look, watcher)
                return reach_verdict(
                    await read_back(duel.plain, plain),
                    await read_back(duel.heatsink, heatsink),
                    _recovery(duel),
                    gentle=not plan.brief,
                    young=[] if plan.brief else await young_tables(clock),
                    offer=duel.offer("messages"),
                )


async def _look(duel: Duel, limit: int) -> ChatNow:
    second, leg = duel.second, duel.leg
    plain, heatsink = await duel.now()
    return ChatNow(second, leg, plain, heatsink, narrate(plain, heatsink, limit))


def _recovery(duel: Duel) -> Recovery | None:
    jump_s = duel.traffic.jump_s
    if jump_s is None:
        return None
    jumped_s, meter = duel.begun_s + jump_s, duel.heatsink.meter
    return Recovery(
        spread_s=round(max(meter.last_fresh_refusal_s - jumped_s, 0.0), 2),
        drained_s=round(max(meter.last_refusal_s - jumped_s, 0.0), 2),
    )
