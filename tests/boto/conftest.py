"""An engine in its own process, and a table in it that somebody had before Heatsink."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from botocore.config import Config

from heatsink.stores.embedded import free_port
from tests.waiting import until

HEATSINK = [sys.executable, "-m", "heatsink"]
KEYS = ("conversation", "sent")


class Engine:
    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.registry = f"dynamodb://heatsink?endpoint={self.endpoint}"

    def resource(self, **config: Any) -> Any:
        return boto3.resource(
            "dynamodb",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",  # noqa: S106 (the engine takes any)
            config=Config(max_pool_connections=64, **config),
        )

    def client(self) -> Any:
        return boto3.client(
            "dynamodb",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",  # noqa: S106 (the engine takes any)
        )

    def make_table(self, name: str, sort_type: str = "S", **config: Any) -> Any:
        table = self.resource(**config).create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[
                {"AttributeName": KEYS[0], "KeyType": "HASH"},
                {"AttributeName": KEYS[1], "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": KEYS[0], "AttributeType": "S"},
                {"AttributeName": KEYS[1], "AttributeType": sort_type},
            ],
        )
        table.wait_until_exists()
        return table


@contextmanager
def running_engine(*limits: str) -> Iterator[Engine]:
    port = free_port()
    engine = Engine(port)
    process = subprocess.Popen(
        [*HEATSINK, "dynamo", "--port", str(port), *limits], stdout=subprocess.DEVNULL
    )
    try:
        create = [*HEATSINK, "table", "create", engine.registry]
        until(lambda: subprocess.run(create, capture_output=True, check=False).returncode == 0)
        yield engine
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with running_engine("--write-limit", "1000000", "--read-limit", "1000000") as engine:
        yield engine
