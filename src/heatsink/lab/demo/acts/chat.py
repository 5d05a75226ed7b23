"""Act 1: one conversation goes viral, on a plain store and on Heatsink.

Both get the same messages. At the end everything is read back from both stores, and the same kind
of rush is played on virtual time on a new table whose store adapts.
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
    Watcher,
    about,
    duel_of,
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
from heatsink.spread.store import LogStore, Row

PAGE_ROWS = 1_000
NAMES = ("plain", "adaptive", "buckets", "buckets + adaptive")
THROTTLED_SHARE_MAX = 0.01
RECOVERY_S_MAX = 3.0
WORDS = """\
A database keeps its rows in partitions, and all rows of one key, such as one conversation, live
in the same partition.

A partition takes only so much, here {limit:,} writes a second: when one conversation gets more,
the rest is refused (throttled), however idle all other partitions are. That is a hot partition.

Below, the very same messages go to a plain store and to Heatsink, which sees the heat coming
and spreads the conversation over more partitions.

Look at the red: it is what the store refuses. With Heatsink, watch the partitions multiply
before the dashed limit is reached, and go again when it is calm. At the end a third picture
plays a rush on a young table whose store adapts by itself: why it takes both.

Two SQLite files, each wrapped in the same limit per partition key. The plain client tries three
times with growing random pauses, as the AWS SDKs do in their standard mode. Heatsink waits five
calm seconds before it takes partitions back; outside a demo it waits five minutes. The
command “heatsink lab partitions” plays the young table at more length."""
REPLAYS = (("ramp", "Play the slow rise"), ("jump", "Play the sudden jump"))


class Chat(Contender, Protocol):
    def read_back(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Every stored id and message."""


class PlainChat(PlainClient[LogStore]):
    """One key, one partition, and the retries of an ordinary client."""

    async def call(self, body: bytes) -> bytes:
        raw, _ = self._mint()
        row = Row(raw, body, epoch_ms=0, buckets=1)
        await self._try(lambda: self._store.put(self._key, row))
        return raw

    async def read_back(self) -> AsyncIterator[tuple[bytes, bytes]]:
        async for _, row in self._store.scan():
            yield row.raw, row.body


class SpreadChat:
    """Heatsink, as an application uses it."""

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
    """What happens right now, for people who have never heard of hot partitions."""

    plain: str
    heatsink: str


def narrate(plain: LaneNow, heatsink: LaneNow, limit: int) -> Narration:
    return Narration(_of_plain(plain, limit), _of_heatsink(heatsink, limit))


def _of_plain(now: LaneNow, limit: int) -> str:
    offered, refused, gone = now.rates.offered_s, now.rates.throttled_s, now.totals.dropped
    gets = f"The conversation gets {offered:,} writes/s"
    if refused and offered > limit:
        return (
            f"{gets}; its one partition takes {limit:,}. The rest is refused and tried again. "
            f"After three tries a message is gone: {gone:,} so far."
        )
    if refused or now.totals.waiting > limit / 2:
        return "The rush is over, but those who were refused still try again and crowd it."
    if offered > limit:
        return f"{gets}, its one partition takes {limit:,}. A small reserve helps for a moment."
    if gone:
        return f"Calm again. But {gone:,} messages never got in."
    return f"{gets}. Its one partition takes {limit:,}: all is well."


def _of_heatsink(now: LaneNow, limit: int) -> str:
    spread, offered = now.spread, now.rates.offered_s
    if now.rates.throttled_s:
        return _of_surprise(now)
    if spread.target > spread.buckets:
        return (
            f"{offered:,} writes/s and rising. Heatsink sees the limit coming: within a second it "
            f"spreads the conversation over {_partitions(spread.target)}."
        )
    if spread.target < spread.buckets:
        return (
            f"The rush is over: Heatsink goes back from {spread.buckets} to "
            f"{_partitions(spread.target)}. No message has to be moved."
        )
    if spread.buckets > 1:
        each = offered // spread.buckets
        return (
            f"{offered:,} writes/s over {_partitions(spread.buckets)}, about {each:,} each: "
            f"every one stays under its limit of {limit:,}."
        )
    if spread.widest > 1:
        return "One partition again, for new messages. Readers still find all the older ones."
    return f"{offered:,} writes/s: one partition is enough. Heatsink only counts."


def _of_surprise(now: LaneNow) -> str:
    if now.spread.buckets == 1:
        return (
            "More came at once than one partition takes. Those refused wait and try again while "
            "Heatsink spreads the conversation; none is dropped."
        )
    return (
        f"New messages go to {_partitions(now.spread.buckets)} by now. The {now.totals.waiting:,} "
        "that came before are still let in where they belong; none is dropped."
    )


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


class YoungTable(msgspec.Struct, frozen=True):
    """One case: the throttled writes of each second, and the table at the end."""

    case: str
    throttled: list[int]
    buckets: int
    partitions: int

    @property
    def throttled_s(self) -> float:
        """The mean of the last seconds, when everything that reacts has reacted."""
        return sum(self.throttled[-LAST_S:]) / LAST_S


async def young_tables(clock: Clock) -> list[YoungTable]:
    """Run all cases second by second, so that other tasks can run in between."""
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
        f"On a young table of {PARTITIONS} partitions (virtual time) {plain.throttled_s:,.0f} "
        f"writes/s are throttled. A store that adapts leaves {adaptive.throttled_s:,.0f}: one key "
        f"is never split. Buckets alone leave {salted.throttled_s:,.0f}: some share a partition. "
        f"With both the store parts them: {both.throttled_s:,.0f}.",
    )


class Recovery(msgspec.Struct, frozen=True):
    """Seconds after the jump until no new write was refused, and until none was waiting."""

    spread_s: float
    drained_s: float


class ReadBack(msgspec.Struct, frozen=True):
    """How a lane ended, counted by reading everything back from its store.

    `lost` messages were accepted and are missing; `duplicated` ones are there more than once.
    """

    totals: Totals
    found: int
    lost: int
    duplicated: int


async def read_back(lane: DemoLane, chat: Chat) -> ReadBack:
    """Each accepted message must be there under its id, exactly once."""
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
) -> ChatVerdict:
    """`throttled_share` is Heatsink's refusals as a share of the plain store's.

    How few they are is promised only for traffic that rises gently.
    """
    share = heatsink.totals.throttled / max(plain.totals.throttled, 1)
    promised = gentle and recovery is None
    findings = [_kept(heatsink), _refused(plain, heatsink, share, promised)]
    if recovery is not None:
        findings += _recovered(recovery)
    findings.append(_gone(plain))
    if young:
        findings.append(why_both(young))
    line, kept = _line(plain, heatsink), _kept_everything(heatsink)
    return ChatVerdict(line, kept, findings, plain, heatsink, share, recovery, young or [])


def _line(plain: ReadBack, heatsink: ReadBack) -> str:
    ours, theirs = heatsink.totals, plain.totals
    return (
        f"Throttled {ours.throttled:,} with Heatsink against {theirs.throttled:,} without; "
        f"messages dropped: {ours.dropped:,} against {theirs.dropped:,}."
    )


def _kept_everything(ended: ReadBack) -> bool:
    return not (ended.lost or ended.duplicated or ended.totals.dropped)


def _kept(ended: ReadBack) -> ActFinding:
    totals = ended.totals
    if _kept_everything(ended):
        return ActFinding(
            True,
            f"Heatsink accepted all {totals.offered:,} messages. Read back, every one of them is "
            "there, once.",
        )
    return ActFinding(
        False,
        f"Heatsink dropped {totals.dropped:,}, lost {ended.lost:,} and duplicated "
        f"{ended.duplicated:,} of {totals.offered:,} messages. It must not.",
    )


def _refused(plain: ReadBack, heatsink: ReadBack, share: float, promised: bool) -> ActFinding:
    refused, of = heatsink.totals.throttled, plain.totals.throttled
    good = share < THROTTLED_SHARE_MAX if promised else None
    goal = "" if good is None else f" (goal: under {THROTTLED_SHARE_MAX:.0%})"
    return ActFinding(
        good,
        f"The store refused {refused:,} tries of Heatsink and {of:,} of the plain client: "
        f"{share:.2%}{goal}.",
    )


def _recovered(recovery: Recovery) -> list[ActFinding]:
    return [
        ActFinding(
            recovery.spread_s <= RECOVERY_S_MAX,
            f"{recovery.spread_s:.1f} s after the jump Heatsink had spread the conversation: from "
            f"then on every new write was accepted at once (goal: {RECOVERY_S_MAX:g} s).",
        ),
        ActFinding(
            recovery.drained_s <= RECOVERY_S_MAX,
            f"{recovery.drained_s:.1f} s after the jump the last write that had to wait was in "
            f"(goal: {RECOVERY_S_MAX:g} s).",
        ),
    ]


def _gone(plain: ReadBack) -> ActFinding:
    totals = plain.totals
    share = totals.dropped / max(totals.offered, 1)
    return ActFinding(
        None,
        f"The plain store dropped {totals.dropped:,} of the same messages ({share:.0%}), after "
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
