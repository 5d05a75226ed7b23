"""Frozen and short-lived processes: their views renew on thaw, their heat is sent before return."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import heatsink
from heatsink.door.keys import TAG, subject_in
from heatsink.spread.policy import BucketRules
from heatsink.testing.redis import RedisServer
from tests.adoption import complete_adoption
from tests.servers import patient_url, real
from tests.waiting import until

from .conftest import Engine

HOT = "hot"
FEW, MANY = 8, 500
WRITES = 20
BODY = "x" * 20_000


class Function:
    """A process that stands still unless it is called."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def call(self, operation: str, **parameters: Any) -> Any:
        """Thaw, call, and freeze again."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps([operation, parameters]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        self.freeze()
        return answer


@contextmanager
def a_function(engine: Engine, table: str, news: str = "") -> Iterator[Function]:
    command = [sys.executable, "-m", "tests.boto.frozen", engine.endpoint, engine.registry, table]
    process = subprocess.Popen(
        [*command, news], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Function(process)
        process.send_signal(signal.SIGCONT)
        process.communicate()
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


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


@pytest.mark.parametrize(
    "processes",
    [FEW, pytest.param(MANY, marks=pytest.mark.full("500 processes, one after the other"))],
)
@pytest.mark.timeout(1_800)
def test_heat_of_short_processes_reaches_the_leader(engine: Engine, processes: int) -> None:
    """Each writes for less than a window, and ends. Together they make a key hot."""
    table = f"short{processes}"
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
                if processes == FEW and hs.explain(subject_in(table, HOT)).buckets > 1:
                    break
            until(lambda: hs.explain(subject_in(table, HOT)).layout.max_buckets > 1)
    assert TAG not in HOT
