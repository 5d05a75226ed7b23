"""Pages of 1 MB end at the row at which they end on a plain table, whatever is stored with it."""

from __future__ import annotations

from itertools import accumulate, chain, pairwise
from random import Random
from typing import Any

import pytest

from heatsink.door.protocol import Body
from heatsink.stores.dynamodb.wire.values import admit_item

from .differential import sent
from .grammar import text_of
from .world import TABLE, Process, Upstream, World

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


SMALL_ROWS = 2_400  # of about 700 bytes


@pytest.fixture(scope="module", params=["plain index", "spread index"])
def small_rows(request: pytest.FixtureRequest) -> World:
    made = World(spread_index=request.param == "spread index")
    made.registry.spread(made.label("hot"), 3)
    made.registry.closed_ms += SMALL_ROWS + 1
    if made.has_spread_index:
        made.spread_value("u", 4)
    made.renew(made.processes[0])
    rng = Random(3)
    for number in range(SMALL_ROWS):
        sort = f"MSG#{text_of(made.registry.closed_ms - SMALL_ROWS + number - 1)}"
        row = {"pk": {"S": "hot"}, "sk": {"S": sort}, "kind": {"S": "u"}}
        row |= {"score": {"N": str(number)}, "body": {"S": "x" * rng.randint(500, 900)}}
        for send in (made.processes[0].send, made.plain.send):
            send("PutItem", {"TableName": TABLE, "Item": row})
    return made


def pages_of(process: Process | Upstream, operation: str, request: Body) -> list[Body]:
    """Return all pages of a read. Check that each says to have consumed what its calls consumed."""
    pages: list[Body] = []
    while not pages or "LastEvaluatedKey" in pages[-1]:
        given = {"TableName": TABLE, "ReturnConsumedCapacity": "TOTAL", **request}
        if pages:
            given["ExclusiveStartKey"] = pages[-1]["LastEvaluatedKey"]
        pages.append(sent(process, operation, given))
    return pages


READS: dict[str, tuple[str, Body]] = {
    "scan": ("Scan", {}),
    "scan with a limit": ("Scan", {"Limit": 1_490}),
    "scan of a part": ("Scan", {"Segment": 0, "TotalSegments": 2}),
    "scan of an index": ("Scan", {"IndexName": "by-kind"}),
    "scan of a local index": ("Scan", {"IndexName": "by-score"}),
    "query of an index": (
        "Query",
        {
            "IndexName": "by-kind",
            "KeyConditionExpression": "kind = :k",
            "ExpressionAttributeValues": {":k": {"S": "u"}},
        },
    ),
}


@pytest.mark.parametrize("read", READS)
def test_pages_of_scans_and_indexes_are_as_full_as_without_heatsink(
    small_rows: World, read: str
) -> None:
    operation, request = READS[read]
    process, limit = small_rows.processes[0], request.get("Limit")
    found = [page["Items"] for page in pages_of(process, operation, request)]
    plain = [page["Items"] for page in pages_of(small_rows.plain, operation, request)]
    if operation == "Query":
        assert found == plain
    if "Segment" not in request:
        assert sorted(map(str, chain(*found))) == sorted(map(str, chain(*plain)))
    assert len(found) > 1
    for page, later in pairwise(found):
        size = sum(map(admit_item, page))
        assert size <= MB
        assert len(page) == limit or size + admit_item(later[0]) > MB


FILTERED = {
    "FilterExpression": "begins_with(pk, :h) AND score < :n",
    "ExpressionAttributeValues": {":h": {"S": "h"}, ":n": {"N": "5"}},
}


@pytest.mark.parametrize("index", [{}, {"IndexName": "by-kind"}, {"IndexName": "by-score"}])
@pytest.mark.parametrize("form", [FILTERED, {**FILTERED, "Select": "COUNT"}])
def test_a_filter_by_the_partition_key_sees_pages_that_are_as_full(
    small_rows: World, index: Body, form: Body
) -> None:
    pages = pages_of(small_rows.processes[0], "Scan", {**index, **form})
    whole = pages_of(small_rows.processes[0], "Scan", index)
    assert [page["ScannedCount"] for page in pages] == [page["ScannedCount"] for page in whole]
    assert sum(page["Count"] for page in pages) == 5


@pytest.mark.parametrize("index", [{}, {"IndexName": "by-kind"}, {"IndexName": "by-score"}])
def test_pages_that_dynamodb_filters_have_all_rows(small_rows: World, index: Body) -> None:
    few = {"ComparisonOperator": "LT", "AttributeValueList": [{"N": "5"}]}
    pages = pages_of(small_rows.processes[0], "Scan", {**index, "ScanFilter": {"score": few}})
    assert sum(page["ScannedCount"] for page in pages) == SMALL_ROWS
    assert sum(page["Count"] for page in pages) == sum(len(page["Items"]) for page in pages) == 5
