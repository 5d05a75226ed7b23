"""Checks of single items: conditions, updates, sizes and batches."""

from __future__ import annotations

from typing import Any

from .ground import Ground, Item, key
from .observed import Assumption, Observed, all_as

HASH_BYTES_MAX, SORT_BYTES_MAX, ITEM_BYTES_MAX = 2_048, 1_024, 400 * 1_024
WRITES_MAX, READS_MAX = 25, 100
FAILED, INVALID = "ConditionalCheckFailedException", "ValidationException"


async def old_items(ground: Ground) -> Observed:
    name = await ground.table("conditions")
    item = {**key("a"), "v": {"N": "1"}}
    await ground.send("PutItem", TableName=name, Item=item)
    request: Item = {"TableName": name, "ConditionExpression": "attribute_not_exists(p)"}
    plain = await ground.send("PutItem", Item=key("a"), **request)
    request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    asked = await ground.send("PutItem", Item=key("a"), **request)
    with_item = "with Item" if asked.failure.Item == item else "without Item"
    without = "without Item" if plain.failure.Item is None else "with Item"
    seen = [plain.outcome, without, asked.outcome, with_item]
    return all_as([FAILED, "without Item", FAILED, "with Item"], seen)


CONDITIONS: dict[str, tuple[Item, str]] = {
    ":a = :b": ({":a": {"N": "1"}, ":b": {"N": "1.0"}}, "accepted"),
    ":a < :b": ({":a": {"S": "2"}, ":b": {"S": "10"}}, FAILED),
    ":a BETWEEN :b AND :c": ({":a": {"N": "2"}, ":b": {"N": "1"}, ":c": {"N": "3"}}, "accepted"),
    ":a IN (:b, :c)": ({":a": {"N": "2"}, ":b": {"N": "1"}, ":c": {"N": "3"}}, FAILED),
    "begins_with(:a, :b)": ({":a": {"S": "ab"}, ":b": {"S": "a"}}, "accepted"),
    "contains(:a, :b)": ({":a": {"S": "ab"}, ":b": {"S": "c"}}, FAILED),
    "size(:v) = :n": ({":v": {"S": "abc"}, ":n": {"N": "3"}}, "accepted"),
    "attribute_type(:v, :t)": ({":v": {"S": "abc"}, ":t": {"S": "S"}}, "accepted"),
    "attribute_exists(:v)": ({":v": {"S": "abc"}}, INVALID),
    "p = p": ({}, INVALID),
}
"""Conditions on values alone, and the result of a put with each of them.

The door replaces the partition key in an expression by a value, so it relies on these results.
"""


async def values_alone(ground: Ground) -> Observed:
    name = await ground.table("values")
    wrong = []
    for condition, (values, assumed) in CONDITIONS.items():
        more: dict[str, Any] = {"ExpressionAttributeValues": values} if values else {}
        reply = await ground.send(
            "PutItem", TableName=name, Item=key("a"), ConditionExpression=condition, **more
        )
        if reply.outcome != assumed:
            wrong.append(f"{condition}: {reply.outcome}, not {assumed}")
    return Observed(not wrong, "; ".join(wrong) or f"all {len(CONDITIONS)} conditions as assumed")


async def sizes(ground: Ground) -> Observed:
    name = await ground.table("sizes")
    rest = len("p") + len("a") + len("s") + len("a") + len("b")
    tried = [
        key("h" * HASH_BYTES_MAX),
        key("h" * (HASH_BYTES_MAX + 1)),
        key("a", "s" * SORT_BYTES_MAX),
        key("a", "s" * (SORT_BYTES_MAX + 1)),
        {**key("a"), "b": {"S": "b" * (ITEM_BYTES_MAX - rest)}},
        {**key("a"), "b": {"S": "b" * (ITEM_BYTES_MAX - rest + 1)}},
        key(""),
    ]
    seen = [(await ground.send("PutItem", TableName=name, Item=item)).outcome for item in tried]
    return all_as([*["accepted", INVALID] * 3, INVALID], seen)


async def updates(ground: Ground) -> Observed:
    name = await ground.table("updates")
    request: Item = {"TableName": name, "Key": key("a")}
    add = {"UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
    first = await ground.send("UpdateItem", ReturnValues="UPDATED_NEW", **request, **add)
    old = await ground.send("UpdateItem", ReturnValues="ALL_OLD", **request, **add)
    keep = {
        "UpdateExpression": "SET n = if_not_exists(n, :one) + :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }
    new = await ground.send("UpdateItem", ReturnValues="ALL_NEW", **request, **keep)
    key_set = await ground.send(
        "UpdateItem",
        UpdateExpression="SET p = :one",
        ExpressionAttributeValues={":one": {"S": "b"}},
        **request,
    )
    seen = [
        str(first.body.get("Attributes")),
        str(old.body.get("Attributes")),
        str(new.body.get("Attributes", {}).get("n")),
        key_set.outcome,
    ]
    one = {"n": {"N": "1"}}
    return all_as([str(one), str({**key("a"), **one}), str({"N": "3"}), INVALID], sorted_keys(seen))


def sorted_keys(texts: list[str]) -> list[str]:
    """Bring the attributes of an item, which have no order, into the order n, p, s at the end."""
    item = str({**key("a"), "n": {"N": "1"}})
    return [item if sorted(text) == sorted(item) else text for text in texts]


async def batches(ground: Ground) -> Observed:
    name = await ground.table("batches")
    puts = [{"PutRequest": {"Item": key("a", f"{n:03}")}} for n in range(WRITES_MAX + 1)]
    keys = [key("a", f"{n:03}") for n in range(READS_MAX + 1)]

    async def write(requests: list[Item]) -> str:
        return (await ground.send("BatchWriteItem", RequestItems={name: requests})).outcome

    async def read(wanted: list[Item]) -> str:
        return (await ground.send("BatchGetItem", RequestItems={name: {"Keys": wanted}})).outcome

    seen = [
        await write(puts[:WRITES_MAX]),
        await write(puts),
        await write([puts[0], puts[0]]),
        await read(keys[:READS_MAX]),
        await read(keys),
        await read([keys[0], keys[0]]),
    ]
    return all_as(["accepted", INVALID, INVALID] * 2, seen)


ASSUMPTIONS = (
    Assumption(
        "failed conditions",
        f"{FAILED}; the item only with ALL_OLD",
        "retries find their own row: stores/dynamodb/log.py; answers of the door",
        old_items,
        writes=3,
    ),
    Assumption(
        "conditions on values alone",
        "`:a = :b`, `size(:v)` and others are evaluated; `attribute_exists(:v)` is refused",
        "the door, where an expression names the partition key",
        values_alone,
        writes=10,
    ),
    Assumption(
        "sizes of keys and items",
        "2,048 and 1,024 bytes for keys, 400 KB for an item; one more is refused, as is an empty "
        "key",
        "limits of keys and bodies: stores/dynamodb, door",
        sizes,
        writes=500,
    ),
    Assumption(
        "updates",
        "ADD and if_not_exists begin at the value; UPDATED_NEW, ALL_OLD, ALL_NEW; a key attribute "
        "cannot be set",
        "counters: stores/dynamodb/counters.py; UpdateItem of the door",
        updates,
        writes=4,
    ),
    Assumption(
        "limits of batches",
        "25 writes, 100 reads; one more or one key twice is refused",
        "BatchWriteItem and BatchGetItem of the door",
        batches,
        writes=30,
        reads=60,
    ),
)
