"""What only our engine is asked: limits of the parser, fields it does not have, its answers."""

from __future__ import annotations

from typing import Any

import pytest

from heatsink.testing import ManualClock

from .calls import TABLE, Calls


@pytest.fixture
def calls(clock: ManualClock) -> Calls:
    made = Calls(clock)
    made.create()
    return made


def test_an_expression_that_nests_too_deep_is_refused(calls: Calls) -> None:
    error = calls.put("a", ConditionExpression="(" * 4_000)
    assert calls.status == 400
    assert error["__type"].endswith("#ValidationException")


def test_a_value_that_nests_too_deep_is_refused(calls: Calls) -> None:
    value: Any = {"S": "x"}
    for _ in range(400):
        value = {"L": [value]}
    item = {"pk": {"S": "a"}, "sk": {"S": "1"}, "deep": value}
    error = calls("PutItem", TableName=TABLE, Item=item)
    assert "Nesting Levels" in error["message"]


@pytest.mark.parametrize("field", ["Expected", "AttributeUpdates", "ConditionalOperator"])
def test_parameters_of_old_are_refused_rather_than_ignored(calls: Calls, field: str) -> None:
    unsupported: Any = {field: {}}
    error = calls.put("a", **unsupported)
    assert calls.status == 400
    assert field in error["message"]
    assert "Item" not in calls.get("a", consistent=True)


def test_a_table_with_indexes_is_refused(clock: ManualClock) -> None:
    calls = Calls(clock)
    error = calls.create(
        BillingMode="PAY_PER_REQUEST", GlobalSecondaryIndexes=[{"IndexName": "other"}]
    )
    assert error["__type"].endswith("#ValidationException")
    assert "no secondary indexes" in error["message"]


def test_a_missing_field_is_named(calls: Calls) -> None:
    error = calls("PutItem", Item={})
    assert error["message"] == (
        "1 validation error detected: Value null at 'tableName' failed to satisfy constraint: "
        "Member must not be null"
    )


def test_capacity_of_the_table_apart_from_indexes(calls: Calls) -> None:
    answer = calls.put("a", ReturnConsumedCapacity="INDEXES")
    assert answer["ConsumedCapacity"] == {
        "TableName": TABLE,
        "CapacityUnits": 1.0,
        "Table": {"CapacityUnits": 1.0},
    }


@pytest.mark.parametrize("condition", [":a BETWEEN sk AND :a", "begins_with(:a, sk)"])
def test_a_key_condition_is_about_the_key(calls: Calls, condition: str) -> None:
    error = calls(
        "Query",
        TableName=TABLE,
        KeyConditionExpression=f"pk = :a AND {condition}",
        ExpressionAttributeValues={":a": {"S": "a"}},
    )
    assert error["message"] == "Query key condition not supported"


def test_a_condition_may_be_written_value_first(calls: Calls) -> None:
    for sort in "abc":
        calls.put("a", sort)
    page = calls(
        "Query",
        TableName=TABLE,
        KeyConditionExpression=":p = pk AND :b < sk",
        ExpressionAttributeValues={":p": {"S": "a"}, ":b": {"S": "a"}},
    )
    assert [item["sk"]["S"] for item in page["Items"]] == ["b", "c"]


def test_a_table_may_be_named_by_its_arn(calls: Calls) -> None:
    arn = calls("DescribeTable", TableName=TABLE)["Table"]["TableArn"]
    item = {"pk": {"S": "a"}, "sk": {"S": "1"}}
    calls("PutItem", TableName=arn, Item=item)
    assert calls.get("a", consistent=True)["Item"] == item


def test_a_description_counts_items_and_bytes(calls: Calls) -> None:
    calls.put("a", size=10)
    calls.put("b", size=20)
    table = calls("DescribeTable", TableName=TABLE)["Table"]
    assert (table["ItemCount"], table["TableSizeBytes"]) == (2, 2 * len("pkaskx1") + 30)
