"""`heatsink adopt --index`: spreads a global index in steps, and brings it back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import heatsink
from heatsink.boto import attach
from heatsink.cli import main
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.times import iso_text
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.subjects import Kind, Subject
from heatsink.server.adoption.sweeping import Sweeper, SweepSettings, recorded_table, sweeping
from heatsink.server.commands.fsck import existing_table
from heatsink.stores.dynamodb import open_table
from heatsink.testing.dynamodb import LocalDynamoDB
from tests.door.world import DEFINITION, INDEX, TABLE
from tests.waiting import soon

pytestmark = pytest.mark.server("the emulator listens")
FAST = ("--in-flight", "0", "--pace", "10000")
ROWS = 30


class Place:
    """A table with an index, a program that uses it through Heatsink, and its operator."""

    def __init__(self, dynamodb: LocalDynamoDB, folder: Path) -> None:
        self.stored: Any = dynamodb.client()
        self.client: Any = dynamodb.client()
        self.registry = f"sqlite:///{folder}/registry.db"
        self.table = f"dynamodb://{TABLE}?endpoint={dynamodb.url}"
        self.stored.create_table(**DEFINITION)

    def adopt(self, *flags: str) -> Result:
        return CliRunner().invoke(main, ["adopt", self.registry, self.table, *flags])

    def index(self, *flags: str) -> dict[str, Any]:
        result = self.adopt("--index", INDEX, "--json", *FAST, *flags)
        assert result.exit_code == 0, result.output
        shown: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        return shown

    def indexes(self) -> set[str]:
        found = self.stored.describe_table(TableName=TABLE)["Table"]["GlobalSecondaryIndexes"]
        return {one["IndexName"] for one in found} - {"by-pk"}

    def put(self, number: int) -> None:
        item = {"pk": {"S": "p"}, "sk": {"S": f"META{number:03}"}, "kind": {"S": "new"}}
        self.client.put_item(TableName=TABLE, Item={**item, "score": {"N": str(number)}})

    def shadows(self) -> set[str]:
        """Return the shadow attributes of all items: the buckets of the value `new`."""
        rows = self.stored.scan(TableName=TABLE)["Items"]
        return {row[f"heatsink:{INDEX}"]["S"] for row in rows}

    def are_in_one_bucket(self) -> bool:
        return self.shadows() == {"new"}

    def found(self) -> list[int]:
        answer = self.client.query(
            TableName=TABLE,
            IndexName=INDEX,
            KeyConditionExpression="kind = :k",
            ExpressionAttributeValues={":k": {"S": "new"}},
        )
        assert all(row.keys() == {"pk", "sk", "kind", "score"} for row in answer["Items"])
        return [int(row["score"]["N"]) for row in answer["Items"]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with LocalDynamoDB() as dynamodb:
        made = Place(dynamodb, tmp_path)
        rules = [by_time("MSG#", iso_text)]
        table = SpreadTable(TABLE, partition_key="pk", sort_key="sk", rules=rules)
        with heatsink.connect_sync(made.registry):
            pass
        with attach(made.client, tables=[table], registry=made.registry, coordinate=False):
            yield made


def test_an_operator_spreads_an_index_and_brings_it_back(place: Place) -> None:
    for number in range(ROWS):
        place.put(number)
    refused = place.adopt("--index", INDEX, "--spread", *FAST)
    assert refused.exit_code != 0
    assert "adoption" in str(refused.output) + str(refused.exception)
    assert place.adopt("--complete").exit_code == 0
    plan = place.index()
    assert plan["step"] is None
    assert plan["common"] == [{"value": "new", "items": ROWS}]
    assert place.index("--spread", "--keep-old")["step"] == "reading"
    assert place.indexes() == {INDEX, f"{INDEX}.heatsink"}
    place.put(ROWS)
    assert place.index("--spread")["step"] == "spread"
    assert place.indexes() == {f"{INDEX}.heatsink"}
    place.put(ROWS + 1)
    assert place.found() == list(range(ROWS + 2))
    assert place.index("--sweep")["open_buckets"] == 0
    leaving = place.adopt("--leave")
    assert "first bring each back" in (str(leaving.output) + str(leaving.exception)).lower()
    assert place.index("--leave")["step"] == "left"
    assert place.indexes() == {INDEX}
    assert place.found() == list(range(ROWS + 2))
    assert all("heatsink:by-kind" not in row for row in place.stored.scan(TableName=TABLE)["Items"])


async def test_the_leader_sweeps_a_value_that_has_cooled_down(place: Place) -> None:
    await asyncio.to_thread(place.adopt, "--complete")
    await asyncio.to_thread(place.index, "--spread")
    value = Subject(Kind.INDEX, f"{TABLE}/{INDEX}/new")
    async with heatsink.connect(place.registry) as hs, heatsink.connect(place.registry) as other:
        await hs.pin(value, buckets=3, reason="a test")
        numbers = count()

        async def is_spread() -> bool:
            await asyncio.to_thread(place.put, next(numbers))
            return len(place.shadows()) > 2

        await soon(is_spread)
        await hs.pin(value, buckets=1, reason="a test")

        def has_cooled_down() -> bool:
            for one in (hs.parts.registry, other.parts.registry):
                newest = one.view.layout(value.text).epochs[-1]
                if newest.buckets > 1 or newest.start_ms >= one.past_ms():
                    return False
            return True

        await soon(has_cooled_down)
        clock, at_once = SystemClock(), SweepSettings(look_s=0.05, calm_s=0, in_flight_s=0)
        client = open_table(await existing_table(place.table, place.registry, clock), clock)[1]
        sweepers = []
        for one in (hs, other):
            declared = partial(recorded_table, one.parts.registry.view, TABLE)
            sweepers.append(Sweeper(one, client, declared, clock, at_once))
        await sweepers[hs.status().leads].look()  # of the process that does not lead
        assert len(place.shadows()) > 2
        async with sweeping(sweepers):
            await soon(lambda: asyncio.to_thread(place.are_in_one_bucket))
        await client.close()
    assert sorted(place.found()) == list(range(next(numbers)))


def test_options_of_an_index_need_the_index(place: Place) -> None:
    for flags in (("--spread",), ("--sweep",), ("--index", INDEX, "--complete")):
        refused = place.adopt(*flags)
        assert refused.exit_code != 0
        assert "--index" in str(refused.output) + str(refused.exception)
