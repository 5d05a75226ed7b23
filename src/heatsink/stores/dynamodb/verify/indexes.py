"""Checks of global indexes: how far they lag, ties in their order, and where pages continue."""

from __future__ import annotations

from typing import Any

from .ground import KEYS, Ground, Item, key
from .observed import Assumption, Observed

INDEX = "by-tag"
TIES = 6
MOVES = 10
LAG_S_MAX = 60.0
"""How long `heatsink adopt --index` waits before each step, by default."""
LOOK_S = 0.05
PAGES_MAX = 4 * TIES


async def _indexed(ground: Ground, kind: str) -> str:
    index = {
        "IndexName": INDEX,
        "KeySchema": [
            {"AttributeName": "tag", "KeyType": "HASH"},
            {"AttributeName": "n", "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "ALL"},
    }
    own = (("tag", "S"), ("n", "N"))
    kinds = [{"AttributeName": name, "AttributeType": of} for name, of in own]
    return await ground.table(
        kind, AttributeDefinitions=[*KEYS, *kinds], GlobalSecondaryIndexes=[index]
    )


def _item(number: int, tag: str, rank: int = 0) -> Item:
    return {**key(f"p{number}"), "tag": {"S": tag}, "n": {"N": str(rank)}}


async def _page(ground: Ground, name: str, tag: str, **more: Any) -> Item:
    reply = await ground.send(
        "Query",
        TableName=name,
        IndexName=INDEX,
        KeyConditionExpression="tag = :t",
        ExpressionAttributeValues={":t": {"S": tag}},
        **more,
    )
    return reply.body


def _partitions(body: Item) -> list[str]:
    return [item["p"]["S"] for item in body["Items"]]


async def _until_shown(ground: Ground, name: str, tag: str, count: int) -> float | None:
    """Wait until the index shows `count` items of a value.

    Returns the number of seconds that this took, or None if it took longer than `LAG_S_MAX`.
    """
    start_s = ground.clock.monotonic_s()
    while True:
        found = (await _page(ground, name, tag))["Count"]
        passed_s = ground.clock.monotonic_s() - start_s
        if found == count:
            return passed_s
        if passed_s > LAG_S_MAX:
            return None
        await ground.clock.sleep(LOOK_S)


async def lag(ground: Ground) -> Observed:
    """Move an item from value to value, and wait each time until the index shows both changes."""
    name = await _indexed(ground, "lag")
    longest_s = 0.0
    for number in range(MOVES):
        await ground.send("PutItem", TableName=name, Item=_item(0, f"tag{number}"))
        waits = [await _until_shown(ground, name, f"tag{number}", 1)]
        if number:
            waits.append(await _until_shown(ground, name, f"tag{number - 1}", 0))
        for took_s in waits:
            if took_s is None:
                return Observed(False, f"a change was not in the index after {LAG_S_MAX:g} s")
            longest_s = max(longest_s, took_s)
    return Observed(True, f"{MOVES} moves; the longest lag was {longest_s:.2f} s")


async def ties(ground: Ground) -> Observed:
    """Read items with equal keys in pages of one, forward and backward."""
    name = await _indexed(ground, "ties")
    for number in range(TIES):
        await ground.send("PutItem", TableName=name, Item=_item(number, "t"))
    if await _until_shown(ground, name, "t", TIES) is None:
        return Observed(None, f"the items were not in the index after {LAG_S_MAX:g} s")
    wrong = []
    for forward in (True, False):
        whole = _partitions(await _page(ground, name, "t", ScanIndexForward=forward))
        found: list[str] = []
        more: dict[str, Any] = {}
        for _ in range(PAGES_MAX):
            body = await _page(ground, name, "t", ScanIndexForward=forward, Limit=1, **more)
            found += _partitions(body)
            if "LastEvaluatedKey" not in body:
                break
            more = {"ExclusiveStartKey": body["LastEvaluatedKey"]}
        if found != whole:
            direction = "forward" if forward else "backward"
            wrong.append(f"{direction}, pages of one: {' '.join(found)}, not {' '.join(whole)}")
    return Observed(not wrong, "; ".join(wrong) or f"{TIES} ties in one order, on one page or many")


async def start_keys(ground: Ground) -> Observed:
    """Continue at a key that the program made itself, and at one whose item is gone."""
    name = await _indexed(ground, "index-starts")
    for number in range(TIES):
        await ground.send("PutItem", TableName=name, Item=_item(number, "t"))
    if await _until_shown(ground, name, "t", TIES) is None:
        return Observed(None, f"the items were not in the index after {LAG_S_MAX:g} s")
    whole = _partitions(await _page(ground, name, "t"))
    middle = int(whole[TIES // 2].removeprefix("p"))
    rest = whole[TIES // 2 + 1 :]
    start = {"ExclusiveStartKey": _item(middle, "t")}
    made = _partitions(await _page(ground, name, "t", **start))
    await ground.send("DeleteItem", TableName=name, Key=key(f"p{middle}"))
    if await _until_shown(ground, name, "t", TIES - 1) is None:
        return Observed(None, f"the item was still in the index after {LAG_S_MAX:g} s")
    gone = _partitions(await _page(ground, name, "t", **start))
    text = f"after item {TIES // 2 + 1} of {TIES}: {len(made)} items; {len(gone)} once it is gone"
    return Observed(made == rest == gone, text)


ASSUMPTIONS = (
    Assumption(
        "lag of a global index",
        f"a change is in the index within {LAG_S_MAX:g} s, on both sides of a move",
        "steps and sweeps of a spread index: door/migration.py",
        lag,
        writes=4 * MOVES,
        reads=500,
    ),
    Assumption(
        "ties in a global index",
        "items with equal keys have one order, which pages of any size follow",
        "merging the buckets of a spread index: door/index_pages.py",
        ties,
        writes=2 * TIES,
        reads=100,
    ),
    Assumption(
        "start keys of a global index",
        "ExclusiveStartKey may be made from an item, also from one that is gone",
        "page tokens of a spread index: door/index_pages.py",
        start_keys,
        writes=2 * TIES + 2,
        reads=100,
    ),
)
