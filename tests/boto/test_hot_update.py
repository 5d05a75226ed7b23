"""A hot key at four times a partition's limit, by boto3's update_item: throttled without Heatsink.

The updates go to 1,200 new items. One item that everybody updates would get no relief.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from time import monotonic, sleep
from typing import Any

import pytest
from botocore.exceptions import ClientError

import heatsink
from heatsink.boto import attach
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.times import iso_text
from tests.adoption import complete_adoption

from .conftest import KEYS, Engine, running_engine

LIMIT = 25  # write units a second of a partition
RATE = 4 * LIMIT
ITEMS = 1_200
ROUNDS = 30
NO_RETRIES: dict[str, Any] = {"retries": {"total_max_attempts": 1}}


@pytest.fixture(scope="module")
def small() -> Iterator[Engine]:
    limits = ("--write-limit", str(LIMIT), "--burst-seconds", "1", "--partitions", "64")
    with running_engine(*limits) as engine:
        yield engine


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def drive(table: Any, items: int) -> int:
    """Update new items of one key at a steady rate. Returns how many updates were throttled."""
    began_s = monotonic()

    def update(number: int) -> bool:
        while (left_s := began_s + number / RATE - monotonic()) > 0:
            sleep(min(left_s, 0.09))  # the pace of traffic
        try:
            table.meta.client.update_item(
                TableName=table.name,
                Key={KEYS[0]: "launch", KEYS[1]: f"{now()}#{number}"},
                UpdateExpression="ADD likes :one",
                ExpressionAttributeValues={":one": 1},
            )
        except ClientError as error:
            if "Throughput" not in str(error) and "Throttling" not in str(error):
                raise
            return True
        return False

    with ThreadPoolExecutor(24) as pool:
        return sum(pool.map(update, range(items)))


@pytest.mark.full("drives a key past its limit for up to a minute")
def test_updates_of_a_hot_key_are_throttled_without_heatsink_and_not_with_it(small: Engine) -> None:
    plain, hot = small.make_table("plain"), small.make_table("hot")
    resource = small.resource(**NO_RETRIES)
    assert drive(resource.Table(plain.name), ITEMS) > ITEMS / 4
    rules = [by_time("", iso_text)]
    declared = SpreadTable(hot.name, partition_key=KEYS[0], sort_key=KEYS[1], rules=rules)
    with attach(
        resource,
        tables=[declared],
        registry=small.registry,
        rules=heatsink.BucketRules(bucket_units_s=LIMIT * 2 // 5),
    ) as attachment:
        complete_adoption(small.registry, hot.name)
        table = resource.Table(hot.name)
        for _ in range(ROUNDS):  # until the leader has spread the key by itself
            if attachment.explain(hot.name, "launch").buckets >= RATE / LIMIT:
                break
            drive(table, RATE)
        assert drive(table, ITEMS) == 0
