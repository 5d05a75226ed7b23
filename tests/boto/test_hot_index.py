"""A hot value of a global index at four times its limit: writes throttled without Heatsink only.

The writes go to many keys of the table, whose own partitions are calm.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import monotonic, sleep
from typing import Any

import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner

import heatsink
from heatsink.boto import attach
from heatsink.cli import main
from heatsink.door.declaration import SpreadTable
from heatsink.primitives.subjects import Kind, Subject
from tests.adoption import complete_adoption

from .conftest import Engine, running_engine

LIMIT = 25  # write units a second of a partition
RATE = 4 * LIMIT
ROUNDS = 30
ITEMS = 800
NO_RETRIES: dict[str, Any] = {"retries": {"total_max_attempts": 1}}
numbers = count()


@pytest.fixture(scope="module")
def small() -> Iterator[Engine]:
    limits = ("--write-limit", str(LIMIT), "--burst-seconds", "1", "--partitions", "64")
    with running_engine(*limits) as engine:
        yield engine


def make_table(engine: Engine, name: str) -> None:
    engine.client().create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": "id", "KeyType": "HASH"},
            {"AttributeName": "line", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": one, "AttributeType": "S"} for one in ("id", "line", "state")
        ],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "by-state",
                "KeySchema": [{"AttributeName": "state", "KeyType": "HASH"}],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )


def drive(client: Any, name: str, items: int) -> int:
    """Put new orders at a steady rate. Returns how many puts were throttled."""
    began_s = monotonic()

    def put(number: int) -> bool:
        while (left_s := began_s + number / RATE - monotonic()) > 0:
            sleep(min(left_s, 0.09))  # the pace of traffic
        item = {"id": f"order{next(numbers)}", "line": "0", "state": "new"}
        try:
            client.put_item(TableName=name, Item=item)
        except ClientError as error:
            if "Throughput" not in str(error) and "Throttling" not in str(error):
                raise
            return True
        return False

    with ThreadPoolExecutor(24) as pool:
        return sum(pool.map(put, range(items)))


@pytest.mark.full("drives an index past its limit for up to a minute")
def test_writes_of_a_hot_value_are_throttled_without_heatsink_and_not_with_it(
    small: Engine,
) -> None:
    for name in ("plain", "hot"):
        make_table(small, name)
    client = small.resource(**NO_RETRIES).meta.client
    assert drive(client, "plain", ITEMS) > ITEMS / 4
    table = SpreadTable("hot", partition_key="id", sort_key="line", rules=[])
    rules = heatsink.BucketRules(bucket_units_s=LIMIT * 2 // 5)
    with attach(client, tables=[table], registry=small.registry, rules=rules):
        complete_adoption(small.registry, "hot")
        flags = ["--index", "by-state", "--spread", "--in-flight", "0"]
        ran = CliRunner().invoke(main, ["adopt", small.registry, "hot", *flags])
        assert ran.exit_code == 0, ran.output
        value = Subject(Kind.INDEX, "hot/by-state/new")
        with heatsink.connect_sync(small.registry, coordinate=False) as hs:
            for _ in range(ROUNDS):  # until the leader has spread the value by itself
                if hs.explain(value).buckets >= RATE / LIMIT:
                    break
                drive(client, "hot", RATE)
        assert drive(client, "hot", ITEMS) == 0
        pages = client.get_paginator("query").paginate(
            TableName="hot",
            IndexName="by-state",
            KeyConditionExpression="#s = :s",
            ExpressionAttributeNames={"#s": "state"},
            ExpressionAttributeValues={":s": "new"},
        )
        found = [item["id"] for page in pages for item in page["Items"]]
        assert len(found) == len(set(found)) >= ITEMS
