"""Hot partitions on a real engine with unmodified boto3 clients, and what Heatsink adds to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import monotonic, sleep
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
from botocore.exceptions import ClientError
from mypy_boto3_dynamodb import DynamoDBClient

import heatsink
from heatsink.emulator.capacity.table import SPACE
from heatsink.emulator.rows import token_of
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.primitives.clock import SystemClock
from heatsink.spread.log import Entry
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from tests.waiting import until

from .contract.conftest import client_of
from .contract.engines import ours

LIMIT = 60.0
EASY_LIMIT = 20.0  # a busy machine, too, sends more than this
QUICK = EngineSettings(
    port=0, write_limit=LIMIT, partitions=1, split_after_s=3.0, cool_down_s=0.0, burst_s=1.0
)
TABLE = "chat"
THROTTLED = {"ThrottlingException", "ProvisionedThroughputExceededException"}
PATIENCE_S = 30.0
pytestmark = [pytest.mark.timeout(120), pytest.mark.server("the emulator listens")]


def create(client: DynamoDBClient, **capacity: Any) -> None:
    client.create_table(
        TableName=TABLE,
        AttributeDefinitions=[
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
        ],
        KeySchema=[
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
        **(capacity or {"BillingMode": "PAY_PER_REQUEST"}),
    )


def inspect(url: str, table: str = TABLE) -> dict[str, Any]:
    with urlopen(f"{url}/partitions") as answer:  # noqa: S310  the engine's own URL
        return next(one for one in json.load(answer) if one["table"] == table)


def events(url: str) -> list[str]:
    return [each["what"] + " done" * each["done"] for each in inspect(url)["events"]]


class Writer:
    """Puts rows of one key at a steady pace; who was late does not hurry afterwards."""

    def __init__(self, url: str, key: str, per_s: float) -> None:
        self._client = client_of(url)
        self._key = key
        self._step_s = 1 / per_s
        self.accepted: list[str] = []
        self.refused = 0

    def run(self, stop: Event) -> None:
        due_s, number = monotonic(), 0
        while not stop.is_set():
            number += 1
            self._put(f"{number:06}")
            due_s = max(due_s + self._step_s, monotonic())
            sleep(max(due_s - monotonic(), 0))
        self._client.close()

    def _put(self, sort: str) -> None:
        try:
            self._client.put_item(TableName=TABLE, Item={"pk": {"S": self._key}, "sk": {"S": sort}})
        except ClientError as error:
            if error.response["Error"]["Code"] not in THROTTLED:
                raise
            self.refused += 1
        else:
            self.accepted.append(sort)


def read_back(client: DynamoDBClient, key: str) -> list[str]:
    pages = client.get_paginator("query").paginate(
        TableName=TABLE,
        KeyConditionExpression="pk = :p",
        ExpressionAttributeValues={":p": {"S": key}},
        ConsistentRead=True,
        PaginationConfig={"PageSize": 50},
    )
    return [item["sk"]["S"] for page in pages for item in page["Items"]]


def scanned(client: DynamoDBClient) -> list[tuple[str, str]]:
    pages = client.get_paginator("scan").paginate(
        TableName=TABLE, ConsistentRead=True, PaginationConfig={"PageSize": 50}
    )
    return [(item["pk"]["S"], item["sk"]["S"]) for page in pages for item in page["Items"]]


@pytest.mark.sleeps("throttles are counted over two seconds")
def test_two_keys_of_one_partition_are_split_apart_and_no_longer_throttled() -> None:
    with ours(msgspec.structs.replace(QUICK, write_limit=EASY_LIMIT)) as url:
        client = client_of(url)
        create(client)
        writers = [Writer(url, key, 0.8 * EASY_LIMIT) for key in ("one", "two")]
        stop = Event()
        with ThreadPoolExecutor(2) as pool:
            try:
                for writer in writers:
                    pool.submit(writer.run, stop)
                until(lambda: "Split done" in events(url))
                sleep(1)  # until each partition has a little in hand
                before = sum(writer.refused for writer in writers)
                sleep(2)
                after = sum(writer.refused for writer in writers)
            finally:
                stop.set()
        assert before > 0, "too much for one partition"
        assert after == before, "not for two"
        for writer, key in zip(writers, ("one", "two"), strict=True):
            assert read_back(client, key) == writer.accepted
        found = scanned(client)
        client.close()
    assert len(found) == len(set(found)) == sum(len(writer.accepted) for writer in writers)
    assert found == sorted(found, key=lambda row: (token_of(row[0]), row[1]))


def test_one_key_borrows_is_isolated_and_the_engine_says_that_it_cannot_help() -> None:
    with ours(msgspec.structs.replace(QUICK, write_limit=EASY_LIMIT)) as url:
        client = client_of(url)
        provisioned = {"ReadCapacityUnits": 100, "WriteCapacityUnits": 40}
        create(client, ProvisionedThroughput=provisioned)
        assert len(inspect(url)["partitions"]) == 3
        writer, stop = Writer(url, "hot", 1.6 * EASY_LIMIT), Event()
        with ThreadPoolExecutor(1) as pool:
            try:
                pool.submit(writer.run, stop)
                until(lambda: "CannotHelp" in events(url) and "key" in inspect(url)["throttles"])
            finally:
                stop.set()
        report = inspect(url)
        assert read_back(client, "hot") == writer.accepted
        client.close()
    assert sorted(reasons := reasons_of(report)) == ["CannotHelp", "Isolate", "Lend"]
    assert "one key has 100% of it" in reasons["Isolate"]
    assert "spread it" in reasons["CannotHelp"]
    [alone] = [one for one in report["partitions"] if one["rows"]]
    assert alone["hottest"] == "hot"
    assert alone["state"]["end"] - alone["state"]["start"] == 1


def reasons_of(report: dict[str, Any]) -> dict[str, str]:
    """Each kind of event with its latest reason."""
    return {event["what"]: event["reason"] for event in report["events"]}


@pytest.mark.sleeps("two seconds without a throttle")
async def test_with_heatsink_the_same_key_is_spread_and_the_engine_splits_its_buckets() -> None:
    """One partition at first: all buckets share it, so that spreading alone would not do."""
    clock = SystemClock()
    async with running_engine(QUICK, clock) as url:
        await make_table(parse("messages", {"endpoint": url}), clock, None)
        rules = heatsink.BucketRules(bucket_units_s=40, forecast_s=0.0)
        address = f"dynamodb://messages?endpoint={url}"
        async with heatsink.connect(address, rules=rules, name="one") as hs:
            ids: list[str] = []
            writing = asyncio.create_task(append_for_ever(hs, ids, 1.6 * LIMIT))
            await until_calm(url)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            explained = await hs.explain("hot")
            rows = [entry.id async for entry in all_entries(hs)]
        report = await asyncio.to_thread(inspect, url, "messages")
    assert explained.buckets > 1
    assert len(report["partitions"]) > 1
    assert sum(each["state"]["end"] - each["state"]["start"] for each in report["partitions"]) == (
        SPACE
    )
    assert sorted(rows) == sorted(ids)


async def append_for_ever(hs: heatsink.Heatsink, ids: list[str], per_s: float) -> None:
    waiting: set[asyncio.Task[Any]] = set()

    async def append() -> None:
        ids.append((await hs.log.append("hot", b"hello")).id)

    due_s = monotonic()
    try:
        while True:
            task = asyncio.create_task(append())
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            due_s = max(due_s + 1 / per_s, monotonic())
            await asyncio.sleep(max(due_s - monotonic(), 0))
    finally:
        await asyncio.gather(*waiting)


async def until_calm(url: str) -> None:
    """Two seconds in which nothing is throttled, after it was and the engine has split for it."""
    throttles, calm_s, deadline_s = 0, 0.0, monotonic() + 2 * PATIENCE_S
    while calm_s < 2:
        assert monotonic() < deadline_s
        await asyncio.sleep(0.5)
        report = await asyncio.to_thread(inspect, url, "messages")
        now, is_split = sum(report["throttles"].values()), len(report["partitions"]) > 1
        calm_s = calm_s + 0.5 if now == throttles and now and is_split else 0.0
        throttles = now


async def all_entries(hs: heatsink.Heatsink) -> AsyncIterator[Entry]:
    page = await hs.log.page("hot", limit=100)
    while True:
        for entry in page.entries:
            yield entry
        if page.cursor is None:
            return
        page = await hs.log.page("hot", limit=100, cursor=page.cursor)
