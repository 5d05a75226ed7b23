"""Pages of 1 MB end at the row at which they end on a plain table, whatever is stored with it."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import Any

import pytest

from heatsink.door.protocol import Body
from heatsink.stores.dynamodb.wire.values import admit_item

from .grammar import text_of
from .world import TABLE, World

ROWS = 130
MB = 1_048_576
KEYS = {"cold": "cold", "hot": "hot", "too long to be spread": "k" * 2_040}
FORMS: dict[str, Body] = {
    "whole": {},
    "filtered": {
        "FilterExpression": "score > :n",
        "ExpressionAttributeValues": {":n": {"N": "50"}},
    },
    "counted": {"Select": "COUNT"},
    "projected": {"ProjectionExpression": "sk"},
    "from the end": {"ScanIndexForward": False},
    "of an index": {"IndexName": "by-score", "KeyConditionExpression": "pk = :p"},
    "limited": {"Limit": 80},
}


def rows_of(key: str, world: World, rng: Random) -> list[Body]:
    """Return rows of more than 1 MB. Without their shadows, the page ends exactly at 1 MB."""
    rows: list[Body] = []
    at_ms = world.now_ms() - 1
    for number in range(ROWS):
        sort = f"META#{number:04}" if number < ROWS // 2 else f"MSG#{text_of(at_ms)}#{number:04}"
        row = {"pk": {"S": key}, "sk": {"S": sort}, "kind": {"S": "u"}}
        row["score"] = {"N": str(100 + number)}
        rows.append({**row, "body": {"S": "x" * rng.randint(9_000, 11_000)}})
    sizes = list(accumulate(map(admit_item, rows)))
    last = next(number for number, size in enumerate(sizes) if size > MB) - 1
    rows[last]["body"] = {"S": rows[last]["body"]["S"] + "x" * (MB - sizes[last])}
    assert sum(map(admit_item, rows[: last + 1])) == MB
    return rows


@pytest.fixture(scope="module")
def world() -> World:
    made = World(spread_index=True)
    made.registry.spread(made.label("hot"), 3)
    made.registry.closed_ms += 1_000
    made.spread_value("u", 4)
    made.renew(made.processes[0])
    rng = Random(1)
    for key in KEYS.values():
        for row in rows_of(key, made, rng):
            for send in (made.processes[0].send, made.plain.send):
                send("PutItem", {"TableName": TABLE, "Item": row})
    return made


@pytest.mark.parametrize("consistent", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", KEYS)
def test_a_page_ends_where_it_ends_without_shadows(
    world: World, key: str, form: str, consistent: bool
) -> None:
    request: dict[str, Any] = {
        "TableName": TABLE,
        "KeyConditionExpression": "pk = :p AND sk < :s",
        "ConsistentRead": consistent,
        **FORMS[form],
    }
    values = {":p": {"S": KEYS[key]}, **request.get("ExpressionAttributeValues", {})}
    if "IndexName" not in request:
        values[":s"] = {"S": "S"}  # before the prefix that is always in several buckets
    request["ExpressionAttributeValues"] = values
    pages = 0
    while True:
        found = world.processes[0].send("Query", request)
        assert found == world.plain.send("Query", request)
        pages += 1
        if "LastEvaluatedKey" not in found:
            break
        request["ExclusiveStartKey"] = found["LastEvaluatedKey"]
    assert pages == 2
