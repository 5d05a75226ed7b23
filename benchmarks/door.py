"""What `heatsink.boto.attach` adds to boto3 on cold keys: CPU time of a call, beside plain boto3.

Two clients of one process take turns: one attached, one not. Both call our engine, a process with
limits out of reach. The CPU time is that of the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any

import boto3

from heatsink.boto import attach
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.times import iso_text
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse

from .clients import CLOCK
from .door_server import compare_servers
from .dynamodb import running_engine
from .harness import Bench, Contender, Scale, interleave, ratio_at_most

TABLE = "chat"
KEY = {"room": {"S": "r1"}, "at": {"S": "2026-11-15T12:00:00.000Z#1"}}
RATIO_MAX = 1.05
ROWS = 20


def client_of(url: str) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106 (the engine takes any)
    )


def define(client: Any) -> None:
    names = ("room", "at")
    client.create_table(
        TableName=TABLE,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": name, "KeyType": kind}
            for name, kind in zip(names, ("HASH", "RANGE"), strict=True)
        ],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
    )
    for number in range(ROWS):
        at = {"S": f"2026-11-15T12:00:{number:02}.000Z#1"}
        client.put_item(TableName=TABLE, Item={**KEY, "at": at, "text": {"S": "x" * 100}})


def calls(client: Any) -> dict[str, Callable[[], object]]:
    item = {**KEY, "text": {"S": "x" * 100}}
    return {
        "GetItem": lambda: client.get_item(TableName=TABLE, Key=KEY),
        "PutItem": lambda: client.put_item(TableName=TABLE, Item=item),
        "Query of 20 rows": lambda: client.query(
            TableName=TABLE,
            KeyConditionExpression="room = :r AND #a > :a",
            ExpressionAttributeNames={"#a": "at"},
            ExpressionAttributeValues={":r": KEY["room"], ":a": {"S": "2026"}},
        ),
    }


def turn(call: Callable[[], object], times: int) -> Contender:
    async def measured() -> float:
        began_s = thread_time()
        for _ in range(times):
            call()
        return (thread_time() - began_s) / times

    return measured


@contextmanager
def attached(url: str) -> Iterator[Any]:
    client = client_of(url)
    declared = SpreadTable(
        TABLE, partition_key="room", sort_key="at", rules=[by_time("", iso_text)]
    )
    registry = f"dynamodb://heatsink?endpoint={url}"
    with attach(client, tables=[declared], registry=registry):
        yield client


async def run(bench: Bench, scale: Scale) -> None:
    async with running_engine() as url:
        plain = client_of(url)
        define(plain)
        await make_table(parse("heatsink", {"endpoint": url}), CLOCK)
        rounds, times = scale(11, 21), scale(60, 200)
        with attached(url) as client:
            ours, others = calls(client), calls(plain)
            for name, call in ours.items():
                samples = await interleave(
                    rounds, turn(call, times), turn(others[name], times), warm_up=2
                )
                target = ratio_at_most(RATIO_MAX)
                bench.add(f"{name}, attached", "µs", samples[0], target, ("boto3", samples[1]))
    await compare_servers(bench, scale)
