"""Malformed requests: refused in DynamoDB's words, before anything else is looked at."""

from __future__ import annotations

from typing import Any

import pytest

from heatsink.testing import ManualClock

from .calls import TABLE, Calls

MODEL = "com.amazonaws.dynamodb.v20120810."
KEY = {"pk": {"S": "a"}, "sk": {"S": "1"}}


@pytest.fixture
def calls() -> Calls:
    calls = Calls(ManualClock())
    calls.create()
    return calls


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"TableName": 1}, "NUMBER_VALUE cannot be converted to String"),
        ({"TableName": 1.5}, "DECIMAL_VALUE cannot be converted to String"),
        ({"TableName": True}, "TRUE_VALUE cannot be converted to String"),
        ({"TableName": []}, "Unrecognized collection type class java.lang.String"),
        ({"TableName": {}}, "Start of structure or map found where not expected"),
        ({"Item": "a"}, "Unexpected field type"),
        ({"Item": []}, (f"Unrecognized collection type java.util.Map<java.lang.String, {MODEL}"
         "AttributeValue>")),
        ({"Item": {"a": 1}}, "Unexpected value type in payload"),
        ({"Item": {"a": {"S": 1}}}, "NUMBER_VALUE cannot be converted to String"),
        ({"Item": {"a": {"BS": [[], []]}}},
         "Unrecognized collection type class java.nio.ByteBuffer"),
        ({"Item": {"a": {"B": "abc"}}},
         "Base64 encoded length is expected a multiple of 4 bytes but found: 3"),
        ({"Item": {"a": {"M": {"b": {"BOOL": 1}}}}}, "NUMBER_VALUE cannot be converted to Boolean"),
        ({"Item": {"a": {"L": "x"}}}, "Unexpected field type"),
        ({"Expected": {"a": {"Exists": "maybe"}}}, "Unexpected token received from parser"),
        ({"Expected": {"a": {"AttributeValueList": {}}}},
         "Start of structure or map found where not expected"),
    ],
)  # fmt: skip
def test_a_wrong_json_type_is_a_serialization_error(
    calls: Calls, request_: dict[str, Any], message: str
) -> None:
    given = {"TableName": "no such table", "Item": KEY, **request_}
    error = calls("PutItem", **given)
    assert error == {
        "__type": "com.amazon.coral.service#SerializationException",
        "Message": message,
    }


def test_all_violated_constraints_are_listed(calls: Calls) -> None:
    error = calls(
        "PutItem",
        TableName="no such table!",
        ReturnConsumedCapacity="x",
        ReturnValues="y",
        Expected={"a": {"ComparisonOperator": "z"}},
    )
    assert error["message"] == (
        "5 validation errors detected: Value 'x' at 'returnConsumedCapacity' failed to satisfy "
        "constraint: Member must satisfy enum value set: [INDEXES, TOTAL, NONE]; "
        "Value 'no such table!' at 'tableName' failed to satisfy constraint: "
        "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+; "
        "Value null at 'item' failed to satisfy constraint: Member must not be null; "
        "Value 'z' at 'expected.a.member.comparisonOperator' failed to satisfy constraint: Member "
        "must satisfy enum value set: [IN, NULL, BETWEEN, LT, NOT_CONTAINS, EQ, GT, NOT_NULL, NE, "
        "LE, BEGINS_WITH, GE, CONTAINS]; "
        "Value 'y' at 'returnValues' failed to satisfy constraint: Member must satisfy enum value "
        "set: [ALL_NEW, UPDATED_OLD, ALL_OLD, NONE, UPDATED_NEW]"
    )


@pytest.mark.parametrize(
    ("operation", "request_", "constraint"),
    [
        ("Query", {"Limit": 0},
         ("Value at 'Limit' failed to satisfy constraint: Member must have value greater than or "
         "equal to 1")),
        ("Scan", {"Limit": 0},
         ("Value '0' at 'limit' failed to satisfy constraint: Member must have value greater than "
         "or equal to 1")),
        ("Scan", {"Segment": 0, "TotalSegments": 1_000_001},
         ("Value '1000001' at 'totalSegments' failed to satisfy constraint: Member must have value "
         "less than or equal to 1000000")),
        ("GetItem", {"Key": KEY, "TableName": ""},
         ("Value '' at 'tableName' failed to satisfy constraint: Member must have length greater "
         "than or equal to 1")),
        ("GetItem", {"Key": KEY, "AttributesToGet": []},
         ("Value '[]' at 'attributesToGet' failed to satisfy constraint: Member must have length "
         "greater than or equal to 1")),
    ],
)  # fmt: skip
def test_bounds(calls: Calls, operation: str, request_: Any, constraint: str) -> None:
    error = calls(operation, **{"TableName": "missing", **request_})
    assert error["message"] == f"1 validation error detected: {constraint}"


def test_null_stands_for_a_field_that_is_not_given(calls: Calls) -> None:
    item = {**KEY, "a": {"S": "x", "N": None}}
    assert calls("PutItem", TableName=TABLE, Item=item, ReturnValues=None, Expected=None) == {}
    found = calls("GetItem", TableName=TABLE, Key=KEY, ConsistentRead=None, AttributesToGet=["a"])
    assert found == {"Item": {"a": {"S": "x"}}}


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("PutItem", {"Item": {"a": {"N": "x"}}}),
        ("PutItem", {"Item": KEY, "ConditionExpression": "a ="}),
        ("UpdateItem", {"Key": KEY, "UpdateExpression": "SET"}),
        ("DeleteItem", {"Key": {"pk": {"N": "x"}}}),
        ("GetItem", {"Key": KEY, "ProjectionExpression": "a, a"}),
        ("Query", {"KeyConditionExpression": "a = b"}),
        ("Scan", {"Segment": 1, "TotalSegments": 1}),
    ],
)
def test_a_request_is_checked_before_its_table_is_looked_up(
    calls: Calls, operation: str, request_: dict[str, Any]
) -> None:
    error = calls(operation, TableName="missing", **request_)
    assert error["__type"].endswith("#ValidationException")
    assert calls.status == 400
