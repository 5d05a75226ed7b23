"""Checks of queries: order, pages, limits and consistency."""

from __future__ import annotations

from typing import Any

from .ground import Ground, Item, Reply, key
from .observed import Assumption, Observed, all_as

LARGE = 300 * 1_024  # three such items are below 1 MB, four are above
FEW = 4


async def _query(ground: Ground, name: str, partition: str, **more: Any) -> Reply:
    values = {":p": {"S": partition}, **more.pop("values", {})}
    return await ground.send(
        "Query",
        TableName=name,
        KeyConditionExpression="p = :p",
        ExpressionAttributeValues=values,
        ConsistentRead=True,
        **more,
    )


async def _filled(ground: Ground, kind: str, size: int) -> str:
    name = await ground.table(kind)
    for number in range(FEW):
        item = {**key("a", f"{number}"), "b": {"S": "b" * size}}
        await ground.send("PutItem", TableName=name, Item=item)
    return name


def _shown(reply: Reply) -> str:
    last: Item = reply.body.get("LastEvaluatedKey", {})
    end = f"ends at {last['s']['S']}" if last else "no LastEvaluatedKey"
    return f"{reply.body['Count']} of {reply.body['ScannedCount']} items, {end}"


async def cut_at_a_megabyte(ground: Ground) -> Observed:
    name = await _filled(ground, "megabyte", LARGE)
    whole = await _query(ground, name, "a")
    projected = await _query(ground, name, "a", ProjectionExpression="s")
    nothing = {"FilterExpression": "s2 = :none", "values": {":none": {"S": "none"}}}
    filtered = await _query(ground, name, "a", **nothing)
    seen = [_shown(whole), _shown(projected), _shown(filtered)]
    return all_as([*["3 of 3 items, ends at 2"] * 2, "0 of 3 items, ends at 2"], seen)


async def limits(ground: Ground) -> Observed:
    name = await _filled(ground, "limits", 1)
    nothing = {"FilterExpression": "b = :none", "values": {":none": {"S": "none"}}}
    filtered = await _query(ground, name, "a", Limit=2, **nothing)
    exact = await _query(ground, name, "a", Limit=FEW)
    beyond = await _query(ground, name, "a", Limit=FEW + 1)
    after = await _query(ground, name, "a", ExclusiveStartKey=exact.body.get("LastEvaluatedKey"))
    seen = [_shown(filtered), _shown(exact), _shown(beyond), _shown(after)]
    wanted = [
        "0 of 2 items, ends at 1",
        "4 of 4 items, ends at 3",
        "4 of 4 items, no LastEvaluatedKey",
        "0 of 0 items, no LastEvaluatedKey",
    ]
    return all_as(wanted, seen)


async def order(ground: Ground) -> Observed:
    name = await ground.table("order")
    sorts = ["A", "Z", "a", "~", "é", "\uffee", "\U0001f525"]  # by their bytes in UTF-8
    for sort in reversed(sorts):
        await ground.send("PutItem", TableName=name, Item=key("a", sort))
    up = await _query(ground, name, "a")
    down = await _query(ground, name, "a", ScanIndexForward=False)
    rising = [item["s"]["S"] for item in up.body["Items"]]
    falling = [item["s"]["S"] for item in down.body["Items"]]
    return Observed(rising == sorts and falling == sorts[::-1], " ".join(rising))


async def start_keys(ground: Ground) -> Observed:
    """A start key of an item that does not exist continues at the next item."""
    name = await _filled(ground, "starts", 1)
    reply = await _query(ground, name, "a", ExclusiveStartKey=key("a", "1x"))
    found = " ".join(item["s"]["S"] for item in reply.body["Items"])
    return all_as(["2 3"], [found])


async def strong_reads(ground: Ground) -> Observed:
    name = await ground.table("strong")
    missed = 0
    for number in range(20):
        item = {**key("a"), "v": {"N": str(number)}}
        await ground.send("PutItem", TableName=name, Item=item)
        reply = await ground.send("GetItem", TableName=name, Key=key("a"), ConsistentRead=True)
        missed += reply.body.get("Item") != item
    return Observed(not missed, f"{missed} of 20 strong reads were stale")


ASSUMPTIONS = (
    Assumption(
        "pages of 1 MB",
        "a page ends before the item that would exceed 1 MB, by sizes before filter and projection",
        "pages of the log: stores/dynamodb/log.py; Query and Scan of the door",
        cut_at_a_megabyte,
        writes=1_300,
        reads=1_000,
    ),
    Assumption(
        "Limit",
        "counts items before the filter; LastEvaluatedKey also on the last item",
        "paging of the door",
        limits,
        writes=4,
        reads=10,
    ),
    Assumption(
        "order",
        "sort keys in the order of their bytes in UTF-8, in both directions",
        "merging of buckets: spread/gather.py, door",
        order,
        writes=7,
        reads=2,
    ),
    Assumption(
        "start keys",
        "ExclusiveStartKey may name an item that does not exist",
        "cursors survive deletes and changes of layout",
        start_keys,
        writes=4,
        reads=1,
    ),
    Assumption(
        "strong reads",
        "see every acknowledged write",
        "the registry and its closed time",
        strong_reads,
        writes=20,
        reads=20,
    ),
)
