"""Legacy parameters: Expected, AttributeUpdates, KeyConditions, filters, AttributesToGet."""

from __future__ import annotations

from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from .conftest import Refusal
from .deviations import deviates

LEGACY = (
    "https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/"
    "LegacyConditionalParameters.html"
)

KEY: Any = {"pk": {"S": "a"}, "sk": {"S": "1"}}
ITEM: Any = {
    **KEY,
    "n": {"N": "5"},
    "s": {"S": "hello"},
    "tags": {"SS": ["x", "y"]},
    "list": {"L": [{"S": "x"}]},
}


def condition(operator: str, *values: Any) -> Any:
    return {
        "ComparisonOperator": operator,
        **({"AttributeValueList": list(values)} if values else {}),
    }


CONDITIONS: list[tuple[str, Any, bool]] = [
    ("n", condition("EQ", {"N": "5.0"}), True),
    ("n", condition("NE", {"N": "5"}), False),
    ("n", condition("LT", {"N": "6"}), True),
    ("n", condition("GE", {"N": "6"}), False),
    ("n", condition("BETWEEN", {"N": "4"}, {"N": "5"}), True),
    ("n", condition("IN", {"N": "4"}, {"N": "6"}), False),
    ("s", condition("BEGINS_WITH", {"S": "he"}), True),
    ("s", condition("CONTAINS", {"S": "ell"}), True),
    ("s", condition("NOT_CONTAINS", {"S": "ell"}), False),
    ("tags", condition("CONTAINS", {"S": "x"}), True),
    ("missing", condition("NULL"), True),
    ("n", condition("NOT_NULL"), True),
    ("n", {"Value": {"N": "5"}}, True),
    ("n", {"Value": {"N": "5"}, "Exists": True}, True),
    ("n", {"Exists": False}, False),
]


@deviates("ministack", "asks for a value", LEGACY, condition("NULL"), condition("NOT_NULL"))
@pytest.mark.parametrize(("name", "expected", "holds"), CONDITIONS)
def test_a_put_with_expected(
    client: DynamoDBClient, table: str, refused: Refusal, name: str, expected: Any, holds: bool
) -> None:
    client.put_item(TableName=table, Item=ITEM)
    again = {"TableName": table, "Item": KEY, "Expected": {name: expected}}
    if holds:
        client.put_item(**again)
        return
    with refused:
        client.put_item(**again)
    assert refused.code == "ConditionalCheckFailedException"


@pytest.mark.parametrize(("operator", "holds"), [("AND", False), ("OR", True)])
def test_conditions_are_joined(
    client: DynamoDBClient, table: str, refused: Refusal, operator: Any, holds: bool
) -> None:
    client.put_item(TableName=table, Item=ITEM)
    expected: Any = {"n": condition("EQ", {"N": "1"}), "s": condition("EQ", {"S": "hello"})}
    call = {"Key": KEY, "Expected": expected, "ConditionalOperator": operator}
    if holds:
        client.delete_item(TableName=table, **call)
        return
    with refused:
        client.delete_item(TableName=table, **call)
    assert refused.code == "ConditionalCheckFailedException"


@deviates("ministack", "refuses to add to a list", LEGACY, "list")
@pytest.mark.parametrize(
    ("name", "update", "after"),
    [
        ("n", {"Value": {"N": "7"}}, {"N": "7"}),
        ("n", {"Action": "PUT", "Value": {"S": "x"}}, {"S": "x"}),
        ("n", {"Action": "ADD", "Value": {"N": "2"}}, {"N": "7"}),
        ("new", {"Action": "ADD", "Value": {"N": "2"}}, {"N": "2"}),
        ("tags", {"Action": "ADD", "Value": {"SS": ["z"]}}, {"SS": ["x", "y", "z"]}),
        ("tags", {"Action": "DELETE", "Value": {"SS": ["x"]}}, {"SS": ["y"]}),
        ("tags", {"Action": "DELETE", "Value": {"SS": ["x", "y"]}}, None),
        ("list", {"Action": "ADD", "Value": {"L": [{"S": "y"}]}}, {"L": [{"S": "x"}, {"S": "y"}]}),
        ("n", {"Action": "DELETE"}, None),
    ],
)
def test_attribute_updates(
    client: DynamoDBClient, table: str, name: str, update: Any, after: Any
) -> None:
    client.put_item(TableName=table, Item=ITEM)
    found = client.update_item(
        TableName=table, Key=KEY, AttributeUpdates={name: update}, ReturnValues="ALL_NEW"
    )["Attributes"].get(name)
    if found and "SS" in found:
        found["SS"] = sorted(found["SS"])
    assert found == after


@deviates("ministack", "accepts them, or has other words", LEGACY)
@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"Action": "PUT"}, "Only DELETE action is allowed when no attribute value is specified"),
        ({"Action": "DELETE", "Value": {"N": "1"}},
         "DELETE action with value is not supported for the type N"),
        ({"Action": "ADD", "Value": {"S": "1"}}, "ADD action is not supported for the type S"),
        ({"Action": "ADD", "Value": {"SS": ["1"]}}, "Type mismatch for attribute to update"),
    ],
)  # fmt: skip
def test_attribute_updates_that_are_refused(
    client: DynamoDBClient, table: str, refused: Refusal, update: Any, message: str
) -> None:
    client.put_item(TableName=table, Item=ITEM)
    with refused:
        client.update_item(TableName=table, Key=KEY, AttributeUpdates={"n": update})
    assert refused.code == "ValidationException"
    assert refused.message.endswith(message)


@deviates("ministack", "updates the key", LEGACY)
def test_a_key_is_no_attribute_to_update(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    with refused:
        client.update_item(TableName=table, Key=KEY, AttributeUpdates={"pk": {"Value": {"S": "b"}}})
    assert refused.message.endswith("Cannot update attribute pk. This attribute is part of the key")


def test_key_conditions_filters_and_attributes_to_get(client: DynamoDBClient, table: str) -> None:
    for number in range(5):
        client.put_item(TableName=table, Item={**ITEM, "sk": {"S": str(number)},
                                               "n": {"N": str(number)}})  # fmt: skip
    keys: Any = {"pk": condition("EQ", {"S": "a"}), "sk": condition("GT", {"S": "1"})}
    wanted: Any = {"n": condition("NE", {"N": "3"})}
    found = client.query(
        TableName=table, KeyConditions=keys, QueryFilter=wanted, AttributesToGet=["n"]
    )
    assert found["Items"] == [{"n": {"N": "2"}}, {"n": {"N": "4"}}]
    assert found["ScannedCount"] == 3
    scanned = client.scan(
        TableName=table, ScanFilter={"n": condition("LE", {"N": "1"})}, AttributesToGet=["sk"]
    )
    assert sorted(one["sk"]["S"] for one in scanned["Items"]) == ["0", "1"]
    read = client.get_item(TableName=table, Key={**KEY, "sk": {"S": "0"}}, AttributesToGet=["n"])
    assert read["Item"] == {"n": {"N": "0"}}
    batch = client.batch_get_item(RequestItems={table: {"Keys": [KEY], "AttributesToGet": ["n"]}})
    assert batch["Responses"][table] == [{"n": {"N": "1"}}]


def test_an_update_has_values_of_its_own_beside_those_of_its_condition(
    client: DynamoDBClient, table: str
) -> None:
    client.put_item(TableName=table, Item=ITEM)
    found = client.update_item(
        TableName=table,
        Key=KEY,
        Expected={"n": {"Value": {"N": "5"}}},
        AttributeUpdates={"n": {"Value": {"N": "6"}}},
        ReturnValues="UPDATED_NEW",
    )
    assert found["Attributes"] == {"n": {"N": "6"}}


def test_key_conditions_go_with_a_filter_expression(client: DynamoDBClient, table: str) -> None:
    client.put_item(TableName=table, Item=ITEM)
    found = client.query(
        TableName=table,
        KeyConditions={"pk": condition("EQ", {"S": "a"})},
        FilterExpression="n > :n",
        ExpressionAttributeValues={":n": {"N": "4"}},
    )
    assert found["Count"] == 1


@deviates("ministack", "looks the table up first", LEGACY)
@pytest.mark.parametrize(
    ("operation", "request_", "old", "new"),
    [
        ("put_item", {"Item": KEY, "Expected": {"a": {"Exists": False}},
                      "ConditionExpression": "attribute_exists(a)"},
         "Expected", "ConditionExpression"),
        ("update_item", {"Key": KEY, "AttributeUpdates": {}, "UpdateExpression": "REMOVE a"},
         "AttributeUpdates", "UpdateExpression"),
        ("scan", {"ScanFilter": {"a": condition("NULL")}, "ProjectionExpression": "a"},
         "ScanFilter", "ProjectionExpression"),
    ],
)  # fmt: skip
def test_legacy_parameters_and_expressions_do_not_mix(
    client: DynamoDBClient, refused: Refusal, operation: str, request_: Any, old: str, new: str
) -> None:
    with refused:
        getattr(client, operation)(TableName="no-such-table", **request_)
    assert refused.message == (
        "Can not use both expression and non-expression parameters in the same request: "
        f"Non-expression parameters: {{{old}}} Expression parameters: {{{new}}}"
    )


@deviates("ministack", "creates the item", LEGACY)
@pytest.mark.parametrize("verb", ["REMOVE n", "DELETE tags :tags"])
def test_removing_from_an_item_that_is_not_there_creates_none(
    client: DynamoDBClient, table: str, verb: str
) -> None:
    values: Any = {":tags": {"SS": ["x"]}} if ":tags" in verb else None
    options = {"ExpressionAttributeValues": values} if values else {}
    client.update_item(TableName=table, Key=KEY, UpdateExpression=verb, **options)
    assert client.scan(TableName=table)["Count"] == 0
    client.update_item(TableName=table, Key=KEY, AttributeUpdates={"n": {"Action": "DELETE"}})
    assert client.scan(TableName=table)["Count"] == 0
