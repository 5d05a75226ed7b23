"""What only our engine is asked: limits of the parser, fields it does not have, its answers."""

from __future__ import annotations

from typing import Any

import boto3
import pytest

from heatsink.emulator.engine import API, OPERATIONS, REFUSED
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


READS = "ReadCapacityUnits"
QUOTA = "Subscriber limit exceeded: "


@pytest.mark.parametrize(
    ("reads", "writes", "code", "message"),
    [
        (40_001, 1, "LimitExceededException", f"{QUOTA}Requested ReadCapacityUnits"),
        (1, 40_001, "LimitExceededException", f"{QUOTA}Requested WriteCapacityUnits"),
        (10**12, 10**12, "LimitExceededException", f"{QUOTA}Requested ReadCapacityUnits"),
        (10**12 + 1, 1, "ValidationException", f"Given value {10**12 + 1} for {READS} is out of"),
        (1, 10**18, "ValidationException", f"Given value {10**18} for WriteCapacityUnits is out"),
        (0, 10**18, "ValidationException", "1 validation error detected: Value '0' at"),
    ],
)
def test_more_units_than_a_table_may_have_are_refused(
    clock: ManualClock, reads: int, writes: int, code: str, message: str
) -> None:
    calls = Calls(clock)
    error = calls.create(ProvisionedThroughput={READS: reads, "WriteCapacityUnits": writes})
    assert calls.status == 400
    assert error["__type"].endswith(f"#{code}")
    assert error["message"].startswith(message)
    calls.create(ProvisionedThroughput={READS: 40_000, "WriteCapacityUnits": 40_000})
    assert calls.status == 200


@pytest.mark.parametrize("units", [40_001, 10**18])
def test_a_table_on_demand_has_the_same_quota(clock: ManualClock, units: int) -> None:
    calls = Calls(clock)
    most = {"MaxReadRequestUnits": units}
    error = calls.create(BillingMode="PAY_PER_REQUEST", OnDemandThroughput=most)
    assert calls.status == 400
    assert "MaxReadRequestUnits" in error["message"]


@pytest.mark.parametrize("field", ["ProvisionedThroughput", "OnDemandThroughput"])
def test_a_number_of_any_length_is_answered(clock: ManualClock, field: str) -> None:
    huge = "9" * 400
    units = f'"{READS}": {huge}, "WriteCapacityUnits": 1'
    if field == "OnDemandThroughput":
        units = f'"MaxReadRequestUnits": {huge}'
    mode = "PROVISIONED" if field == "ProvisionedThroughput" else "PAY_PER_REQUEST"
    body = f'''{{"TableName": "things", "BillingMode": "{mode}", "{field}": {{{units}}},
        "AttributeDefinitions": [{{"AttributeName": "pk", "AttributeType": "S"}}],
        "KeySchema": [{{"AttributeName": "pk", "KeyType": "HASH"}}]}}'''
    status, answer = Calls(clock).engine.answer(f"{API}CreateTable", body.encode())
    assert (status, b"ValidationException" in answer) == (400, True)


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
        "Partition": 2,  # of ours alone
    }


@pytest.mark.parametrize(
    ("condition", "operator"),
    [(":a BETWEEN sk AND :a", "BETWEEN"), ("begins_with(:a, sk)", "begins_with")],
)
def test_a_key_condition_is_about_the_key(calls: Calls, condition: str, operator: str) -> None:
    error = calls(
        "Query",
        TableName=TABLE,
        KeyConditionExpression=f"pk = :a AND {condition}",
        ExpressionAttributeValues={":a": {"S": "a"}},
    )
    assert error["message"] == (
        f"Invalid condition in KeyConditionExpression: {operator} operator must have the key "
        "attribute as its first operand"
    )


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


def test_every_operation_of_the_service_is_supported_or_refused_with_a_reason(calls: Calls) -> None:
    """Those of the SDK that the tests use, which may lack the newest. A new one fails this test."""
    service = boto3.client("dynamodb", region_name="us-east-1").meta.service_model
    assert set(service.operation_names) - OPERATIONS.keys() <= REFUSED.keys()
    error = calls("ExecuteStatement", Statement="SELECT * FROM things")
    assert error["__type"].endswith("#UnknownOperationException")
    assert "no PartiQL" in error["message"]
