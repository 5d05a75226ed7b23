"""`./dev soak --beside ministack`: the corpus on another engine, beside ours, without the core.

Heatsink's core and our emulator share an evaluator. So if both were wrong in the same way, the
differential test would not notice. Therefore the same requests also run on engines that others
wrote. Each difference needs an explanation here. Some explanations say NOT KNOWN: then nobody has
tried the request on DynamoDB itself. `heatsink verify` has a check for each of them (`CHECKED`).
After a write, the items that it names are made equal again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from heatsink.door.protocol import Body, WireError
from heatsink.emulator.engine import API
from heatsink.stores.embedded import free_port
from heatsink.testing.clocks import ManualClock
from tests.emulator.contract.engines import TOOLS, ministack
from tests.nodejs import NODE, NPM
from tests.waiting import until

from .differential import comparable
from .grammar import Grammar
from .world import DEFINITION, START_MS, TABLE, Upstream, outcome

DYNALITE = "dynalite@4.0.0"
SIGNED = "AWS4-HMAC-SHA256 Credential=any/20261118/us-east-1/dynamodb/aws4_request, "
SIGNED += f"SignedHeaders=host, Signature={'0' * 64}"
HEADERS = {
    "Content-Type": "application/x-amz-json-1.0",
    "Authorization": SIGNED,
    "X-Amz-Date": "20261118T000000Z",
}
WRITES = ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems")
STEP_MS = 500
DROPPED = WireError(500, {"__type": "Dropped", "message": "the connection was closed"})


class Difference(NamedTuple):
    """Why an engine answers some requests otherwise. The patterns match both answers in words.

    `ours` begins with the operation.
    """

    ours: str
    theirs: str
    why: str
    only: str = ""
    """The engine that does so; empty for both."""


LATER = "(OK|ConditionalCheckFailed|TransactionCanceled)"
UNKNOWN = "UnknownOperationException"
INVALID = r"\w+ ValidationException: .*"
EXPLAINED = [
    Difference(
        rf"{INVALID}Incorrect operand type",
        LATER,
        "DynamoDB checks the types of literals at once; they do so with an item, or never",
    ),
    Difference(rf"{INVALID}BETWEEN (condition|operator)", LATER, "they do not check bounds first"),
    Difference(rf"{INVALID}first operand must be distinct", LATER, "they allow equal operands"),
    Difference(
        rf"{INVALID}(Cannot specify|ALL_PROJECTED_ATTRIBUTES|Must specify the Attr)",
        LATER,
        "they do not check Select against the projection",
    ),
    Difference(
        rf"{INVALID}(must be scalars|non-primary key attributes|Cannot update attribute)",
        LATER,
        "they check key attributes in expressions later, or only without an alias",
    ),
    Difference(rf"{INVALID}enum value set", LATER, "they do not check the values of this field"),
    Difference(
        rf"{INVALID}incorrect data type",
        LATER,
        "ministack does not check the type of this operand of an update",
        "ministack",
    ),
    Difference(
        rf"{INVALID}Can not use both expression",
        LATER,
        "ministack allows legacy parameters beside expressions",
        "ministack",
    ),
    Difference(
        rf"{INVALID}not an indexable operation",
        "OK",
        "ministack allows any comparison of a legacy key condition",
        "ministack",
    ),
    Difference(
        rf"{INVALID}Value must be provided when Exists is",
        LATER,
        "ministack does not check the fields of a legacy condition",
        "ministack",
    ),
    Difference(
        r"\w+ SerializationException",
        "",
        "ministack does not check JSON types",
        "ministack",
    ),
    Difference(
        r"\w+ SerializationException",
        "(OK|ConditionalCheckFailed|ValidationException)",
        "dynalite does not know ReturnValuesOnConditionCheckFailure, so it does not check its type",
        "dynalite",
    ),
    Difference(
        r"\w+ (OK|Conditional|TransactionCanceled)",
        "ValidationException: .*begins_with, operand type",
        "ministack refuses begins_with on an attribute that is no text; for DynamoDB it is false",
        "ministack",
    ),
    Difference(
        r"\w+ ConditionalCheckFailed",
        "ValidationException: .*(refers to an attribute|incorrect data type|operand)",
        "ministack carries the update out before it checks the condition",
        "ministack",
    ),
    Difference(
        r"\w+ ValidationException: The provided expression refers to an attribute",
        "ConditionalCheckFailed",
        "for them, two missing attributes are equal, so <> is false. NOT KNOWN of DynamoDB",
    ),
    Difference(
        "TransactWriteItems TransactionCanceled.*ValidationError",
        "OK",
        "ministack does not check the types of an update's operands in a transaction",
        "ministack",
    ),
    Difference(
        r"\w+ (ConditionalCheckFailed|TransactionCanceled.*ConditionalCheckFailed)",
        "(OK|ValidationException: The provided expression refers)",
        "for them, two missing attributes are equal (IN, =, >=); DynamoDB compares no such values",
    ),
    Difference(
        r"\w+ OK",
        "(ConditionalCheckFailed|TransactionCanceled.*ConditionalCheckFailed)",
        "for them, two missing attributes are equal, so <> is false. NOT KNOWN of DynamoDB",
    ),
    Difference(
        r"(GetItem|TransactGetItems) OK",
        "OK",
        "ministack shows an empty item if a projection finds nothing",
        "ministack",
    ),
    Difference(
        "UpdateItem OK",
        "OK",
        "REMOVE or DELETE on a missing item make one of its keys there. NOT KNOWN of DynamoDB",
    ),
    Difference(r"Transact\w+ ", UNKNOWN, "dynalite has no transactions", "dynalite"),
    Difference(
        "Query OK",
        "OK",
        "in ministack's filters, two missing attributes are equal",
        "ministack",
    ),
    Difference(
        "Scan OK",
        "OK",
        "ministack's CONTAINS looks for text in the base64 form of binary values",
        "ministack",
    ),
    Difference(
        "Query OK",
        "OK",
        "dynalite ends a page after the row that exceeds 1 MB, ours before. NOT KNOWN of DynamoDB",
        "dynalite",
    ),
    Difference(r"\w+ ", "Dropped", "this request ends dynalite (a TypeError)", "dynalite"),
    Difference(
        r"\w+ (OK|Conditional)",
        "ValidationException: .*Type mismatch for Index Key",
        "dynalite checks literals for an index's key first, also of DELETE. NOT KNOWN of DynamoDB",
        "dynalite",
    ),
    Difference(
        r"\w+ (OK|Conditional)",
        "ValidationException: .*first operand must be distinct",
        "dynalite resolves aliases before it compares operands. NOT KNOWN of DynamoDB",
        "dynalite",
    ),
]


CHECKED = {
    "two missing attributes": "missing attributes",
    "REMOVE or DELETE on a missing item": "removals from a missing item",
    "exceeds 1 MB": "pages of 1 MB",
    "literals for an index's key": "sets and the keys of an index",
    "resolves aliases": "operands under two names",
}
"""By words of an explanation: the assumption that `heatsink verify` checks on DynamoDB."""


class Other:
    """Another engine. It is started again if a request ends it."""

    def __init__(self, start: Callable[[], AbstractContextManager[str]]) -> None:
        self._start = start

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._start() as url:
            self._connection = HTTPConnection(url.removeprefix("http://"), timeout=20)
            yield

    def send(self, operation: str, parameters: Body) -> Body:
        headers = {**HEADERS, "X-Amz-Target": API + operation}
        try:
            self._connection.request("POST", "/", msgspec.json.encode(parameters), headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException):
            self._connection.close()
            raise DROPPED from None
        with suppress(msgspec.DecodeError):
            body: Body = msgspec.json.decode(content)
            if answer.status == 200:
                return body
            raise WireError(answer.status, body)
        raise WireError(answer.status, {"__type": "NoJson", "message": ""})


class Beside:
    """Runs the corpus on two engines, and counts how their answers differ."""

    def __init__(self, name: str, other: Other) -> None:
        self.name = name
        self.count = 0
        self.explained: Counter[str] = Counter()
        self.unexplained: list[str] = []
        self._other = other
        self._tokens: dict[str, str] = {}

    def run(self, seed: int, requests: int) -> None:
        ours = Upstream(ManualClock(START_MS / 1000))
        ours.send("CreateTable", DEFINITION)
        grammar, left = Grammar(Random(seed), START_MS), requests
        while left > 0:
            with self._other.running():
                self._make_equal(ours)
                while left > 0 and self._one(ours, grammar):
                    left -= 1
                left -= 1

    def _one(self, ours: Upstream, grammar: Grammar) -> bool:
        """Run one request. Returns whether the other engine survived it."""
        grammar.now_ms += STEP_MS
        operation, parameters = grammar.request()
        token = parameters.get("ClientRequestToken")
        if isinstance(token, str) and token in self._tokens:
            parameters = {**parameters, "ClientRequestToken": self._tokens[token]}
        mine = outcome(ours.send, operation, parameters)
        theirs = outcome(self._other.send, operation, parameters)
        self.count += 1
        if not _same(operation, parameters, mine, theirs):
            self._note(operation, parameters, mine, theirs)
            if isinstance(token, str):  # perhaps only one of them knows it from now on
                self._tokens[token] = f"{token}-{self.count}"
        survived = theirs.get("error") != "Dropped"
        if survived and operation in WRITES:
            for key in _keys_in(parameters):
                self._copy(ours, key)
        return survived

    def _note(self, operation: str, parameters: Body, mine: Body, theirs: Body) -> None:
        said = f"{operation} {words(mine)}", words(theirs)
        for one in EXPLAINED:
            fits = re.match(one.ours, said[0]) and re.match(one.theirs, said[1])
            if fits and one.only in ("", self.name):
                self.explained[one.why] += 1
                return
        self.unexplained.append("\n  ".join(map(str, (*said, parameters, mine, theirs))))

    def _make_equal(self, ours: Upstream) -> None:
        with suppress(WireError):
            self._other.send("DeleteTable", {"TableName": TABLE})
        until(self._is_made)
        page: Body = {}
        while True:
            start = page.get("LastEvaluatedKey")
            more = {"ExclusiveStartKey": start} if start else {}
            page = ours.send("Scan", {"TableName": TABLE, **more})
            for item in page["Items"]:
                self._other.send("PutItem", {"TableName": TABLE, "Item": item})
            if "LastEvaluatedKey" not in page:
                return

    def _is_made(self) -> bool:
        with suppress(WireError):
            self._other.send("CreateTable", DEFINITION)
        try:
            found = self._other.send("DescribeTable", {"TableName": TABLE})
        except WireError:
            return False
        return bool(found["Table"]["TableStatus"] == "ACTIVE")

    def _copy(self, ours: Upstream, key: Body) -> None:
        of = {"TableName": TABLE, "Key": key}
        with suppress(WireError):
            found = ours.send("GetItem", {**of, "ConsistentRead": True})
            if "Item" in found:
                self._other.send("PutItem", {"TableName": TABLE, "Item": found["Item"]})
            else:
                self._other.send("DeleteItem", of)


def _same(operation: str, parameters: Body, mine: Body, theirs: Body) -> bool:
    """Whether two answers say the same. Costs and the words of errors may differ."""
    if "error" in mine or "error" in theirs:
        return mine.get("error") == theirs.get("error")
    if operation == "Scan" or "IndexName" in parameters:  # each engine has an order of its own
        is_part = not {"Limit", "Segment"}.isdisjoint(parameters)
        is_part = is_part or "LastEvaluatedKey" in mine or "LastEvaluatedKey" in theirs
        return is_part or bool(mine["Count"] == theirs["Count"])
    left, right = comparable(mine), comparable(theirs)
    for field in ("consumed", "ItemCollectionMetrics"):
        left.pop(field, None)
        right.pop(field, None)
    return left == right


def words(answer: Body) -> str:
    if "error" not in answer:
        return "OK"
    body = answer["body"]
    return f"{answer['error']}: {body.get('message') or body.get('Message') or ''}"


def _keys_in(value: Any) -> Iterator[Body]:
    if isinstance(value, dict):
        if isinstance(value.get("pk"), dict) and isinstance(value.get("sk"), dict):
            yield {"pk": value["pk"], "sk": value["sk"]}
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from _keys_in(one)


@contextmanager
def dynalite() -> Iterator[str]:
    folder, port = TOOLS / "dynalite", free_port()
    program = folder / "node_modules" / "dynalite" / "cli.js"
    if not program.exists():
        install = [NODE, NPM, "install", "--silent", "--no-audit", "--no-fund"]
        done = subprocess.run([*install, "--prefix", str(folder), DYNALITE], check=False)
        if done.returncode:
            assert "CI" not in os.environ
            pytest.skip("npm install failed, which needs a network")
    at_once = ("--createTableMs", "0", "--deleteTableMs", "0", "--updateTableMs", "0")
    process = subprocess.Popen(
        [NODE, program, "--port", str(port), *at_once],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


ENGINES: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "ministack": ministack,
    "dynalite": dynalite,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak --beside", description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("count", type=int, nargs="?", default=2_000, help="how many requests")
    parser.add_argument("--first", type=int, default=0, help="the seed")
    given = parser.parse_args()
    run = Beside(given.engine, Other(ENGINES[given.engine]))
    try:
        run.run(given.first, given.count)
    except pytest.skip.Exception as skipped:
        raise SystemExit(str(skipped)) from None
    same = run.count - run.explained.total() - len(run.unexplained)
    lines = [f"NOT EXPLAINED: {said}\n" for said in run.unexplained]
    lines += [f"{count:6,}  {why}" for why, count in run.explained.most_common()]
    lines.append(f"{same:,} of {run.count:,} requests got the same answers as from {given.engine}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if run.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
