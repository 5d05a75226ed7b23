"""What the emulator says of hot partitions: which one, why, and whom it throttles."""

from __future__ import annotations

from typing import Any

import msgspec

from heatsink.emulator import page
from heatsink.emulator.explanation import CALM, NO_TABLES, explain
from heatsink.emulator.settings import EngineSettings
from heatsink.testing import ManualClock

from .calls import Calls

SECONDS = 3
WRITES_S = 200


def create(calls: Calls) -> None:
    names = ("id", "state")
    calls(
        "CreateTable",
        TableName="orders",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "by-state",
                "KeySchema": [{"AttributeName": "state", "KeyType": "HASH"}],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
        BillingMode="PAY_PER_REQUEST",
    )


async def written(state: Any, key: Any = "order{number}") -> Calls:
    """Write for some seconds. `state` and `key` are templates of the number of the write."""
    clock = ManualClock()
    calls = Calls(clock, EngineSettings(write_limit=100, read_limit=100, partitions=8))
    create(calls)
    for number in range(SECONDS * WRITES_S):
        item = {"id": key.format(number=number), "state": state.format(number=number)}
        values = {name: {"S": value} for name, value in item.items()}
        calls("PutItem", TableName="orders", Item=values)
        await clock.advance(1 / WRITES_S)
        calls.engine.tend()
    return calls


def lines_of(calls: Calls) -> list[str]:
    return explain(calls.engine.partitions())


def test_without_tables_and_without_heat_it_says_so() -> None:
    calls = Calls(ManualClock())
    assert lines_of(calls) == [NO_TABLES]
    create(calls)
    assert lines_of(calls) == [CALM]


async def test_a_hot_index_is_named_with_its_value_and_throttles_the_table() -> None:
    calls = await written("new")
    first, second, *rest = lines_of(calls)
    assert first.startswith("Index by-state of table orders: partition ")
    assert "throttles" in first
    assert "goes to the value 'new'" in first
    assert "writes to table orders that change this index are throttled" in second
    assert "…/index/by-state" in second
    assert not any(line.startswith("Table orders:") for line in rest)


async def test_many_values_of_an_index_are_calm() -> None:
    assert lines_of(await written("state{number}")) == [CALM]


async def test_a_hot_key_of_a_table_is_named() -> None:
    lines = lines_of(await written("state{number}", key="same"))
    assert lines[0].startswith("Table orders: partition ")
    assert "goes to the key 'same'" in lines[0]
    assert not any(line.startswith("Index") for line in lines)


async def test_the_server_has_the_same_lines() -> None:
    calls = await written("new")
    found = page.answer("/explain", calls.engine)
    assert found is not None
    assert msgspec.json.decode(found[1])["lines"] == lines_of(calls)
