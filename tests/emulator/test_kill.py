"""`--data` under kill -9: every write that a client saw acknowledged is there after a restart."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from heatsink.stores.embedded import free_port
from tests.waiting import until

KILLS = 3
WRITERS = 3
WRITES_MIN = 40
TABLE = "orders"


def sent(port: int, operation: str, **request: Any) -> Any:
    """Send one request on a connection of its own. Raises OSError if the server is gone."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        target = {"X-Amz-Target": f"DynamoDB_20120810.{operation}"}
        connection.request("POST", "/", msgspec.json.encode(request), target)
        response = connection.getresponse()
        body = msgspec.json.decode(response.read())
        assert response.status == 200, body
        return body
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from None
    finally:
        connection.close()


def answers(port: int) -> bool:
    try:
        return bool(sent(port, "ListTables"))
    except OSError:
        return False


@contextmanager
def emulator(data: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "heatsink", "dynamo", "--port", str(port), "--data", str(data)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(lambda: answers(port), "the emulator answers")
        yield process
    finally:
        process.kill()
        process.wait()


class Writer(threading.Thread):
    """Puts pairs of items in one transaction and counts in another item, until the server dies."""

    def __init__(self, port: int, name: str, first: int, counted: int) -> None:
        super().__init__()
        self._port, self._of, self._number = port, name, first
        self.pairs: list[int] = []
        self.counted = counted

    def run(self) -> None:
        try:
            while True:
                self._write()
        except OSError:
            return

    def _write(self) -> None:
        pair = [{"pk": {"S": f"{self._of}-{self._number}-{side}"}} for side in "ab"]
        puts = [{"Put": {"TableName": TABLE, "Item": item}} for item in pair]
        sent(self._port, "TransactWriteItems", TransactItems=puts)
        self.pairs.append(self._number)
        self._number += 1
        sent(
            self._port,
            "UpdateItem",
            TableName=TABLE,
            Key={"pk": {"S": self._of}},
            UpdateExpression="ADD n :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
        )
        self.counted += 1


def has_written(writers: list[Writer]) -> bool:
    return sum(len(one.pairs) for one in writers) >= WRITES_MIN


def stored(port: int) -> dict[str, Any]:
    found = sent(port, "Scan", TableName=TABLE, ConsistentRead=True)
    assert "LastEvaluatedKey" not in found
    return {item["pk"]["S"]: item for item in found["Items"]}


def check(items: dict[str, Any], writer: str, acknowledged: set[int], counted: int) -> int:
    """Check one writer's items. Returns its count, which may have one more than acknowledged."""
    pairs = {name.rpartition("-") for name in items if name.startswith(f"{writer}-")}
    halves = [{name for name, _, side in pairs if side == one} for one in "ab"]
    assert halves[0] == halves[1], "a transaction is there by half"
    assert {f"{writer}-{number}" for number in acknowledged} <= halves[0]
    count = int(items[writer]["n"]["N"])
    assert counted <= count <= counted + 1
    return count


def test_every_acknowledged_write_survives_kills(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "tables.data"
    names = [f"w{number}" for number in range(WRITERS)]
    acknowledged: dict[str, set[int]] = {name: set() for name in names}
    counts = dict.fromkeys(names, 0)
    for kill in range(KILLS):
        with emulator(data, port) as process:
            if kill == 0:
                sent(
                    port,
                    "CreateTable",
                    TableName=TABLE,
                    AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
                    KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
                    BillingMode="PAY_PER_REQUEST",
                )
            writers = [Writer(port, name, kill * 100_000, counts[name]) for name in names]
            for writer in writers:
                writer.start()
            until(
                partial(has_written, writers),
                "the writers have written",
            )
            os.kill(process.pid, signal.SIGKILL)
            for writer in writers:
                writer.join()
        for name, writer in zip(names, writers, strict=True):
            acknowledged[name].update(writer.pairs)
        with emulator(data, port):
            items = stored(port)
        for name, writer in zip(names, writers, strict=True):
            counts[name] = check(items, name, acknowledged[name], writer.counted)
