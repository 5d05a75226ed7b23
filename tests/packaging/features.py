"""A program for an environment with Heatsink's wheel: uses features, and says what each answered.

    python features.py FOLDER ENDPOINT REDIS NAME ...

It prints a JSON object: by the name of each feature "ok", or the error it met. ENDPOINT is that of
a running emulator, REDIS the URL of a running server.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any

import heatsink

FOLDER, ENDPOINT, REDIS, *NAMES = sys.argv[1:] or [""] * 3
TABLE = f"dynamodb://messages?endpoint={ENDPOINT}"
KEYS: dict[str, Any] = {
    "region_name": "eu-west-1",
    "aws_access_key_id": "any",
    "aws_secret_access_key": "any",
}


async def append_and_count(url: str, **settings: Any) -> None:
    async with heatsink.connect(url, **settings) as hs:
        receipt = await hs.log.append("conv", b"hey")
        found = await hs.log.get("conv", receipt.id)
        assert found is not None
        assert found.body == b"hey"
        await hs.counters.add("views", 1)


async def stores() -> None:
    """What needs no extra."""
    await append_and_count("memory://")
    await append_and_count(f"sqlite:///{FOLDER}/log.db")


async def emulated_table() -> None:
    from heatsink.errors import TableExists
    from heatsink.primitives.clock import SystemClock
    from heatsink.stores.dynamodb import make_table
    from heatsink.stores.dynamodb.address import parse

    with suppress(TableExists):
        await make_table(parse("messages", {"endpoint": ENDPOINT}), SystemClock())
    await append_and_count(TABLE)


async def aws() -> None:
    """A table on AWS: only the client is made, since nobody answers here."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    heatsink.connect("dynamodb://messages?region=eu-west-1")


async def boto() -> None:
    await emulated_table()
    await asyncio.to_thread(use_boto)


def use_boto() -> None:
    import boto3

    from heatsink.boto import Table, times

    chat = boto3.resource("dynamodb", endpoint_url=ENDPOINT, **KEYS).create_table(
        TableName="chat",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": "room", "KeyType": "HASH"},
            {"AttributeName": "sent", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "room", "AttributeType": "S"},
            {"AttributeName": "sent", "AttributeType": "N"},
        ],
    )
    keys: dict[str, Any] = {"partition_key": "room", "sort_key": "sent", "time_of": times.millis}
    table = Table(chat, registry=TABLE, **keys)
    key = {"room": "lobby", "sent": 1_700_000_000_000}
    table.put_item(Item={**key, "text": "hey"})
    assert table.get_item(Key=key)["Item"]["text"] == "hey"
    table.close()


async def news() -> None:
    await append_and_count("memory://", news=REDIS)


async def queue() -> None:
    from heatsink.bulk import BulkSettings

    bulk = BulkSettings(durability="relaxed")
    async with heatsink.connect("memory://", queue=REDIS, bulk=bulk) as hs:
        assert (await hs.bulk.submit("say", [1, 2, 3])).items == 3


async def embedded() -> None:
    """The embedded queue, as a client of its server would find it."""
    async with heatsink.connect(f"sqlite:///{FOLDER}/log.db") as hs:
        assert (await hs.bulk.submit("say", [1, 2, 3])).items == 3


async def emulator() -> None:
    from heatsink.emulator.server import running_engine
    from heatsink.emulator.settings import EngineSettings
    from heatsink.primitives.clock import SystemClock

    async with running_engine(EngineSettings(port=0), SystemClock()) as endpoint:
        assert endpoint.startswith("http://")


async def redis_for_tests() -> None:
    from heatsink.testing.redis import RedisServer

    with RedisServer() as server:
        assert server.answers()


async def tracing() -> None:
    from heatsink.client.otel import Tracing

    await append_and_count("memory://", hooks=[Tracing()])


async def web() -> None:
    from heatsink.client.starlette import lifespan

    lifespan("memory://")


async def metrics() -> None:
    from heatsink.client.prometheus import Prometheus

    await append_and_count("memory://", hooks=[Prometheus()])


async def tracing_flag() -> None:
    from heatsink.server.tracing import tracing_hooks

    tracing_hooks(True)


def main() -> None:
    said = {}
    for name in NAMES:
        try:
            asyncio.run(globals()[name]())
            said[name] = "ok"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
