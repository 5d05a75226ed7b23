"""Streams and time to live without a socket: records, shards that follow splits, trimming."""

from __future__ import annotations

from typing import Any

import pytest

from heatsink.emulator.engine import STREAMS_API
from heatsink.emulator.rows import token_of
from heatsink.emulator.settings import EngineSettings
from heatsink.testing import ManualClock

from .calls import TABLE, Calls
from .forced import ForcedChanges
from .reading import Consumer, arn_of

BOTH = "NEW_AND_OLD_IMAGES"
ON_DEMAND: Any = {"BillingMode": "PAY_PER_REQUEST"}


def create(calls: Calls, view: str = BOTH) -> None:
    stream = {"StreamEnabled": True, "StreamViewType": view}
    calls.create(**ON_DEMAND, StreamSpecification=stream)


@pytest.fixture
def calls(clock: ManualClock) -> Calls:
    made = Calls(clock, EngineSettings(ttl_lag_s=5.0, partitions=1))
    create(made)
    return made


def write_three(calls: Calls) -> None:
    key = {"pk": {"S": "a"}, "sk": {"S": "1"}}
    calls.put("a")
    calls.put("a")  # changes nothing: no record
    calls(
        "UpdateItem",
        TableName=TABLE,
        Key=key,
        UpdateExpression="SET x = :x",
        ExpressionAttributeValues={":x": {"S": "new"}},
    )
    calls("DeleteItem", TableName=TABLE, Key=key)
    calls("DeleteItem", TableName=TABLE, Key=key)


def test_every_change_has_one_record(calls: Calls) -> None:
    write_three(calls)
    records = Consumer(calls).read()
    assert [one["eventName"] for one in records] == ["INSERT", "MODIFY", "REMOVE"]
    first, second, third = (one["dynamodb"] for one in records)
    assert first["Keys"] == {"pk": {"S": "a"}, "sk": {"S": "1"}}
    assert "OldImage" not in first
    assert (second["OldImage"]["x"], second["NewImage"]["x"]) == ({"S": ""}, {"S": "new"})
    assert "NewImage" not in third
    numbers = [one["dynamodb"]["SequenceNumber"] for one in records]
    assert numbers == sorted(numbers)
    assert all("userIdentity" not in one for one in records)


@pytest.mark.parametrize(
    ("view", "images"),
    [
        ("KEYS_ONLY", [set(), set(), set()]),
        ("NEW_IMAGE", [{"NewImage"}, {"NewImage"}, set()]),
        ("OLD_IMAGE", [set(), {"OldImage"}, {"OldImage"}]),
    ],
)
def test_a_view_type_selects_images(clock: ManualClock, view: str, images: list[set[str]]) -> None:
    calls = Calls(clock)
    create(calls, view)
    write_three(calls)
    found = [one["dynamodb"].keys() & {"NewImage", "OldImage"} for one in Consumer(calls).read()]
    assert found == images


def test_shards_follow_a_split_and_no_record_is_lost(calls: Calls) -> None:
    consumer = Consumer(calls)
    for number in range(20):
        calls.put(f"key{number % 5}", "1", size=number + 1)
    assert ForcedChanges(calls.engine.table(TABLE)).split(token_of("key0"))
    calls.engine.tend()
    calls.engine.tend()
    for number in range(20, 40):
        calls.put(f"key{number % 5}", "1", size=number + 1)
    shards = consumer.shards()
    [parent] = [shard for shard in shards if "ParentShardId" not in shard]
    children = [shard for shard in shards if shard.get("ParentShardId") == parent["ShardId"]]
    assert len(children) == 2
    assert "EndingSequenceNumber" in parent["SequenceNumberRange"]
    asked = {"StreamArn": arn_of(calls)}
    only = {"Type": "CHILD_SHARDS", "ShardId": parent["ShardId"]}
    filtered = calls(f"{STREAMS_API}DescribeStream", **asked, ShardFilter=only)
    assert filtered["StreamDescription"]["Shards"] == children
    sizes: dict[str, list[int]] = {}
    for record in consumer.read():
        key = record["dynamodb"]["Keys"]["pk"]["S"]
        sizes.setdefault(key, []).append(len(record["dynamodb"]["NewImage"]["x"]["S"]))
    assert sizes == {f"key{n}": list(range(n + 1, 41, 5)) for n in range(5)}


async def test_records_are_dropped_after_a_day(calls: Calls, clock: ManualClock) -> None:
    calls.put("a")
    [shard] = Consumer(calls).shards()
    [old] = Consumer(calls).read()
    await clock.advance(23 * 3_600.0)
    calls.put("b")
    calls.engine.tend()
    assert len(Consumer(calls).read()) == 2
    await clock.advance(2 * 3_600.0)
    calls.engine.tend()
    [left] = Consumer(calls).read()
    assert left["dynamodb"]["Keys"]["pk"] == {"S": "b"}
    error = calls(
        f"{STREAMS_API}GetShardIterator",
        StreamArn=arn_of(calls),
        ShardId=shard["ShardId"],
        ShardIteratorType="AT_SEQUENCE_NUMBER",
        SequenceNumber=old["dynamodb"]["SequenceNumber"],
    )
    assert calls.status == 400
    assert error["__type"].endswith(("#TrimmedDataAccessException", "#ResourceNotFoundException"))


async def test_an_iterator_expires(calls: Calls, clock: ManualClock) -> None:
    [shard] = Consumer(calls).shards()
    given = {"StreamArn": arn_of(calls), "ShardId": shard["ShardId"]}
    made = calls(f"{STREAMS_API}GetShardIterator", **given, ShardIteratorType="LATEST")
    calls.put("a")
    page = calls(f"{STREAMS_API}GetRecords", **made)
    assert len(page["Records"]) == 1
    assert page["NextShardIterator"]
    await clock.advance(901.0)
    calls.put("b")
    since = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": clock.now_s() - 1}
    later = calls(f"{STREAMS_API}GetShardIterator", **given, **since)
    [record] = calls(f"{STREAMS_API}GetRecords", **later)["Records"]
    assert record["dynamodb"]["Keys"]["pk"] == {"S": "b"}
    error = calls(f"{STREAMS_API}GetRecords", **made)
    assert error["__type"].endswith("#ExpiredIteratorException")
    assert (
        calls(f"{STREAMS_API}GetRecords", ShardIterator="x")["message"] == "Invalid ShardIterator"
    )


def test_a_stream_ends_and_another_begins(calls: Calls) -> None:
    calls.put("a")
    first = arn_of(calls)
    calls("UpdateTable", TableName=TABLE, StreamSpecification={"StreamEnabled": False})
    assert "LatestStreamArn" not in calls("DescribeTable", TableName=TABLE)["Table"]
    calls.put("b")
    wanted = {"StreamEnabled": True, "StreamViewType": BOTH}
    calls("UpdateTable", TableName=TABLE, StreamSpecification=wanted)
    calls.put("c")
    assert arn_of(calls) != first
    assert len(Consumer(calls).read()) == 1
    [record] = Consumer(calls, first).read()
    assert record["dynamodb"]["Keys"]["pk"] == {"S": "a"}
    described = calls(f"{STREAMS_API}DescribeStream", StreamArn=first)["StreamDescription"]
    assert described["StreamStatus"] == "DISABLED"
    listed = calls(f"{STREAMS_API}ListStreams", TableName=TABLE)["Streams"]
    assert [one["StreamArn"] for one in listed] == sorted([first, arn_of(calls)])


async def test_an_expired_item_is_deleted_and_the_stream_says_by_whom(
    calls: Calls, clock: ManualClock
) -> None:
    def put(pk: str, expires_s: float | None) -> None:
        item: Any = {"pk": {"S": pk}, "sk": {"S": "1"}}
        if expires_s is not None:
            item["until"] = {"N": str(int(expires_s))}
        calls("PutItem", TableName=TABLE, Item=item)

    now_s = clock.now_s()
    put("old", now_s + 10)
    wanted = {"AttributeName": "until", "Enabled": True}
    calls("UpdateTimeToLive", TableName=TABLE, TimeToLiveSpecification=wanted)
    put("new", now_s + 10)
    put("renewed", now_s + 10)
    put("renewed", now_s + 1_000)
    put("for ever", None)
    put("long ago", now_s - 6 * 365 * 86_400)
    calls.engine.tend()
    await clock.advance(14.0)
    calls.engine.tend()
    assert "Item" in calls.get("old")
    await clock.advance(2.0)
    calls.engine.tend()
    left = calls("Scan", TableName=TABLE)["Items"]
    assert {item["pk"]["S"] for item in left} == {"renewed", "for ever", "long ago"}
    removed = [one for one in Consumer(calls).read() if one["eventName"] == "REMOVE"]
    assert {one["dynamodb"]["Keys"]["pk"]["S"] for one in removed} == {"old", "new"}
    identity = {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}
    assert all(one["userIdentity"] == identity for one in removed)
