"""Requests for the emulator's soak: most are valid, and some get a mutation."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

TABLES = ("plain", "sorted", "indexed")
SCRATCH = "scratch"
ACCOUNT = "arn:aws:dynamodb:us-east-1:000000000000:table/"
STREAMS = "DynamoDBStreams_20120810."
NAMES = ("a", "b", "c", "n", "list", "map", "tags", "#x", "")
BAD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**30, "", "x", [], {}, [[], []], {"S": "x"}, {"BS": [[], []]}),
    *({"N": "1e200"}, {"NULL": False}, {"M": {"": {"S": ""}}}, {"B": "!"}, {"S": "x", "N": "1"}),
    *("\x00", "\ud7ff", "a.b[0]", "#x", ":v", "SET a = :v", "(" * 50, "NOT " * 50),
)


class Writer:
    """Writes requests, most of them valid."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.seen: dict[str, str] = {}

    def value(self, depth: int = 0) -> Any:
        rng = self._rng
        kind = rng.choice(("S", "N", "B", "BOOL", "NULL", "SS", "NS", "L", "M"))
        if kind in ("L", "M") and depth > 2:
            kind = "S"
        makers: dict[str, Callable[[], Any]] = {
            "S": lambda: rng.choice(("", "x", "é" * 3, "y" * rng.randrange(300))),
            "N": lambda: rng.choice(("0", "-1.50", "1e10", str(rng.randrange(100)))),
            "B": lambda: rng.choice(("", "AAAA", "eA==")),
            "BOOL": lambda: rng.random() < 0.5,
            "NULL": lambda: True,
            "SS": lambda: rng.sample(("a", "b", "c"), rng.randint(1, 3)),
            "NS": lambda: rng.sample(("1", "2", "3"), rng.randint(1, 3)),
            "L": lambda: [self.value(depth + 1) for _ in range(rng.randrange(4))],
            "M": lambda: {
                rng.choice(NAMES[:6]): self.value(depth + 1) for _ in range(rng.randrange(3))
            },
        }
        return {kind: makers[kind]()}

    def key(self, table: str) -> Any:
        key = {"pk": {"S": f"k{self._rng.randrange(50)}"}}
        return key if table == "plain" else {**key, "sk": {"N": str(self._rng.randrange(20))}}

    def item(self, table: str) -> Any:
        extra = {name: self.value() for name in self._rng.sample(NAMES[:7], 3)}
        if table == "indexed" and self._rng.random() < 0.7:
            extra["city"] = {"S": self._rng.choice("xyz")}
        return {**extra, **self.key(table)}

    def condition(self) -> Any:
        rng = self._rng
        text, values = rng.choice(
            (
                ("attribute_not_exists(a)", {}),
                ("attribute_exists(pk) OR n > :v", {":v": {"N": "5"}}),
                ("size(a) < :v AND NOT b = :w", {":v": {"N": "9"}, ":w": {"S": "x"}}),
                ("a BETWEEN :v AND :w", {":v": {"N": "1"}, ":w": {"N": "5"}}),
                ("contains(tags, :v) OR begins_with(a, :v)", {":v": {"S": "a"}}),
                ("a IN (:v, :w) OR attribute_type(b, :t)",
                 {":v": {"S": "x"}, ":w": {"N": "1"}, ":t": {"S": "L"}}),
            )
        )  # fmt: skip
        return text, values

    def request(self) -> tuple[str, Any]:
        rng, table = self._rng, self._rng.choice(TABLES)
        operation = rng.choice(OF_TABLES if rng.random() < TABLES_SHARE else OF_ITEMS)
        request = getattr(self, operation)(table)
        is_stream = operation in STREAM_OPERATIONS
        return STREAMS + operation if is_stream else operation, request

    def PutItem(self, table: str) -> Any:  # noqa: N802  as on the wire
        request: Any = {"TableName": table, "Item": self.item(table)}
        return self._guarded(request)

    def _guarded(self, request: Any) -> Any:
        if "AttributeUpdates" not in request and self._rng.random() < 0.3:
            text, values = self.condition()
            request["ConditionExpression"] = text
            if values:
                request["ExpressionAttributeValues"] = {
                    **request.get("ExpressionAttributeValues", {}),
                    **values,
                }
        elif "UpdateExpression" not in request and self._rng.random() < 0.2:
            request["Expected"] = {"a": self.legacy_condition()}
        return request

    def legacy_condition(self) -> Any:
        operator, values = self._rng.choice(
            (
                ("NULL", []),
                ("NOT_NULL", []),
                ("EQ", [self.value()]),
                ("NE", [self.value()]),
                ("BETWEEN", [{"N": "1"}, {"N": "5"}]),
                ("IN", [{"S": "x"}, {"S": "y"}]),
                ("BEGINS_WITH", [{"S": "x"}]),
                ("NOT_CONTAINS", [{"S": "a"}]),
            )
        )
        return {"ComparisonOperator": operator, "AttributeValueList": values}

    def UpdateItem(self, table: str) -> Any:  # noqa: N802
        if self._rng.random() < 0.2:
            updates = {
                "a": {"Action": "PUT", "Value": self.value()},
                "n": {"Action": "ADD", "Value": {"N": "1"}},
                "tags": {"Action": "DELETE", "Value": {"SS": ["a"]}},
                "b": {"Action": "DELETE"},
            }
            chosen = self._rng.sample(sorted(updates), 2)
            legacy = {name: updates[name] for name in chosen}
            return self._guarded(
                {"TableName": table, "Key": self.key(table), "AttributeUpdates": legacy}
            )
        text, values = self._rng.choice(
            (
                ("SET a = :a, b = if_not_exists(b, :a)", {":a": self.value()}),
                ("ADD n :n", {":n": {"N": "1"}}),
                ("REMOVE a, b", {}),
                ("SET list = list_append(if_not_exists(list, :l), :l)", {":l": {"L": []}}),
                ("DELETE tags :t SET c = :t", {":t": {"SS": ["a"]}}),
            )
        )
        request = {"TableName": table, "Key": self.key(table), "UpdateExpression": text}
        if values:
            request["ExpressionAttributeValues"] = values
        return self._guarded(request)

    def DeleteItem(self, table: str) -> Any:  # noqa: N802
        return self._guarded({"TableName": table, "Key": self.key(table)})

    def GetItem(self, table: str) -> Any:  # noqa: N802
        return {"TableName": table, "Key": self.key(table), "ProjectionExpression": "a, map.b"}

    def Query(self, table: str) -> Any:  # noqa: N802
        if table == "indexed" and self._rng.random() < 0.5:
            return {
                "TableName": table,
                "IndexName": "by-city",
                "KeyConditions": {
                    "city": {"ComparisonOperator": "EQ", "AttributeValueList": [{"S": "x"}]}
                },
            }
        return {
            "TableName": table,
            "KeyConditionExpression": "pk = :p",
            "ExpressionAttributeValues": {":p": self.key(table)["pk"]},
            "Limit": self._rng.randint(1, 20),
        }

    def Scan(self, table: str) -> Any:  # noqa: N802
        if self._rng.random() < 0.2:
            conditions = {"a": self.legacy_condition(), "n": self.legacy_condition()}
            return {"TableName": table, "Limit": 5, "ScanFilter": conditions}
        text, values = self.condition()
        filtered: Any = {"FilterExpression": text}
        if values:
            filtered["ExpressionAttributeValues"] = values
        return {"TableName": table, "Limit": self._rng.randint(1, 30), **filtered}

    def BatchWriteItem(self, table: str) -> Any:  # noqa: N802
        keys = {str(key): key for key in (self.key(table) for _ in range(5))}
        writes = [
            {"DeleteRequest": {"Key": key}}
            if self._rng.random() < 0.5
            else {"PutRequest": {"Item": {**self.item(table), **key}}}
            for key in keys.values()
        ]
        return {"RequestItems": {table: writes}}

    def BatchGetItem(self, table: str) -> Any:  # noqa: N802
        keys = {str(key): key for key in (self.key(table) for _ in range(5))}
        return {"RequestItems": {table: {"Keys": list(keys.values())}}}

    def TransactWriteItems(self, table: str) -> Any:  # noqa: N802
        return {"TransactItems": [{"Put": self.PutItem(table)}, {"Delete": self._other(table)}]}

    def _other(self, table: str) -> Any:
        return {"TableName": table, "Key": {**self.key(table), "pk": {"S": "other"}}}

    def TransactGetItems(self, table: str) -> Any:  # noqa: N802
        return {"TransactItems": [{"Get": {"TableName": table, "Key": self.key(table)}}]}

    def CreateTable(self, _: str) -> Any:  # noqa: N802
        rng = self._rng
        return {
            **created(SCRATCH, ("pk", "sk", "city")),
            "GlobalSecondaryIndexes": [index_on("city", rng.choice(("ALL", "KEYS_ONLY")))],
            "LocalSecondaryIndexes": [
                {
                    "IndexName": "by-sk",
                    "KeySchema": [key_part("pk", "HASH"), key_part("city", "RANGE")],
                    "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["a"]},
                }
            ],
            "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
            "Tags": [{"Key": "a", "Value": "b"}],
        }

    def UpdateTable(self, _: str) -> Any:  # noqa: N802
        change = self._rng.choice(
            (
                {"DeletionProtectionEnabled": False},
                {
                    "BillingMode": "PROVISIONED",
                    "ProvisionedThroughput": {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5},
                },
                {"BillingMode": "PAY_PER_REQUEST"},
                {"GlobalSecondaryIndexUpdates": [{"Delete": {"IndexName": "by-city"}}]},
                {
                    "AttributeDefinitions": [{"AttributeName": "city", "AttributeType": "S"}],
                    "GlobalSecondaryIndexUpdates": [{"Create": index_on("city", "ALL")}],
                },
                {"StreamSpecification": {"StreamEnabled": False}},
            )
        )
        return {"TableName": SCRATCH, **change}

    def DeleteTable(self, _: str) -> Any:  # noqa: N802
        return {"TableName": SCRATCH}

    def DescribeTable(self, table: str) -> Any:  # noqa: N802
        return {"TableName": self._rng.choice((table, SCRATCH))}

    def ListTables(self, _: str) -> Any:  # noqa: N802
        return {"Limit": self._rng.randint(1, 100)}

    def UpdateTimeToLive(self, _: str) -> Any:  # noqa: N802
        on = self._rng.random() < 0.5
        return {
            "TableName": SCRATCH,
            "TimeToLiveSpecification": {"AttributeName": "n", "Enabled": on},
        }

    def TagResource(self, table: str) -> Any:  # noqa: N802
        tags = [{"Key": self._rng.choice("abc"), "Value": "x"}]
        return {"ResourceArn": ACCOUNT + table, "Tags": tags}

    def UntagResource(self, table: str) -> Any:  # noqa: N802
        return {"ResourceArn": ACCOUNT + table, "TagKeys": [self._rng.choice("abc")]}

    def ListTagsOfResource(self, table: str) -> Any:  # noqa: N802
        return {"ResourceArn": ACCOUNT + table}

    def DescribeLimits(self, _: str) -> Any:  # noqa: N802
        return {}

    def ListStreams(self, table: str) -> Any:  # noqa: N802
        return {"TableName": table}

    def DescribeStream(self, _: str) -> Any:  # noqa: N802
        return {"StreamArn": self.seen.get("StreamArn", ACCOUNT + "indexed/stream/x")}

    def GetShardIterator(self, _: str) -> Any:  # noqa: N802
        kind = self._rng.choice(("TRIM_HORIZON", "LATEST", "AT_SEQUENCE_NUMBER"))
        return {
            "StreamArn": self.seen.get("StreamArn", ACCOUNT + "indexed/stream/x"),
            "ShardId": self.seen.get("ShardId", "shardId-00000000000000000000-00000000"),
            "ShardIteratorType": kind,
            **({"SequenceNumber": "1" * 21} if kind.startswith("AT") else {}),
        }

    def GetRecords(self, _: str) -> Any:  # noqa: N802
        return {"ShardIterator": self.seen.get("ShardIterator", "x"), "Limit": 10}

    def learn(self, answer: Any) -> None:
        """Remember what later requests need: the stream, its newest shard and an iterator."""
        if shards := answer.get("StreamDescription", {}).get("Shards"):
            self.seen["ShardId"] = shards[-1]["ShardId"]
        for stream in answer.get("Streams", ()):
            self.seen["StreamArn"] = stream["StreamArn"]
        for field in ("ShardIterator", "NextShardIterator"):
            if field in answer:
                self.seen["ShardIterator"] = answer[field]


STREAM_OPERATIONS = frozenset(("ListStreams", "DescribeStream", "GetShardIterator", "GetRecords"))
KINDS = {"pk": "S", "sk": "N", "city": "S"}


def key_part(name: str, role: str) -> Any:
    return {"AttributeName": name, "KeyType": role}


def index_on(name: str, projection: str) -> Any:
    return {
        "IndexName": f"by-{name}",
        "KeySchema": [key_part(name, "HASH")],
        "Projection": {"ProjectionType": projection},
    }


def created(table: str, names: tuple[str, ...]) -> Any:
    """A CreateTable request. The first names are the key, the others those of indexes."""
    return {
        "TableName": table,
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": KINDS[name]} for name in names
        ],
        "KeySchema": [
            key_part(name, role) for name, role in zip(names[:2], ("HASH", "RANGE"), strict=False)
        ],
        "BillingMode": "PAY_PER_REQUEST",
    }


OF_ITEMS = (
    *("PutItem", "UpdateItem", "DeleteItem", "GetItem", "Query", "Scan"),
    *("BatchWriteItem", "BatchGetItem", "TransactWriteItems", "TransactGetItems"),
)
OF_TABLES = (
    *("CreateTable", "UpdateTable", "DeleteTable", "DescribeTable", "ListTables"),
    *("UpdateTimeToLive", "TagResource", "UntagResource", "ListTagsOfResource", "DescribeLimits"),
    *("ListStreams", "DescribeStream", "GetShardIterator", "GetRecords"),
)
TABLES_SHARE = 0.1


def mutated(rng: Random, value: Any) -> Any:
    """Change one random place of a request."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        chance = rng.random()
        changed = dict(value)
        if chance < 0.1:
            del changed[name]
        elif chance < 0.2:
            changed[rng.choice((*NAMES, name.lower(), name + "s"))] = changed.pop(name)
        else:
            changed[name] = mutated(rng, value[name])
        return changed
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(rng, value[at]), *value[at + rng.randrange(2) :]]
    if isinstance(value, str) and value and rng.random() < 0.5:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", "(", ")", " ", ".", ",", ":", "#", "[0]")) + value[at:]
    return rng.choice(BAD)


def spoiled(rng: Random, body: bytes) -> bytes:
    """Change bytes, so that most results are no JSON."""
    at = rng.randrange(len(body))
    return body[:at] + rng.choice((b"", b"\xff", b'"', b"[", b"\\u12")) + body[at + 1 :]
