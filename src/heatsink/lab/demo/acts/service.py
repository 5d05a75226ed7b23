"""Act 6: an existing service on a DynamoDB table, driven past the limit, with and without Heatsink.

Both lanes run the same `ChatService`, which knows nothing of Heatsink. Its requests are in
DynamoDB's wire form and go to an emulator. On Heatsink's side they pass through the core of
`heatsink.boto` and `heatsink door` first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec

from heatsink.door.core import Core
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.drivers import AsyncDriver, OwnRegistry
from heatsink.door.keys import subject_in
from heatsink.door.protocol import Body, UpstreamCall, WireError
from heatsink.door.times import iso_text
from heatsink.emulator.engine import API, Engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import Throttled
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
from heatsink.lab.demo.lanes import TRIES, UNSPREAD, LaneMeter, LaneNow, Spread, Totals, spread_of
from heatsink.lab.demo.traffic import Leg, Traffic, TrafficPlan
from heatsink.lab.demo.world import DemoWorld
from heatsink.primitives.clock import Clock
from heatsink.primitives.subjects import Subject
from heatsink.registry.adoption import completion
from heatsink.stores.dynamodb.client import THROTTLING

QUIET, PEAK = 1 / 16, 3 / 4  # of the plan's peak
ROOM = "lobby"
PAGES = 1_000
Send = Callable[[str, Body], Awaitable[Body]]

WORDS = """\
A service keeps the messages of a room under one partition key of a DynamoDB table. So they are in
one partition, which accepts {limit:,} writes a second here.

When the room gets popular, DynamoDB refuses messages. The service retries each of them twice and
then loses it.

The other side runs the same service, without a change in its code. Heatsink sits below its DynamoDB
client, and puts new messages of the hot room into several partitions.

Look at the messages that the service lost. Below, each bar is a partition key of the table: compare
its height with the dashed limit, and how much of it is red.

Both tables are in our emulator of DynamoDB. The service sends UpdateItem and Query. Its requests go
through the same code as with heatsink.boto.attach and heatsink door. At the end, it reads its
messages back in pages."""


class ServiceNow(ActSnapshot, frozen=True, tag="snapshot"):
    """The act at one moment."""

    plain: LaneNow
    heatsink: LaneNow
    says: str

    def cells(self) -> dict[str, Cell]:
        return {
            "messages/s": self.heatsink.rates.offered_s,
            "plain: accepted/s": self.plain.rates.accepted_s,
            "throttled/s": self.plain.rates.throttled_s,
            "lost": self.plain.totals.dropped,
            "Heatsink: accepted/s": self.heatsink.rates.accepted_s,
            "throttled/s ": self.heatsink.rates.throttled_s,
            "buckets": self.heatsink.spread.buckets,
        }


class ChatService:
    """The code of the application. It sends DynamoDB requests, and retries throttled ones."""

    def __init__(self, table: str, send: Send, clock: Clock, rng: Random) -> None:
        self._table = table
        self._send = send
        self._clock = clock
        self._rng = rng

    async def say(self, text: str) -> None:
        now = datetime.fromtimestamp(self._clock.now_s(), UTC)
        at = f"MSG#{now:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + f"Z#{text}"
        update = {
            "TableName": self._table,
            "Key": {"room": {"S": ROOM}, "at": {"S": at}},
            "UpdateExpression": "SET #t = :t ADD seen :one",
            "ExpressionAttributeNames": {"#t": "text"},
            "ExpressionAttributeValues": {":t": {"S": text}, ":one": {"N": "1"}},
        }
        for attempt in range(TRIES):
            try:
                await self._send("UpdateItem", update)
                return
            except WireError as error:
                if error.code not in THROTTLING:
                    raise
            if attempt < TRIES - 1:
                await self._clock.sleep(self._rng.random() * 2**attempt)
        raise Throttled(ROOM)

    async def messages(self) -> list[tuple[str, str]]:
        """Return the text of every message and how often it was seen, oldest first."""
        found: list[tuple[str, str]] = []
        query: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": "room = :room",
            "ExpressionAttributeValues": {":room": {"S": ROOM}},
        }
        for _ in range(PAGES):
            page = await self._send("Query", query)
            found += [(item["text"]["S"], item["seen"]["N"]) for item in page["Items"]]
            if "LastEvaluatedKey" not in page:
                break
            query["ExclusiveStartKey"] = page["LastEvaluatedKey"]
        return found


class ServiceTable:
    """A table in an emulator of its own. The meter counts writes by their partition keys."""

    def __init__(self, name: str, meter: LaneMeter, world: DemoWorld, limit: int) -> None:
        settings = EngineSettings(
            write_limit=limit, read_limit=1e9, burst_s=1.0, partitions=64, adaptive=False
        )
        self.name = name
        self.meter = meter
        self._engine = Engine(settings, world.clock, world.rng)
        keys = {"room": "HASH", "at": "RANGE"}
        self.answer(
            "CreateTable",
            {
                "TableName": name,
                "BillingMode": "PAY_PER_REQUEST",
                "KeySchema": [{"AttributeName": n, "KeyType": kind} for n, kind in keys.items()],
                "AttributeDefinitions": [{"AttributeName": n, "AttributeType": "S"} for n in keys],
            },
        )

    def answer(self, operation: str, parameters: Body) -> Body:
        status, content = self._engine.answer(API + operation, msgspec.json.encode(parameters))
        body: Body = msgspec.json.decode(content)
        key = parameters.get("Key")
        error = None if status == 200 else WireError(status, body)
        if key is not None and (error is None or error.code in THROTTLING):
            name, raw = key["room"]["S"], key["at"]["S"].encode()
            if error is None:
                self.meter.take(name)
            else:
                self.meter.refuse(name, raw)
        if error is not None:
            raise error
        return body


class PlainLane:
    """The service on its table, without Heatsink."""

    def __init__(self, table: ServiceTable, clock: Clock, rng: Random) -> None:
        self.meter = table.meter
        self._table = table
        self.service = ChatService(table.name, self._send, clock, rng)

    async def _send(self, operation: str, parameters: Body) -> Body:
        return self._table.answer(operation, parameters)

    async def call(self, body: bytes) -> bytes:
        await self.service.say(body.decode())
        return body

    async def spread(self) -> Spread:
        return UNSPREAD


class HeatsinkLane:
    """The same service, with Heatsink below its client."""

    def __init__(self, table: ServiceTable, world: DemoWorld) -> None:
        self.meter = table.meter
        self._table = table
        self._hs = world.hs
        parts = world.hs.parts
        declared = SpreadTable(table.name, "room", "at", [by_time("MSG#", iso_text)])
        registry = parts.registry
        self._core = Core([declared], registry.view, registry.meta.seed, parts.tracker)
        self._driver = AsyncDriver(self._upstream, OwnRegistry(registry, parts.backoff))
        self.service = ChatService(table.name, self._send, world.clock, world.rng)

    async def adopt(self) -> None:
        """Record that no program without Heatsink writes to the table."""
        registry = self._hs.parts.registry
        await registry.publish([completion(self._table.name, registry.now_ms())], None)

    async def _send(self, operation: str, parameters: Body) -> Body:
        steps = self._core.begin(operation, parameters)
        if steps is None:
            return self._counted(UpstreamCall(operation, parameters, self._subject().text))
        return await self._driver.run(steps)

    async def _upstream(self, call: UpstreamCall) -> Body:
        return self._counted(call)

    def _counted(self, call: UpstreamCall) -> Body:
        """Send a call. Throttling counts as heat, as in `attach` and in the door."""
        try:
            return self._table.answer(call.operation, call.parameters)
        except WireError as error:
            parts = self._hs.parts
            newest = parts.registry.view.layout(call.label).epochs[-1]
            if error.code in THROTTLING and newest.uses(call.bucket):
                parts.tracker.record_throttle(call.label)
            raise

    def _subject(self) -> Subject:
        return subject_in(self._table.name, ROOM)

    async def call(self, body: bytes) -> bytes:
        await self.service.say(body.decode())
        return body

    async def spread(self) -> Spread:
        return await spread_of(self._hs, self._subject())


def traffic_of(plan: TrafficPlan) -> Traffic:
    quiet, peak = QUIET * plan.peak, PEAK * plan.peak
    return Traffic(
        (
            Leg("a quiet room", 3, quiet, quiet),
            Leg("the room gets popular", 14, quiet, peak),
            Leg("everybody is here", 9, peak, peak),
            Leg("they leave", 4, peak, quiet),
        )
    ).faster(plan.speed)


class ServiceAct:
    name = "service"

    def about(self, plan: TrafficPlan) -> About:
        return about(self.name, "An existing service", WORDS.format(limit=plan.limit))

    def seconds(self, plan: TrafficPlan) -> float:
        return traffic_of(plan).seconds

    async def run(self, world: DemoWorld, plan: TrafficPlan, watcher: Watcher) -> ActVerdict:
        clock, name = world.clock, world.fresh("service")
        tables = [ServiceTable(name, LaneMeter(clock), world, plan.limit) for _ in range(2)]
        plain = PlainLane(tables[0], clock, world.rng)
        heatsink = HeatsinkLane(tables[1], world)
        await heatsink.adopt()
        async with duel_of(plain, heatsink, traffic_of(plan), clock) as duel:

            async def look() -> ServiceNow:
                return await _look(duel, plan.limit)

            await duel.fight(look, watcher)
            found = await plain.service.messages(), await heatsink.service.messages()
            missing = [
                wrongs(lane.accepted, rows)
                for lane, rows in zip((duel.plain, duel.heatsink), found, strict=True)
            ]
            totals = duel.plain.totals, duel.heatsink.totals
            return judge(duel.offer("messages"), *totals, sum(missing))


async def _look(duel: Duel, limit: int) -> ServiceNow:
    lanes = await duel.now()
    return ServiceNow(duel.second, duel.leg, *lanes, says=narrate(*lanes, limit))


def narrate(plain: LaneNow, heatsink: LaneNow, limit: int) -> str:
    sent_s, buckets = heatsink.rates.offered_s, heatsink.spread.buckets
    if not sent_s:
        if plain.totals.waiting or heatsink.totals.waiting:
            return "All messages were sent. The services still retry refused ones."
        return (
            f"All messages were sent; the service without Heatsink lost {plain.totals.dropped:,}."
        )
    if plain.rates.throttled_s and sent_s > limit:
        return (
            f"{sent_s:,} messages a second. Without Heatsink, the table accepts "
            f"{plain.rates.accepted_s:,} and refuses {plain.rates.throttled_s:,} tries; with it, "
            f"{buckets} partition keys take {heatsink.rates.accepted_s:,}."
        )
    if buckets > 1:
        return f"{sent_s:,} messages a second, under {buckets} partition keys of the table."
    return f"{sent_s:,} messages a second: one partition is enough for both."


def wrongs(accepted: dict[bytes, bytes], rows: list[tuple[str, str]]) -> int:
    """Return how many accepted messages are missing, stored twice, or updated twice."""
    counts = Counter(text for text, _ in rows)
    updated = sum(seen != "1" for _, seen in rows)
    return updated + sum(counts[known.decode()] != 1 for known in accepted.values())


def judge(offer: Offer, plain: Totals, heatsink: Totals, wrong: int) -> ActVerdict:
    lost = plain.dropped
    line = (
        f"Of {heatsink.offered:,} messages, the service stored {heatsink.accepted:,} with Heatsink "
        f"and {plain.accepted:,} without. Throttled: {heatsink.throttled:,} with Heatsink, "
        f"{plain.throttled:,} without."
    )
    said = "The service read back every stored message exactly once, with Heatsink and without."
    if wrong:
        said = f"{wrong:,} stored messages are missing, there twice, or updated twice."
    stored = f"With Heatsink, the service lost {heatsink.dropped:,} messages."
    findings = [
        ActFinding(not wrong, said),
        ActFinding(not heatsink.dropped, stored),
        ActFinding(
            None,
            f"Without Heatsink, it lost {lost:,} ({lost / max(plain.offered, 1):.0%}): dropped "
            "after three tries each.",
        ),
    ]
    return ActVerdict(*settle(line, offer, findings, wrong=bool(wrong)))
