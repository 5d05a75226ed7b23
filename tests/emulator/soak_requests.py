"""`./dev soak --requests N`: mutated requests, none of which may break the emulator.

Most requests are valid. Some get a mutation: another value, type or name, a cut, a bad byte. The
emulator must answer each with 200 or an error of DynamoDB, never with 500, in bounded time and
memory. At least half must parse and a quarter must succeed; otherwise the soak tests too little.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from heatsink.emulator.engine import API, Engine
from heatsink.emulator.settings import EngineSettings
from heatsink.testing import ManualClock

TABLES = ("plain", "sorted", "indexed")
SLOW_S = 2.0
MEMORY_MAX_KB = 300 * 1_024
STEP_S = 0.05
WARM = 20_000
PARSED_MIN, GOOD_MIN = 0.5, 0.25
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
        operation = rng.choice(OPERATIONS)
        return operation, getattr(self, operation)(table)

    def PutItem(self, table: str) -> Any:  # noqa: N802  as on the wire
        request: Any = {"TableName": table, "Item": self.item(table)}
        return self._guarded(request)

    def _guarded(self, request: Any) -> Any:
        if self._rng.random() < 0.3:
            text, values = self.condition()
            request["ConditionExpression"] = text
            if values:
                request["ExpressionAttributeValues"] = {
                    **request.get("ExpressionAttributeValues", {}),
                    **values,
                }
        elif self._rng.random() < 0.2:
            request["Expected"] = {"a": {"ComparisonOperator": "NULL"}}
            request.pop("UpdateExpression", None)
            request.pop("ExpressionAttributeValues", None)
        return request

    def UpdateItem(self, table: str) -> Any:  # noqa: N802
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


OPERATIONS = (
    *("PutItem", "UpdateItem", "DeleteItem", "GetItem", "Query", "Scan"),
    *("BatchWriteItem", "BatchGetItem", "TransactWriteItems", "TransactGetItems"),
)


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


def create(engine: Engine) -> None:
    for table in TABLES:
        names = {"pk": "S", "sk": "N", "city": "S"}
        used = list(names)[: TABLES.index(table) + 1]
        request: Any = {
            "TableName": table,
            "AttributeDefinitions": [
                {"AttributeName": name, "AttributeType": names[name]} for name in used
            ],
            "KeySchema": [
                {"AttributeName": name, "KeyType": role}
                for name, role in zip(used[:2], ("HASH", "RANGE"), strict=False)
            ],
            "BillingMode": "PAY_PER_REQUEST",
        }
        if table == "indexed":
            request["GlobalSecondaryIndexes"] = [
                {
                    "IndexName": "by-city",
                    "KeySchema": [{"AttributeName": "city", "KeyType": "HASH"}],
                    "Projection": {"ProjectionType": "ALL"},
                }
            ]
        status, body = engine.answer(API + "CreateTable", msgspec.json.encode(request))
        assert status == 200, body


class Soak:
    """Sends requests and counts the answers."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._writer = Writer(self._rng)
        self._engine = Engine(
            EngineSettings(write_limit=1e9, read_limit=1e9), ManualClock(), Random(seed)
        )
        create(self._engine)
        self.counts: Counter[str] = Counter()
        self.slowest_s = 0.0

    def send(self) -> str | None:
        """Send one request. Returns what the emulator did wrong, if it did."""
        rng = self._rng
        operation, request = self._writer.request()
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
            request = mutated(rng, request)
        body = msgspec.json.encode(request)
        if rng.random() < 0.05:
            body = spoiled(rng, body)
        began_s = time.perf_counter()
        status, answer = self._engine.answer(API + operation, body)
        took_s = time.perf_counter() - began_s
        self.slowest_s = max(self.slowest_s, took_s)
        self.counts[str(status)] += 1
        self.counts["parsed"] += b"SerializationException" not in answer
        if status not in (200, 400) or took_s > SLOW_S:
            return f"{operation} took {took_s:.2f} s and got {status}: {body!r}"
        return None


def memory_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(requests: int, seed: int) -> list[str]:
    """Send the requests. Returns what went wrong."""
    logging.getLogger("heatsink").addHandler(logging.StreamHandler())
    soak, problems, warm_kb = Soak(seed), [], 0
    for number in range(requests):
        if (problem := soak.send()) is not None:
            problems.append(f"request {number}: {problem}")
        if number == min(WARM, requests // 2):
            warm_kb = memory_kb()
    grown_kb = memory_kb() - warm_kb
    counts, share = soak.counts, max(requests, 1)
    if grown_kb > MEMORY_MAX_KB:
        problems.append(f"memory grew by {grown_kb / 1_024:,.0f} MB")
    if counts["parsed"] < PARSED_MIN * share or counts["200"] < GOOD_MIN * share:
        problems.append(f"too few requests parse or succeed: {dict(counts)}")
    parsed, good = counts["parsed"] / share, counts["200"] / share
    print(
        f"{requests:,} requests: {parsed:.0%} parsed, {good:.0%} got 200, {counts['500']} got 500; "
        f"slowest {soak.slowest_s * 1_000:.0f} ms, memory grew by {grown_kb / 1_024:,.0f} MB"
    )
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak --requests", description=__doc__)
    parser.add_argument("requests", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    problems = run(arguments.requests, arguments.seed)
    for problem in problems[:20]:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
