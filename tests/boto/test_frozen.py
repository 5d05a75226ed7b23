"""Frozen and short-lived processes: their views renew on thaw, their heat is sent before return."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

import heatsink
from heatsink.boto import attach
from heatsink.door.keys import TAG, subject_in
from heatsink.spread.policy import BucketRules
from heatsink.testing.redis import RedisServer
from tests.adoption import complete_adoption
from tests.servers import patient_url, real
from tests.waiting import until

from .conftest import Engine
from .frozen import declared, serve, the_nursery

HOT = "hot"
FEW, MANY = 8, 500
WRITES = 20
DISCARD_EACH = 5
BODY = "x" * 20_000
ANSWER_S = 60


class Function:
    """A process that stands still unless it is called."""

    def __init__(self, process: BaseProcess, calls: Connection) -> None:
        self._process = process
        self._calls = calls

    def call(self, operation: str, **parameters: Any) -> Any:
        """Thaw, call, and freeze again."""
        self._signal(signal.SIGCONT)
        self._calls.send((operation, parameters))
        answer = self.answer()
        self._signal(signal.SIGSTOP)
        return answer

    def answer(self) -> Any:
        assert self._calls.poll(ANSWER_S)
        return self._calls.recv()

    def end(self) -> None:
        """Thaw the process, and let it close its client."""
        self._signal(signal.SIGCONT)
        self._calls.send(None)
        self._process.join(ANSWER_S)
        assert self._process.exitcode == 0

    def discard(self) -> None:
        """Kill the frozen process: it never runs again."""
        self._process.kill()
        self._process.join()

    def _signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


@contextmanager
def a_function(engine: Engine, table: str, news: str = "") -> Iterator[Function]:
    nursery = the_nursery()
    ours, theirs = nursery.Pipe()
    given = (theirs, engine.endpoint, engine.registry, table, news)
    process = nursery.Process(target=serve, args=given)
    process.start()
    theirs.close()
    function = Function(process, ours)
    try:
        assert function.answer() == "ready"
        yield function
        if process.is_alive():
            function.end()
    finally:
        function.discard()
        ours.close()


def now(number: int) -> str:
    return f"{int(time.time() * 1000)}#{number:04}"


def ready(engine: Engine, table: str) -> None:
    engine.make_table(table)
    with heatsink.connect_sync(engine.registry):  # founds the registry
        complete_adoption(engine.registry, table)


def test_a_thawed_process_sees_what_happened_while_it_was_frozen(engine: Engine) -> None:
    """An eventually consistent read plans from the view alone: an old view would miss rows."""
    ready(engine, "thawed")
    subject = subject_in("thawed", HOT)
    query = {
        "KeyConditionExpression": "conversation = :c",
        "ExpressionAttributeValues": {":c": {"S": HOT}},
    }
    with a_function(engine, "thawed") as old, a_function(engine, "thawed") as young:
        for number in range(3):
            item = {"conversation": {"S": HOT}, "sent": {"S": now(number)}}
            old.call("put_item", Item=item)
        with heatsink.connect_sync(engine.registry) as hs:
            hs.pin(subject, buckets=4, reason="a test")
            until(lambda: hs.explain(subject).buckets == 4)
        written = 3
        while len(stored(engine, "thawed")) < 3:
            item = {"conversation": {"S": HOT}, "sent": {"S": now(written)}}
            young.call("put_item", Item=item)
            written += 1
        assert old.call("query", **query)["Count"] == written


def stored(engine: Engine, table: str) -> set[str]:
    rows = engine.client().scan(TableName=table)["Items"]
    return {row["conversation"]["S"] for row in rows}


def rows_of(engine: Engine, table: str, news: str) -> list[str]:
    """Return the sort keys that an attached client reads, page by page."""
    client = engine.client()
    found: list[str] = []
    asked: dict[str, Any] = {
        "TableName": table,
        "KeyConditionExpression": "conversation = :c",
        "ExpressionAttributeValues": {":c": {"S": HOT}},
        "ProjectionExpression": "sent",
        "ConsistentRead": True,
    }
    tables = [declared(table)]
    with attach(client, tables=tables, registry=engine.registry, coordinate=False, news=news):
        for page in client.get_paginator("query").paginate(**asked):
            found += [row["sent"]["S"] for row in page["Items"]]
    return found


@pytest.mark.parametrize(
    "processes",
    [FEW, pytest.param(MANY, marks=pytest.mark.full("500 processes, one after the other"))],
)
@pytest.mark.timeout(900)
def test_rows_and_heat_of_short_processes_reach_readers_and_leader(
    engine: Engine, processes: int
) -> None:
    """Each writes for less than a window. Together they make a key hot, and no row is lost.

    Between two calls each stands still. Some are killed then, as Lambda discards them.
    """
    table, written = f"short{processes}", list[str]()
    ready(engine, table)
    with real(RedisServer) as redis:
        news = patient_url(redis.url)
        rules = BucketRules(bucket_units_s=10)
        with heatsink.connect_sync(engine.registry, news=news, rules=rules) as hs:
            for number in range(processes):
                with a_function(engine, table, news) as function:
                    for write in range(WRITES if processes == FEW else 2):
                        sent = now(number * WRITES + write)
                        key = {"conversation": {"S": HOT}, "sent": {"S": sent}}
                        function.call("put_item", Item={**key, "body": {"S": BODY}})
                        written.append(sent)
                    if number % DISCARD_EACH == DISCARD_EACH - 1:
                        function.discard()
            until(lambda: hs.explain(subject_in(table, HOT)).layout.max_buckets > 1)
            last = now(processes * WRITES)
            with a_function(engine, table, news) as function:
                function.call("put_item", Item={"conversation": {"S": HOT}, "sent": {"S": last}})
        assert rows_of(engine, table, news) == sorted([*written, last])
    if processes == MANY:
        assert any(TAG in name for name in stored(engine, table))
