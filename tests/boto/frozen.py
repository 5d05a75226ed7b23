"""A process as Lambda runs it: it works when it is called, and stands still in between.

It receives calls over a connection, and sends an answer for each. `the_nursery` forks such
processes from one that has imported everything (`preloaded.py`): hundreds of them cost little.
"""

from __future__ import annotations

import multiprocessing
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

import boto3

from heatsink.boto import attach
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.times import millis_text

PRELOADED = "tests.boto.preloaded"


def a_client(endpoint: str) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106 (the emulator takes any)
    )


def declared(table: str) -> SpreadTable:
    rules = [by_time("", millis_text)]
    return SpreadTable(table, partition_key="conversation", sort_key="sent", rules=rules)


@cache
def the_nursery() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED, "heatsink.stores.dynamodb"])
    return context


def serve(calls: Connection, endpoint: str, registry: str, table: str, news: str) -> None:
    client = a_client(endpoint)
    with attach(
        client,
        tables=[declared(table)],
        registry=registry,
        coordinate=False,
        news=news or None,
    ) as attachment:
        calls.send("ready")
        while asked := calls.recv():
            operation, parameters = asked
            answer = getattr(client, operation)(TableName=table, **parameters)
            attachment.flush()
            answer.pop("ResponseMetadata")
            calls.send(answer)
