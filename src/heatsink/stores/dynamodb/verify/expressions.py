"""Checks of expressions in cases that the documentation leaves open, and that engines differ in.

`./dev soak --beside` compares our emulator with the engines of others. In these cases the engines
differ, and only DynamoDB itself can show which one is right.
"""

from __future__ import annotations

from typing import Any

from .ground import KEYS, Ground, Item, key
from .observed import Assumption, Observed, all_as

FAILED = "ConditionalCheckFailedException"
MISSING: dict[str, str] = {
    "x <> y": "accepted",
    "NOT x = y": "accepted",
    "x = y": FAILED,
    "x <= y": FAILED,
    "x IN (y, z)": FAILED,
    "x BETWEEN y AND z": FAILED,
    "x <> v": "accepted",
    "contains(x, y)": FAILED,
}
"""Conditions on an item that has none of x, y and z, and what becomes of a write with each."""
SET = {":s": {"SS": ["a"]}}


async def missing_attributes(ground: Ground) -> Observed:
    name = await ground.table("missing")
    item = {**key("a"), "v": {"S": "v"}}
    await ground.send("PutItem", TableName=name, Item=item)
    wrong = []
    for condition, assumed in MISSING.items():
        reply = await ground.send(
            "PutItem", TableName=name, Item=item, ConditionExpression=condition
        )
        if reply.outcome != assumed:
            wrong.append(f"{condition}: {reply.outcome}, not {assumed}")
    return Observed(not wrong, "; ".join(wrong) or f"all {len(MISSING)} conditions as assumed")


async def removals(ground: Ground) -> Observed:
    """Update a missing item so that nothing is left to store."""
    name = await ground.table("removals")
    updates: list[tuple[str, Item]] = [
        ("REMOVE x", {}),
        ("DELETE x :s", {"ExpressionAttributeValues": SET}),
        ("", {}),
    ]
    seen = []
    for number, (update, more) in enumerate(updates):
        request: dict[str, Any] = {"TableName": name, "Key": key("a", str(number)), **more}
        if update:
            request["UpdateExpression"] = update
        reply = await ground.send("UpdateItem", **request)
        get = await ground.send(
            "GetItem", TableName=name, Key=key("a", str(number)), ConsistentRead=True
        )
        seen.append(f"{reply.outcome} {'with item' if 'Item' in get.body else 'without item'}")
    wanted = ["accepted without item", "accepted without item", "accepted with item"]
    return all_as(wanted, seen)


async def same_operands(ground: Ground) -> Observed:
    """An attribute may be compared with itself under two names, but not under one."""
    name = await ground.table("operands")
    item = {**key("a"), "v": {"S": "v"}}
    await ground.send("PutItem", TableName=name, Item=item)
    names = {"#v": "v"}
    seen = []
    for condition, more in (
        ("#v = v", {"ExpressionAttributeNames": names}),
        ("v = v", {}),
    ):
        reply = await ground.send(
            "PutItem", TableName=name, Item=item, ConditionExpression=condition, **more
        )
        seen.append(reply.outcome)
    return all_as(["accepted", "ValidationException"], seen)


async def index_keys(ground: Ground) -> Observed:
    """DELETE names the key of an index with a set, which no key is."""
    index = {
        "IndexName": "by-tag",
        "KeySchema": [{"AttributeName": "tag", "KeyType": "HASH"}],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    kinds = [*KEYS, {"AttributeName": "tag", "AttributeType": "S"}]
    name = await ground.table(
        "index-keys", AttributeDefinitions=kinds, GlobalSecondaryIndexes=[index]
    )
    await ground.send("PutItem", TableName=name, Item=key("a"))
    seen = []
    for update in ("DELETE tag :s", "SET tag = :s"):
        reply = await ground.send(
            "UpdateItem",
            TableName=name,
            Key=key("a"),
            UpdateExpression=update,
            ExpressionAttributeValues=SET,
        )
        seen.append(reply.outcome)
    return all_as(["accepted", "ValidationException"], seen)


ASSUMPTIONS = (
    Assumption(
        "missing attributes",
        "a comparison of missing attributes is false, and <> is true",
        "filters of the door, which it evaluates itself while a key has buckets",
        missing_attributes,
        writes=9,
    ),
    Assumption(
        "removals from a missing item",
        "REMOVE and DELETE make no item there; an update without an expression makes one",
        "UpdateItem of the door: tests compare it with the emulator",
        removals,
        writes=3,
        reads=3,
    ),
    Assumption(
        "operands under two names",
        "`#v = v` is allowed, and `v = v` is refused",
        "the door rewrites expressions with names of its own",
        same_operands,
        writes=3,
    ),
    Assumption(
        "sets and the keys of an index",
        "DELETE of a set from a missing key of an index is allowed; SET to a set is refused",
        "updates of items in a spread index: door/tagging.py",
        index_keys,
        writes=6,
    ),
)
