"""Tables: create, describe, list, delete; time to live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy_boto3_dynamodb import DynamoDBClient

from .conftest import Refusal

ONE_KEY: Any = {
    "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}],
}
ON_DEMAND: Any = {"BillingMode": "PAY_PER_REQUEST"}


def test_a_table_is_described(client: DynamoDBClient, table: str) -> None:
    client.get_waiter("table_exists").wait(TableName=table)
    described = client.describe_table(TableName=table)["Table"]
    assert described["TableName"] == table
    assert described["TableStatus"] == "ACTIVE"
    assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert described["TableArn"].endswith(f":table/{table}")
    assert described["KeySchema"] == [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ]


def test_a_provisioned_table_says_how_much(
    client: DynamoDBClient, make_table: Callable[..., str]
) -> None:
    table = make_table(ProvisionedThroughput={"ReadCapacityUnits": 7, "WriteCapacityUnits": 3})
    described = client.describe_table(TableName=table)["Table"]["ProvisionedThroughput"]
    assert (described["ReadCapacityUnits"], described["WriteCapacityUnits"]) == (7, 3)


def test_tables_are_listed_in_order_and_in_pages(
    client: DynamoDBClient, make_table: Callable[..., str]
) -> None:
    made = sorted(make_table() for _ in range(3))
    pages = client.get_paginator("list_tables").paginate(PaginationConfig={"PageSize": 2})
    listed = [name for page in pages for name in page["TableNames"]]
    assert [name for name in listed if name in made] == made


def test_a_name_is_taken_once(client: DynamoDBClient, table: str, refused: Refusal) -> None:
    with refused:
        client.create_table(TableName=table, **ONE_KEY, **ON_DEMAND)
    assert refused.code == "ResourceInUseException"
    assert refused.message == f"Table already exists: {table}"


def test_a_table_that_is_not_there(client: DynamoDBClient, refused: Refusal) -> None:
    with refused:
        client.describe_table(TableName="no-such-table")
    assert refused.code == "ResourceNotFoundException"
    assert refused.message == "Requested resource not found: Table: no-such-table not found"


def test_a_deleted_table_is_gone_with_its_items(client: DynamoDBClient, refused: Refusal) -> None:
    for _ in range(2):
        client.create_table(TableName="short-lived", **ONE_KEY, **ON_DEMAND)
        assert client.scan(TableName="short-lived")["Count"] == 0
        client.put_item(TableName="short-lived", Item={"pk": {"S": "a"}})
        client.delete_table(TableName="short-lived")
        client.get_waiter("table_not_exists").wait(TableName="short-lived")
    with refused:
        client.delete_table(TableName="short-lived")
    assert refused.code == "ResourceNotFoundException"


def test_a_table_without_sort_keys(client: DynamoDBClient, make_table: Callable[..., str]) -> None:
    table = make_table("S", None)
    for name in ("a", "b"):
        client.put_item(TableName=table, Item={"pk": {"S": name}})
    page = client.query(
        TableName=table,
        KeyConditionExpression="pk = :p",
        ExpressionAttributeValues={":p": {"S": "a"}},
    )
    assert page["Items"] == [{"pk": {"S": "a"}}]
    assert client.scan(TableName=table)["Count"] == 2


def test_provisioned_needs_numbers(client: DynamoDBClient, refused: Refusal) -> None:
    with refused:
        client.create_table(TableName="unprovisioned", **ONE_KEY)
    assert refused.code == "ValidationException"


def test_key_attributes_must_be_defined(client: DynamoDBClient, refused: Refusal) -> None:
    with refused:
        client.create_table(
            TableName="undefined",
            AttributeDefinitions=[{"AttributeName": "other", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            **ON_DEMAND,
        )
    assert refused.code == "ValidationException"


def test_time_to_live_is_remembered(client: DynamoDBClient, table: str) -> None:
    before = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert before["TimeToLiveStatus"] == "DISABLED"
    wanted: Any = {"Enabled": True, "AttributeName": "expires"}
    client.update_time_to_live(TableName=table, TimeToLiveSpecification=wanted)
    after = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert after == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}
