"""A chat with a shop in one table, as a team would write it: 34 calls, mixed collections.

A room holds `META`, `MEMBER#<user>`, `MSG#<time>#<id>` and `ORDER#<time>`. The application is a
generator of calls, so that blocking and asynchronous clients run the same code. `run` and
`run_async` make the calls.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.times import iso_text

Call = tuple[str, dict[str, Any]]
App = Generator[Call, dict[str, Any], None]
ROOM = {"S": "ROOM#1"}
CALLS = 34


def times(count: int) -> list[str]:
    """Return times just before now, in order."""
    now = datetime.now(UTC) - timedelta(milliseconds=count)
    moments = (now + timedelta(milliseconds=number) for number in range(count))
    return [one.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z" for one in moments]


def sort_key(kind: str, at: str, number: int) -> dict[str, Any]:
    return {"pk": ROOM, "sk": {"S": f"{kind}#{at}#{number}"}}


def chat(table: str, at: list[str]) -> App:
    """Use the room: 20 calls. `at` are the times of its messages."""
    yield (
        "put_item",
        {
            "TableName": table,
            "Item": {
                "pk": ROOM,
                "sk": {"S": "META"},
                "title": {"S": "Launch"},
                "likes": {"N": "0"},
            },
            "ConditionExpression": "attribute_not_exists(pk)",
        },
    )
    yield (
        "put_item",
        {
            "TableName": table,
            "Item": {"pk": ROOM, "sk": {"S": "META"}},
            "ConditionExpression": "attribute_not_exists(pk)",
        },
    )
    for user in ("ada", "bob"):
        yield (
            "put_item",
            {
                "TableName": table,
                "Item": {"pk": ROOM, "sk": {"S": f"MEMBER#{user}"}, "kind": {"S": "member"}},
            },
        )
    for number in range(4):
        yield "put_item", {"TableName": table, "Item": message(at[number], number)}
    batch = [{"PutRequest": {"Item": message(at[number], number)}} for number in range(4, 20)]
    yield "batch_write_item", {"RequestItems": {table: batch}}
    liked = sort_key("MSG", at[2], 2)
    for _ in range(2):
        yield (
            "update_item",
            {
                "TableName": table,
                "Key": liked,
                "UpdateExpression": "ADD likes :one SET room = pk",
                "ExpressionAttributeValues": {":one": {"N": "1"}},
                "ReturnValues": "ALL_NEW",
            },
        )
    yield (
        "update_item",
        {
            "TableName": table,
            "Key": liked,
            "UpdateExpression": "SET body = :b",
            "ConditionExpression": "likes = :n AND author = :a",
            "ExpressionAttributeValues": {":b": {"S": "new"}, ":n": {"N": "9"}, ":a": {"S": "ada"}},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        },
    )
    yield "get_item", {"TableName": table, "Key": liked, "ConsistentRead": True}
    yield (
        "get_item",
        {
            "TableName": table,
            "Key": liked,
            "ProjectionExpression": "pk, likes",
            "ConsistentRead": True,
        },
    )
    newest = yield "query", messages(table, Limit=5, ScanIndexForward=False)
    yield (
        "query",
        messages(
            table, Limit=5, ScanIndexForward=False, ExclusiveStartKey=newest["LastEvaluatedKey"]
        ),
    )
    whole = {":p": ROOM}
    yield (
        "query",
        {
            "TableName": table,
            "KeyConditionExpression": "pk = :p",
            "ExpressionAttributeValues": whole,
            "ConsistentRead": True,
        },
    )
    yield (
        "query",
        messages(
            table,
            FilterExpression="likes > :z",
            ExpressionAttributeValues={**whole, ":m": {"S": "MSG#"}, ":z": {"N": "0"}},
        ),
    )
    yield "query", messages(table, Select="COUNT")
    yield (
        "delete_item",
        {
            "TableName": table,
            "Key": sort_key("MSG", at[3], 3),
            "ConditionExpression": "author = :a",
            "ExpressionAttributeValues": {":a": {"S": "ada"}},
            "ReturnValues": "ALL_OLD",
        },
    )


def messages(table: str, **others: Any) -> dict[str, Any]:
    return {
        "TableName": table,
        "KeyConditionExpression": "pk = :p AND begins_with(sk, :m)",
        "ExpressionAttributeValues": {":p": ROOM, ":m": {"S": "MSG#"}},
        "ConsistentRead": True,
        **others,
    }


def message(at: str, number: int) -> dict[str, Any]:
    author = {"S": "ada" if number % 2 else "bob"}
    return {
        **sort_key("MSG", at, number),
        "author": author,
        "kind": {"S": "message"},
        "score": {"N": str(number)},
        "body": {"B": b"hey"},
    }


def shop(table: str, at: list[str]) -> App:
    """Sell in the room: 14 calls. `at` are the times of its orders."""
    stock = {"pk": {"S": "STOCK"}, "sk": {"S": "mug"}}
    yield "put_item", {"TableName": table, "Item": {**stock, "left": {"N": "2"}}}
    for number in range(3):
        yield "transact_write_items", order(table, stock, at[number], number)
    yield "transact_write_items", order(table, stock, at[1], 1)
    orders = {":p": ROOM, ":f": {"S": f"ORDER#{at[0]}"}, ":t": {"S": f"ORDER#{at[2]}~"}}
    yield (
        "query",
        {
            "TableName": table,
            "KeyConditionExpression": "pk = :p AND sk BETWEEN :f AND :t",
            "ExpressionAttributeValues": orders,
            "ConsistentRead": True,
        },
    )
    keys = [sort_key("ORDER", at[number], number) for number in range(3)]
    yield (
        "transact_get_items",
        {"TransactItems": [{"Get": {"TableName": table, "Key": key}} for key in keys[:2]]},
    )
    yield (
        "batch_get_item",
        {"RequestItems": {table: {"Keys": [stock, *keys[:2]], "ConsistentRead": True}}},
    )
    yield (
        "update_item",
        {
            "TableName": table,
            "Key": keys[0],
            "UpdateExpression": "SET paid = :t REMOVE qty",
            "ConditionExpression": "pk = :p AND attribute_not_exists(paid)",
            "ExpressionAttributeValues": {":t": {"BOOL": True}, ":p": ROOM},
            "ReturnValues": "UPDATED_NEW",
        },
    )
    yield (
        "query",
        {
            "TableName": table,
            "IndexName": "by-kind",
            "KeyConditionExpression": "kind = :k AND score > :s",
            "ExpressionAttributeValues": {":k": {"S": "message"}, ":s": {"N": "16"}},
        },
    )
    yield (
        "scan",
        {
            "TableName": table,
            "FilterExpression": "pk = :p AND kind = :k",
            "ExpressionAttributeValues": {":p": ROOM, ":k": {"S": "member"}},
        },
    )
    yield (
        "batch_write_item",
        {"RequestItems": {table: [{"DeleteRequest": {"Key": key}} for key in keys]}},
    )
    yield "get_item", {"TableName": table, "Key": keys[0], "ConsistentRead": True}
    yield "delete_item", {"TableName": table, "Key": stock}


def order(table: str, stock: Any, at: str, number: int) -> dict[str, Any]:
    item = {**sort_key("ORDER", at, number), "qty": {"N": "1"}, "paid_by": {"S": "ada"}}
    return {
        "TransactItems": [
            {
                "Update": {
                    "TableName": table,
                    "Key": stock,
                    "UpdateExpression": "ADD #l :minus",
                    "ConditionExpression": "#l > :zero",
                    "ExpressionAttributeNames": {"#l": "left"},
                    "ExpressionAttributeValues": {":minus": {"N": "-1"}, ":zero": {"N": "0"}},
                }
            },
            {
                "Put": {
                    "TableName": table,
                    "Item": item,
                    "ConditionExpression": "attribute_not_exists(sk)",
                    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                }
            },
        ]
    }


def declared(name: str) -> SpreadTable:
    rules = [by_time("MSG#", iso_text), by_time("ORDER#", iso_text)]
    return SpreadTable(name, partition_key="pk", sort_key="sk", rules=rules)


def shown(answer: dict[str, Any], table: str) -> dict[str, Any]:
    """Return an answer without what differs between two tables."""
    answer = {name: value for name, value in answer.items() if name != "ResponseMetadata"}
    for field in ("Responses", "UnprocessedItems", "UnprocessedKeys"):
        if isinstance(answer.get(field), dict) and table in answer[field]:
            rows = answer[field][table]
            answer[field] = sorted(rows, key=lambda row: str(row["sk"]))
    return answer


def outcome(call: Any) -> dict[str, Any]:
    try:
        return dict(call())
    except ClientError as error:
        return {
            "error": error.response["Error"],
            "item": error.response.get("Item"),
            "reasons": error.response.get("CancellationReasons"),
        }


def run(app: App, client: Any, table: str) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    try:
        method, parameters = next(app)
        while True:
            answer = outcome(lambda: getattr(client, method)(**parameters))  # noqa: B023
            answers.append(shown(answer, table))
            method, parameters = app.send(answer)
    except StopIteration:
        return answers


async def run_async(app: App, client: Any, table: str) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    try:
        method, parameters = next(app)
        while True:
            try:
                answer = dict(await getattr(client, method)(**parameters))
            except ClientError as error:
                answer = outcome(_raising(error))
            answers.append(shown(answer, table))
            method, parameters = app.send(answer)
    except StopIteration:
        return answers


def _raising(error: Exception) -> Any:
    def call() -> None:
        raise error

    return call
