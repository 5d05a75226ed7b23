"""What counts as heat when DynamoDB refuses a call, and which calls the door sends again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import msgspec
import pytest

import heatsink
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.keys import registry_key
from heatsink.door.protocol import UpstreamCall, WireError
from heatsink.door.times import millis_text
from heatsink.server.door.upstream import ATTEMPTS, Spreading
from heatsink.stores.dynamodb.connections import WireAnswer
from heatsink.testing.clocks import ManualClock

LABEL = registry_key("chat", "r")
ITEM = {"room": {"S": "r"}, "at": {"S": "META"}}
THROTTLES = ["ProvisionedThroughputExceededException", "ThrottlingException"]
CONFLICTS = ["TransactionConflictException", "TransactionInProgressException"]


class Refusing:
    """A DynamoDB that refuses every call."""

    def __init__(self) -> None:
        self.code = ""
        self.calls = 0

    async def forward(self, operation: str, body: bytes) -> WireAnswer:
        del operation, body
        self.calls += 1
        return WireAnswer(
            400, b"", msgspec.json.encode({"__type": f"x#{self.code}", "message": "no"})
        )


class Impatient(ManualClock):
    """A clock on which a wait takes no time."""

    async def sleep(self, seconds: float) -> None:
        del seconds


class Door:
    def __init__(self, hs: heatsink.Heatsink, monkeypatch: pytest.MonkeyPatch) -> None:
        rules = [by_time("MSG#", millis_text)]
        table = SpreadTable("chat", partition_key="room", sort_key="at", rules=rules)
        make: Any = Refusing
        self.dynamodb = make()
        clock = Impatient(1_794_744_000.0)
        self.spread = Spreading([table], hs, self.dynamodb, clock, Random(1), "memory://")
        self.heat: list[str] = []
        monkeypatch.setattr(hs.parts.tracker, "record_throttle", self.heat.append)


@pytest.fixture
async def door(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    async with heatsink.connect("memory://", coordinate=False) as hs:
        yield Door(hs, monkeypatch)


@pytest.mark.parametrize("code", THROTTLES)
async def test_throttling_is_heat_and_is_tried_again(door: Door, code: str) -> None:
    door.dynamodb.code = code
    with pytest.raises(WireError, match=code):
        await door.spread._send(UpstreamCall("PutItem", {"TableName": "chat", "Item": ITEM}, LABEL))
    assert door.dynamodb.calls == ATTEMPTS
    assert door.heat == [LABEL] * ATTEMPTS


@pytest.mark.parametrize("code", CONFLICTS)
async def test_a_conflict_on_one_item_is_no_heat_and_the_application_s_own(
    door: Door, code: str
) -> None:
    door.dynamodb.code = code
    with pytest.raises(WireError, match=code):
        await door.spread._send(UpstreamCall("PutItem", {"TableName": "chat", "Item": ITEM}, LABEL))
    body = msgspec.json.encode({"TableName": "chat", "Item": ITEM})
    given = await door.spread.answer("PutItem", body)  # passes unchanged
    assert (given.way, given.status) == ("passed", 400)
    assert door.dynamodb.calls == 2
    assert door.heat == []
