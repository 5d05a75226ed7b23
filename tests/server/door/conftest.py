"""An emulator with a table, and a door in front of it, as a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from heatsink.emulator.settings import EngineSettings
from heatsink.testing.dynamodb import LocalDynamoDB
from tests.processes import Served, serving

NO_RETRIES = Config(retries={"total_max_attempts": 1}, max_pool_connections=32)
CHAT = """
[[table]]
name = "chat"
partition_key = "room"
sort_key = "at"

[[table.rule]]
prefix = "MSG#"
time = "millis_text"
"""


def make_table(client: Any, name: str) -> None:
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": "room", "KeyType": "HASH"},
            {"AttributeName": "at", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "room", "AttributeType": "S"},
            {"AttributeName": "at", "AttributeType": "S"},
        ],
    )


def client_of(url: str, service: Any = "dynamodb", **options: Any) -> Any:
    given = {
        "endpoint_url": url,
        "region_name": "us-east-1",
        "aws_access_key_id": "any",
        "aws_secret_access_key": "any",
        "config": NO_RETRIES,
    }
    return boto3.client(service, **{**given, **options})


@contextmanager
def a_door(folder: Path, upstream: str, *flags: str) -> Iterator[Served]:
    with serving(folder, "--endpoint", upstream, *flags, command="door") as door:
        yield door


@pytest.fixture(scope="module")
def emulator() -> Iterator[LocalDynamoDB]:
    unlimited = EngineSettings(port=0, write_limit=1e9, read_limit=1e9)
    with LocalDynamoDB(unlimited) as dynamodb:
        make_table(dynamodb.client(), "plain")
        yield dynamodb


@pytest.fixture(scope="module")
def door(emulator: LocalDynamoDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A door on loopback without declared tables."""
    with a_door(tmp_path_factory.mktemp("door"), emulator.url) as served:
        yield served


def records_of(client: Any, streams: Any, table: str) -> list[dict[str, Any]]:
    """Return all records of a table's stream."""
    arn = client.describe_table(TableName=table)["Table"]["LatestStreamArn"]
    records: list[dict[str, Any]] = []
    for shard in streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]:
        at = {"ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = streams.get_shard_iterator(StreamArn=arn, **at)["ShardIterator"]
        records += streams.get_records(ShardIterator=iterator)["Records"]
    return records
