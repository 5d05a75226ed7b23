"""Query and Scan: order, ranges, pages, filters, costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from .conftest import Refusal
from .deviations import deviates

GUIDE = "https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/"
UNITS = GUIDE + "read-write-operations.html"
KEY_CONDITIONS = GUIDE + "Query.KeyConditionExpressions.html"
FILTERS = GUIDE + "Query.FilterExpression.html"

P = {":p": {"S": "a"}}


def fill(client: DynamoDBClient, table: str, sorts: list[Any], kind: str = "S") -> None:
    for sort in sorts:
        item: Any = {"pk": {"S": "a"}, "sk": {kind: sort}, "n": {"N": str(len(sorts))}}
        client.put_item(TableName=table, Item=item)


def query(client: DynamoDBClient, table: str, condition: str = "pk = :p", **options: Any) -> Any:
    values = {**P, **options.pop("values", {})}
    return client.query(
        TableName=table,
        KeyConditionExpression=condition,
        ExpressionAttributeValues=values,
        **options,
    )


def sorts_of(answer: Any) -> list[Any]:
    return [next(iter(item["sk"].values())) for item in answer["Items"]]


@pytest.mark.parametrize(
    ("condition", "values", "expected"),
    [
        ("pk = :p", {}, ["a", "ab", "b", "c"]),
        ("pk = :p AND sk = :a", {":a": "b"}, ["b"]),
        ("pk = :p AND sk < :a", {":a": "b"}, ["a", "ab"]),
        ("pk = :p AND sk <= :a", {":a": "b"}, ["a", "ab", "b"]),
        ("pk = :p AND sk > :a", {":a": "b"}, ["c"]),
        ("pk = :p AND sk >= :a", {":a": "b"}, ["b", "c"]),
        ("sk >= :a AND pk = :p", {":a": "b"}, ["b", "c"]),
        ("pk = :p AND sk BETWEEN :a AND :b", {":a": "ab", ":b": "b"}, ["ab", "b"]),
        ("pk = :p AND begins_with(sk, :a)", {":a": "a"}, ["a", "ab"]),
        ("(pk = :p) AND (sk = :a)", {":a": "c"}, ["c"]),
    ],
)
def test_ranges_of_sort_keys(
    client: DynamoDBClient, table: str, condition: str, values: dict[str, str], expected: list[str]
) -> None:
    fill(client, table, ["b", "a", "c", "ab"])
    given = {name: {"S": value} for name, value in values.items()}
    assert sorts_of(query(client, table, condition, values=given)) == expected
    backward = query(client, table, condition, values=given, ScanIndexForward=False)
    assert sorts_of(backward) == expected[::-1]


def test_numbers_sort_as_numbers(client: DynamoDBClient, make_table: Callable[..., str]) -> None:
    table = make_table("S", "N")
    fill(client, table, ["10", "9", "-1", "0.5", "-10", "1E30", "100"], "N")
    assert sorts_of(query(client, table)) == [
        "-10", "-1", "0.5", "9", "10", "100", "1" + "0" * 30
    ]  # fmt: skip


def test_text_sorts_by_its_bytes(client: DynamoDBClient, table: str) -> None:
    fill(client, table, ["ä", "Z", "a", "\U0001f600", "\uffff"])
    assert sorts_of(query(client, table)) == ["Z", "a", "ä", "\uffff", "\U0001f600"]


def test_binaries_sort_as_unsigned_bytes(
    client: DynamoDBClient, make_table: Callable[..., str]
) -> None:
    table = make_table("S", "B")
    fill(client, table, [b"\xff", b"\x00", b"\x7f", b"\x00\x00"], "B")
    assert sorts_of(query(client, table)) == [b"\x00", b"\x00\x00", b"\x7f", b"\xff"]


@pytest.mark.parametrize("forward", [True, False])
def test_following_pages_visits_each_item_once(
    client: DynamoDBClient, table: str, forward: bool
) -> None:
    names = [f"{number:02}" for number in range(10)]
    fill(client, table, names)
    seen: list[str] = []
    start: Any = {}
    while True:
        page = query(client, table, Limit=3, ScanIndexForward=forward, **start)
        seen += sorts_of(page)
        assert page["Count"] == len(page["Items"]) <= 3
        if "LastEvaluatedKey" not in page:
            break
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
    assert seen == (names if forward else names[::-1])


def test_a_page_that_ends_at_its_limit_has_a_key_to_go_on(
    client: DynamoDBClient, table: str
) -> None:
    fill(client, table, ["a", "b"])
    assert "LastEvaluatedKey" not in query(client, table, Limit=3)
    page = query(client, table, Limit=2)
    assert page["LastEvaluatedKey"] == {"pk": {"S": "a"}, "sk": {"S": "b"}}
    rest = query(client, table, ExclusiveStartKey=page["LastEvaluatedKey"])
    assert rest["Items"] == []


def test_a_page_ends_at_one_megabyte(client: DynamoDBClient, table: str) -> None:
    for number in range(4):
        item: Any = {"pk": {"S": "a"}, "sk": {"S": str(number)}, "x": {"S": "x" * 380_000}}
        client.put_item(TableName=table, Item=item)
    page = query(client, table, ReturnConsumedCapacity="TOTAL")
    assert sorts_of(page) in (["0", "1"], ["0", "1", "2"])
    assert page["LastEvaluatedKey"]["sk"]["S"] == sorts_of(page)[-1]
    rest = query(client, table, ExclusiveStartKey=page["LastEvaluatedKey"])
    assert sorts_of(page) + sorts_of(rest) == ["0", "1", "2", "3"]


def test_a_filter_drops_items_after_the_limit_has_counted_them(
    client: DynamoDBClient, table: str
) -> None:
    for number in range(6):
        item: Any = {"pk": {"S": "a"}, "sk": {"S": str(number)}, "n": {"N": str(number % 2)}}
        client.put_item(TableName=table, Item=item)
    page = query(client, table, FilterExpression="n = :n", values={":n": {"N": "1"}}, Limit=4)
    assert sorts_of(page) == ["1", "3"]
    assert (page["Count"], page["ScannedCount"]) == (2, 4)
    assert page["LastEvaluatedKey"]["sk"] == {"S": "3"}


def test_counting_returns_no_items(client: DynamoDBClient, table: str) -> None:
    fill(client, table, ["a", "b"])
    page = query(client, table, Select="COUNT")
    assert (page["Count"], page["ScannedCount"]) == (2, 2)
    assert "Items" not in page


@deviates("ministack", "charges one unit whatever the size", UNITS)
def test_a_query_rounds_the_sum_and_not_each_item(client: DynamoDBClient, table: str) -> None:
    for number in range(10):
        item: Any = {"pk": {"S": "a"}, "sk": {"S": str(number)}, "x": {"S": "x" * 1_000}}
        client.put_item(TableName=table, Item=item)
    weak = query(client, table, ReturnConsumedCapacity="TOTAL")
    strong = query(client, table, ReturnConsumedCapacity="TOTAL", ConsistentRead=True)
    assert weak["ConsumedCapacity"]["CapacityUnits"] == 1.5
    assert strong["ConsumedCapacity"]["CapacityUnits"] == 3.0


def test_a_query_of_nothing_costs_half_a_unit(client: DynamoDBClient, table: str) -> None:
    page = query(client, table, ReturnConsumedCapacity="TOTAL")
    assert page["Items"] == []
    assert page["ConsumedCapacity"]["CapacityUnits"] == 0.5


@deviates("ministack", "accepts OR", KEY_CONDITIONS, "pk = :p OR sk = :p")
@pytest.mark.parametrize(
    ("condition", "values", "message"),
    [
        ("sk = :p", {}, "Query condition missed key schema element: pk"),
        ("pk > :p", {}, "Query "),
        ("pk = :p AND n = :a", {":a": {"N": "1"}}, "Query condition missed key schema element"),
        ("pk = :p OR sk = :p", {}, "Invalid operator used in KeyConditionExpression: OR"),
        ("pk = :p AND pk = :p", {}, "must only contain one condition per key"),
        ("pk = :a", {":a": {"N": "1"}}, "Condition parameter type does not match schema type"),
    ],
)
def test_key_conditions_that_are_refused(
    client: DynamoDBClient, table: str, refused: Refusal, condition: str, values: Any, message: str
) -> None:
    given = {**(P if ":p" in condition else {}), **values}
    with refused:
        client.query(
            TableName=table, KeyConditionExpression=condition, ExpressionAttributeValues=given
        )
    assert refused.code == "ValidationException"
    assert message in refused.message


@deviates("ministack", "accepts keys in filters", FILTERS)
def test_a_filter_may_not_name_keys(client: DynamoDBClient, table: str, refused: Refusal) -> None:
    with refused:
        query(client, table, FilterExpression="sk = :p")
    assert refused.code == "ValidationException"
    assert refused.message == (
        "Filter Expression can only contain non-primary key attributes: Primary key attribute: sk"
    )


def test_there_is_no_index_of_that_name(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    with refused:
        query(client, table, IndexName="some-index")
    assert refused.code == "ValidationException"
    assert refused.message == "The table does not have the specified index: some-index"


def put_many(client: DynamoDBClient, table: str, count: int) -> set[str]:
    for number in range(count):
        client.put_item(
            TableName=table, Item={"pk": {"S": f"k{number % 7}"}, "sk": {"S": str(number)}}
        )
    return {str(number) for number in range(count)}


def scan_all(client: DynamoDBClient, table: str, **options: Any) -> list[str]:
    found: list[str] = []
    start: Any = {}
    while True:
        page = client.scan(TableName=table, **options, **start)
        found += sorts_of(page)
        if "LastEvaluatedKey" not in page:
            return found
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_a_scan_visits_each_item_once(client: DynamoDBClient, table: str, limit: int) -> None:
    everything = put_many(client, table, 30)
    found = scan_all(client, table, Limit=limit)
    assert len(found) == 30
    assert set(found) == everything


def test_segments_of_a_scan_do_not_overlap(client: DynamoDBClient, table: str) -> None:
    everything = put_many(client, table, 30)
    found: list[str] = []
    for segment in range(3):
        found += scan_all(client, table, Segment=segment, TotalSegments=3, Limit=4)
    assert len(found) == 30
    assert set(found) == everything


def test_a_scan_filters_and_projects(client: DynamoDBClient, table: str) -> None:
    put_many(client, table, 10)
    page = client.scan(
        TableName=table,
        FilterExpression="pk = :k",
        ExpressionAttributeValues={":k": {"S": "k1"}},
        ProjectionExpression="sk",
    )
    assert sorted(page["Items"], key=str) == [{"sk": {"S": "1"}}, {"sk": {"S": "8"}}]
    assert page["ScannedCount"] == 10
