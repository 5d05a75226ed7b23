"""The same table twice, in two emulators: one is used directly, one through a running Heatsink.

Heatsink is an attached client of boto3 or a `heatsink door` process, on the real clock. Requests
are sent in wire form, also such as no SDK would send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from time import time
from typing import Any, NamedTuple

import msgspec
from botocore.config import Config
from click.testing import CliRunner

import heatsink
from heatsink.boto import attach
from heatsink.cli import main
from heatsink.client.blocking import BlockingHeatsink
from heatsink.door.keys import TAG, subject_in
from heatsink.door.protocol import Body, WireError
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.layouts import Layout
from heatsink.testing.clocks import ManualClock
from heatsink.testing.dynamodb import LocalDynamoDB
from tests.adoption import complete_adoption
from tests.processes import serving
from tests.waiting import until

from .grammar import HOT
from .world import DEFINITION, INDEX, TABLE, Upstream, declared

API = "DynamoDB_20120810."
BUCKETS = (1, 2, 3, 4, 8)
VALUES = "uvw"
NO_RETRIES = Config(retries={"total_max_attempts": 1})
TABLES = f"""
[[table]]
name = "{TABLE}"
partition_key = "pk"
sort_key = "sk"
rule = [
    {{prefix = "MSG#", time = "iso_text"}},
    {{prefix = "LOG#", time = "iso_text"}},
    {{prefix = "MSG#D"}},
    {{prefix = "T#", buckets = 3}},
]
"""
Send = Callable[[str, Body], Body]


class Way(NamedTuple):
    """How requests reach the spread table."""

    send: Send


class LiveWorld:
    """A plain table, and one that is spread. Its keys get other numbers of buckets by pins."""

    past_ms = 2_000

    def __init__(self, send: Send, hs: BlockingHeatsink, stored: LocalDynamoDB) -> None:
        self.plain = Upstream(ManualClock(time()))
        self.plain.send("CreateTable", DEFINITION)
        self.processes: Sequence[Way] = [Way(send)]
        self._hs = hs
        self._stored: Any = stored.client()
        self.stored_url = stored.url
        self._spread: set[str] = set()

    def now_ms(self) -> int:
        return int(time() * 1000)

    def is_spread(self, key: str) -> bool:
        return key in self._spread

    def change(self, rng: Random, key: str) -> None:
        self._pin(key, rng.choice(BUCKETS))
        self._pin_value(rng.choice(VALUES), rng.choice(BUCKETS))

    def _pin_value(self, value: str, buckets: int) -> None:
        subject = Subject(Kind.INDEX, f"{TABLE}/{INDEX}/{value}")
        if not self._hs.explain(subject).layout.full:
            self._hs.pin(subject, buckets=buckets, reason="a test")

    def spread_all(self) -> None:
        """Give each hot key several buckets, and wait until new items go there."""
        for key in HOT:
            self._pin(key, 4)
        for value in VALUES:
            self._pin_value(value, 3)
        until(lambda: all(self._layout(key).max_buckets > 1 for key in HOT))
        newest = max(self._layout(key).epochs[-1].start_ms for key in HOT)
        until(lambda: self.now_ms() > newest)

    def _pin(self, key: str, buckets: int) -> None:
        if not self._layout(key).full:
            self._hs.pin(subject_in(TABLE, key), buckets=buckets, reason="a test")

    def _layout(self, key: str) -> Layout:
        layout = self._hs.explain(subject_in(TABLE, key)).layout
        if layout.max_buckets > 1:
            self._spread.add(key)
        return layout

    def renew(self, process: Way) -> None:
        """The only process that writes always has a view of its own writes."""

    def buckets_used(self) -> int:
        """Return how many buckets of hot keys hold rows."""
        rows: list[Body] = []
        for page in self._stored.get_paginator("scan").paginate(
            TableName=TABLE, ProjectionExpression="pk", ConsistentRead=True
        ):
            rows += page["Items"]
        return len({row["pk"]["S"] for row in rows if TAG in row["pk"]["S"]})


@contextmanager
def attached(folder: Path) -> Iterator[LiveWorld]:
    """Requests go through a client of boto3 that `attach` has changed."""
    with LocalDynamoDB() as stored:
        registry = prepared(folder, stored)
        client = stored.client(config=NO_RETRIES)
        with (
            attach(client, tables=[declared()], registry=registry),
            heatsink.connect_sync(registry, coordinate=False) as hs,
        ):
            yield ready(LiveWorld(_by_botocore(client), hs, stored), registry)


@contextmanager
def behind_a_door(folder: Path) -> Iterator[LiveWorld]:
    """Requests go through a `heatsink door` in a process of its own."""
    with LocalDynamoDB() as stored:
        registry = prepared(folder, stored)
        (folder / "tables.toml").write_text(TABLES)
        flags = ("--endpoint", stored.url, "--tables", "tables.toml", "--store", registry)
        with (
            serving(folder, *flags, command="door") as door,
            heatsink.connect_sync(registry, coordinate=False) as hs,
            closing(HTTPConnection("127.0.0.1", door.port)) as connection,
        ):
            yield ready(LiveWorld(_by_http(connection), hs, stored), registry)


def prepared(folder: Path, stored: LocalDynamoDB) -> str:
    """Make the table, and a registry in which its adoption is complete. Returns the URL."""
    stored.client().create_table(**DEFINITION)
    registry = f"sqlite:///{folder}/registry.db"
    with heatsink.connect_sync(registry):  # founds the registry
        pass
    complete_adoption(registry, TABLE)
    return registry


def ready(world: LiveWorld, registry: str) -> LiveWorld:
    """Spread the index and the hot keys."""
    address = f"dynamodb://{TABLE}?endpoint={world.stored_url}"
    flags = ["--index", INDEX, "--spread", "--in-flight", "0"]
    ran = CliRunner().invoke(main, ["adopt", registry, address, *flags])
    assert ran.exit_code == 0, ran.output
    world.spread_all()
    return world


def _by_botocore(client: Any) -> Send:
    """Send requests through a client's hooks, without its checks of parameters."""
    meta = client.meta

    def send(operation: str, parameters: Body) -> Body:
        model = meta.service_model.operation_model(operation)
        context = {
            "client_region": meta.region_name,
            "client_config": meta.config,
            "has_streaming_input": False,
            "auth_type": None,
        }
        request = {
            "method": "POST",
            "url": f"{meta.endpoint_url}/",
            "headers": {
                "X-Amz-Target": f"{API}{operation}",
                "Content-Type": "application/x-amz-json-1.0",
            },
            "body": msgspec.json.encode(parameters),
            "context": context,
        }
        answer, _ = client._endpoint.make_request(model, request)
        return _body(answer.status_code, answer.content)

    return send


def _by_http(connection: HTTPConnection) -> Send:
    def send(operation: str, parameters: Body) -> Body:
        headers = {"X-Amz-Target": f"{API}{operation}"}
        connection.request("POST", "/", msgspec.json.encode(parameters), headers)
        answer = connection.getresponse()
        return _body(answer.status, answer.read())

    return send


def _body(status: int, content: bytes) -> Body:
    body: Body = msgspec.json.decode(content)
    if status != 200:
        raise WireError(status, body)
    return body
