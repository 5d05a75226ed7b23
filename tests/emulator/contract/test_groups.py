"""Batches and transactions."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from .conftest import Refusal
from .deviations import deviates

API = "https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/"


def key(number: int) -> Any:
    return {"pk": {"S": "a"}, "sk": {"S": str(number)}}


def counts(client: DynamoDBClient, table: str) -> dict[str, str]:
    items = client.scan(TableName=table, ConsistentRead=True)["Items"]
    return {item["sk"]["S"]: item.get("n", {"N": "-"})["N"] for item in items}


def put_of(table: str, number: int, n: str = "1", **options: Any) -> Any:
    return {"Put": {"TableName": table, "Item": {**key(number), "n": {"N": n}}, **options}}


def add_of(table: str, number: int, **options: Any) -> Any:
    update = {
        "TableName": table,
        "Key": key(number),
        "UpdateExpression": "ADD n :v",
        "ExpressionAttributeValues": {":v": {"N": "1"}},
    }
    return {"Update": {**update, **options}}


def test_a_batch_puts_and_deletes(client: DynamoDBClient, table: str) -> None:
    client.put_item(TableName=table, Item=key(0))
    answer = client.batch_write_item(
        RequestItems={
            table: [
                {"DeleteRequest": {"Key": key(0)}},
                {"PutRequest": {"Item": {**key(1), "n": {"N": "1"}}}},
            ]
        },
        ReturnConsumedCapacity="TOTAL",
    )
    assert answer["UnprocessedItems"] == {}
    assert answer["ConsumedCapacity"] == [{"TableName": table, "CapacityUnits": 2.0}]
    assert counts(client, table) == {"1": "1"}


@deviates("ministack", "does not say what it cost", API + "API_BatchGetItem.html")
def test_a_batch_gets_what_is_there(client: DynamoDBClient, table: str) -> None:
    for number in range(3):
        client.put_item(TableName=table, Item=key(number))
    answer = client.batch_get_item(
        RequestItems={table: {"Keys": [key(0), key(2), key(9)], "ConsistentRead": True}},
        ReturnConsumedCapacity="TOTAL",
    )
    assert sorted(answer["Responses"][table], key=str) == [key(0), key(2)]
    assert answer["UnprocessedKeys"] == {}
    assert answer["ConsumedCapacity"] == [{"TableName": table, "CapacityUnits": 3.0}]


def test_a_batch_has_no_duplicates(client: DynamoDBClient, table: str, refused: Refusal) -> None:
    with refused:
        client.batch_write_item(
            RequestItems={
                table: [{"PutRequest": {"Item": key(0)}}, {"DeleteRequest": {"Key": key(0)}}]
            }
        )
    assert refused.code == "ValidationException"
    assert refused.message == "Provided list of item keys contains duplicates"


def test_a_batch_of_writes_has_25_at_most(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    puts: Any = [{"PutRequest": {"Item": key(number)}} for number in range(26)]
    with refused:
        client.batch_write_item(RequestItems={table: puts})
    assert refused.code == "ValidationException"
    assert counts(client, table) == {}


def test_a_transaction_writes_everything(client: DynamoDBClient, table: str) -> None:
    client.put_item(TableName=table, Item=key(0))
    answer = client.transact_write_items(
        TransactItems=[
            {"Delete": {"TableName": table, "Key": key(0)}},
            put_of(table, 1),
            add_of(table, 2),
            {
                "ConditionCheck": {
                    "TableName": table,
                    "Key": key(3),
                    "ConditionExpression": "attribute_not_exists(pk)",
                }
            },
        ],
        ReturnConsumedCapacity="TOTAL",
    )
    assert counts(client, table) == {"1": "1", "2": "1"}
    [consumed] = answer["ConsumedCapacity"]
    assert (consumed["TableName"], consumed["CapacityUnits"]) == (table, 8.0)


def test_a_canceled_transaction_writes_nothing_and_gives_a_reason_for_each_action(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    client.put_item(TableName=table, Item={**key(1), "n": {"N": "7"}})
    absent: Any = {
        "ConditionExpression": "attribute_not_exists(pk)",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    with refused:
        client.transact_write_items(
            TransactItems=[put_of(table, 0), put_of(table, 1, **absent), add_of(table, 2)]
        )
    assert refused.code == "TransactionCanceledException"
    assert refused.message == (
        "Transaction cancelled, please refer cancellation reasons for specific reasons "
        "[None, ConditionalCheckFailed, None]"
    )
    assert refused.response["CancellationReasons"] == [
        {"Code": "None"},
        {
            "Code": "ConditionalCheckFailed",
            "Message": "The conditional request failed",
            "Item": {**key(1), "n": {"N": "7"}},
        },
        {"Code": "None"},
    ]
    assert counts(client, table) == {"1": "7"}


def test_a_repeated_transaction_is_carried_out_once(client: DynamoDBClient, table: str) -> None:
    token = str(uuid4())
    for _ in range(3):
        client.transact_write_items(TransactItems=[add_of(table, 0)], ClientRequestToken=token)
    assert counts(client, table) == {"0": "1"}


def test_a_token_stands_for_one_request(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    token = str(uuid4())
    client.transact_write_items(TransactItems=[add_of(table, 0)], ClientRequestToken=token)
    with refused:
        client.transact_write_items(TransactItems=[add_of(table, 1)], ClientRequestToken=token)
    assert refused.code == "IdempotentParameterMismatchException"
    assert counts(client, table) == {"0": "1"}


def test_a_transaction_that_failed_may_be_repeated_with_its_token(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    token = str(uuid4())
    action = put_of(table, 0, n="2", ConditionExpression="attribute_not_exists(pk)")
    client.put_item(TableName=table, Item=key(0))
    with refused:
        client.transact_write_items(TransactItems=[action], ClientRequestToken=token)
    client.delete_item(TableName=table, Key=key(0))
    client.transact_write_items(TransactItems=[action], ClientRequestToken=token)
    assert counts(client, table) == {"0": "2"}


def test_a_transaction_touches_an_item_once(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    with refused:
        client.transact_write_items(TransactItems=[put_of(table, 0), add_of(table, 0)])
    assert refused.code == "ValidationException"
    said = "Transaction request cannot include multiple operations on one item"
    assert refused.message == said
    copy: Any = {"TableName": table, "Key": key(0), "UpdateExpression": "SET a = nothing"}
    with refused:
        client.transact_write_items(TransactItems=[{"Update": copy}, add_of(table, 0)])
    assert refused.message == said


@pytest.mark.parametrize("count", [0, 101])
def test_a_transaction_has_between_1_and_100_actions(
    client: DynamoDBClient, table: str, refused: Refusal, count: int
) -> None:
    with refused:
        client.transact_write_items(
            TransactItems=[put_of(table, number) for number in range(count)]
        )
    assert refused.code == "ValidationException"


def test_an_update_that_cannot_apply_cancels_the_transaction(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    client.put_item(TableName=table, Item={**key(1), "n": {"S": "text"}})
    with refused:
        client.transact_write_items(TransactItems=[put_of(table, 0), add_of(table, 1)])
    assert refused.code == "TransactionCanceledException"
    codes = [reason["Code"] for reason in refused.response["CancellationReasons"]]
    assert codes == ["None", "ValidationError"]
    assert client.scan(TableName=table, ConsistentRead=True)["Count"] == 1


def test_a_transaction_reads_in_order(client: DynamoDBClient, table: str) -> None:
    client.put_item(TableName=table, Item={**key(1), "n": {"N": "1"}})
    answer = client.transact_get_items(
        TransactItems=[
            {"Get": {"TableName": table, "Key": key(0)}},
            {"Get": {"TableName": table, "Key": key(1), "ProjectionExpression": "n"}},
        ],
        ReturnConsumedCapacity="TOTAL",
    )
    assert answer["Responses"] == [{}, {"Item": {"n": {"N": "1"}}}]
    [consumed] = answer["ConsumedCapacity"]
    assert consumed["CapacityUnits"] == 4.0
