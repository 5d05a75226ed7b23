"""The same messages to one conversation, on a plain store and on Heatsink."""

from __future__ import annotations

from heatsink.service.demo.act import About, Snapshot, Watcher, about
from heatsink.service.demo.lanes.duel import Duel, duel_of
from heatsink.service.demo.lanes.lane import LaneNow
from heatsink.service.demo.lanes.meter import Meter
from heatsink.service.demo.traffic import Plan
from heatsink.service.demo.world import World

from .contenders import PlainChat, SpreadChat
from .narration import Narration, narrate
from .verdict import ChatVerdict, Recovery, reach_verdict, read_back
from .young import young_tables

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


class ChatNow(Snapshot, frozen=True, tag="snapshot"):
    plain: LaneNow
    heatsink: LaneNow
    narration: Narration


class ChatAct:
    name = "chat"

    def about(self, plan: Plan) -> About:
        return about(self.name, "A hot chat", WORDS.format(limit=plan.limit), REPLAYS)

    def seconds(self, plan: Plan) -> float:
        return plan.traffic.seconds

    async def run(self, world: World, plan: Plan, watcher: Watcher) -> ChatVerdict:
        key, clock = world.fresh("chat"), world.clock
        meters = Meter(clock), Meter(clock)
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
