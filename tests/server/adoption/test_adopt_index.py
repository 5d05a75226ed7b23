"""`heatsink adopt --index`: spreads a global index in steps, and brings it back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import heatsink
from heatsink.boto import attach
from heatsink.cli import main
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.times import iso_text
from heatsink.testing.dynamodb import LocalDynamoDB
from tests.door.world import DEFINITION, INDEX, TABLE

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
        with attach(made.client, tables=[table], registry=made.registry):
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


def test_options_of_an_index_need_the_index(place: Place) -> None:
    for flags in (("--spread",), ("--sweep",), ("--index", INDEX, "--complete")):
        refused = place.adopt(*flags)
        assert refused.exit_code != 0
        assert "--index" in str(refused.output) + str(refused.exception)
