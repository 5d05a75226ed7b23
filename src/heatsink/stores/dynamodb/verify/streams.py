"""Checks of DynamoDB Streams: iterators, the order of records, and the keys in them."""

from __future__ import annotations

from .ground import Ground, Item, key
from .observed import Assumption, Observed, all_as

CHANGES = 5
SHOWN_S = 60.0
LOOK_S = 0.5


async def _iterator(ground: Ground, arn: str, shard: str, kind: str, **more: str) -> str:
    at = {"StreamArn": arn, "ShardId": shard, "ShardIteratorType": kind, **more}
    reply = await ground.stream("GetShardIterator", **at)
    return str(reply.body["ShardIterator"])


async def _records(ground: Ground, iterator: str) -> tuple[list[Item], str]:
    body = (await ground.stream("GetRecords", ShardIterator=iterator)).body
    return body["Records"], str(body.get("NextShardIterator") or "")


async def _all_records(ground: Ground, arn: str, count: int) -> tuple[str, list[Item]]:
    """Read each shard from its beginning until one has `count` records, or `SHOWN_S` have passed.

    Returns the shard that had the most records, and these.
    """
    until_s = ground.clock.monotonic_s() + SHOWN_S
    stream = (await ground.stream("DescribeStream", StreamArn=arn)).body["StreamDescription"]
    shards = [one["ShardId"] for one in stream["Shards"]]
    at = {shard: await _iterator(ground, arn, shard, "TRIM_HORIZON") for shard in shards}
    found: dict[str, list[Item]] = {shard: [] for shard in shards}
    while True:
        for shard, iterator in at.items():
            if iterator:
                records, at[shard] = await _records(ground, iterator)
                found[shard] += records
        shard = max(found, key=lambda one: len(found[one]))
        if len(found[shard]) >= count or ground.clock.monotonic_s() > until_s:
            return shard, found[shard]
        await ground.clock.sleep(LOOK_S)


def _values(records: list[Item]) -> str:
    images = (record["dynamodb"].get("NewImage", {}) for record in records)
    return " ".join(image.get("v", {}).get("N", "?") for image in images)


async def iterators(ground: Ground) -> Observed:
    """Change one item a few times, and read its records by each kind of iterator."""
    wanted = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    name = await ground.table("stream", StreamSpecification=wanted)
    described = (await ground.send("DescribeTable", TableName=name)).body["Table"]
    arn = described["LatestStreamArn"]
    for number in range(CHANGES):
        item = {**key("a"), "v": {"N": str(number)}}
        await ground.send("PutItem", TableName=name, Item=item)
    shard, records = await _all_records(ground, arn, CHANGES)
    if len(records) < CHANGES:
        return Observed(None, f"{len(records)} of {CHANGES} records within {SHOWN_S:g} s")
    second = records[1]["dynamodb"]["SequenceNumber"]
    at = await _iterator(ground, arn, shard, "AT_SEQUENCE_NUMBER", SequenceNumber=second)
    after = await _iterator(ground, arn, shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=second)
    from_second, _ = await _records(ground, at)
    again, _ = await _records(ground, at)
    from_third, _ = await _records(ground, after)
    keys = all(record["dynamodb"]["Keys"] == key("a") for record in records)
    names_table = at.startswith("arn:") and name in at
    seen = [
        f"from the beginning {_values(records)}",
        f"at the second {_values(from_second)}",
        f"the same iterator again {_values(again)}",
        f"after the second {_values(from_third)}",
        "records have the item's keys" if keys else "records have other keys",
        "iterators name the table" if names_table else "iterators do not name the table",
    ]
    return all_as(
        [
            "from the beginning 0 1 2 3 4",
            "at the second 1 2 3 4",
            "the same iterator again 1 2 3 4",
            "after the second 2 3 4",
            "records have the item's keys",
            "iterators name the table",
        ],
        seen,
    )


ASSUMPTIONS = (
    Assumption(
        "iterators of a stream",
        "records of an item in their order, with its keys; an iterator may be used twice, and "
        "names the table",
        "records that the door and attach show: door/streams.py",
        iterators,
        writes=CHANGES,
        dollars=0.001,
    ),
)
