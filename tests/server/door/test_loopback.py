"""The door on loopback: what passes, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

from heatsink.emulator.engine import Engine
from heatsink.emulator.settings import EngineSettings
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.connections import listen
from heatsink.server.door.gate import DoorLimits, Gate
from heatsink.server.door.upstream import Given
from heatsink.testing.dynamodb import LocalDynamoDB
from tests.processes import Served
from tests.server.door.conftest import a_door, client_of
from tests.waiting import until

JSON = "application/x-amz-json-1.0"
ITEM = {"room": {"S": "r"}, "at": {"S": "a"}, "n": {"N": "1"}}


def post(door: Served, operation: str, body: bytes, **headers: str) -> tuple[int, Any, Any]:
    connection = HTTPConnection("127.0.0.1", door.port)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    target = {"X-Amz-Target": f"DynamoDB_20120810.{operation}"} if operation else {}
    connection.request("POST", "/", body, {"Content-Type": JSON, **target, **named})
    answer = connection.getresponse()
    read = answer.read()
    connection.close()
    return answer.status, dict(answer.headers), read


def test_an_unchanged_client_uses_undeclared_tables(door: Served) -> None:
    client = client_of(door.url)
    client.put_item(TableName="plain", Item=ITEM)
    key = {name: ITEM[name] for name in ("room", "at")}
    assert client.get_item(TableName="plain", Key=key)["Item"] == ITEM
    assert client.describe_table(TableName="plain")["Table"]["TableName"] == "plain"
    with pytest.raises(client.exceptions.ConditionalCheckFailedException):
        client.put_item(
            TableName="plain", Item=ITEM, ConditionExpression="attribute_not_exists(room)"
        )
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.get_item(TableName="missing", Key=key)


def test_bytes_pass_untouched(door: Served, emulator: LocalDynamoDB) -> None:
    """Odd spellings of JSON, and JSON that is none, get the answers that they get upstream."""
    bodies = [
        b'{ "TableName" : "plain",\n"Key":{"room":{"S":"r\\u0061"},"at":{"S":"a"}}}',
        b'{"TableName":"plain","Key":{"room":{"S":"r"}}}',
        b"{",
        b"",
        b'{"TableName":7}',
    ]
    behind = Served(door.process, int(emulator.url.rpartition(":")[2]))
    for body in bodies:
        assert post(door, "GetItem", body)[::2] == post(behind, "GetItem", body)[::2]
    status, headers, body = post(door, "GetItem", bodies[0])
    assert status == 200
    assert headers["x-amz-crc32"] == str(crc32(body))
    assert headers["x-amzn-RequestId"].isalnum()


def test_a_web_page_cannot_call_it(door: Served) -> None:
    body = b'{"TableName":"plain"}'
    assert post(door, "Scan", body, Origin="http://evil.example")[0] == 403
    assert post(door, "Scan", body, Origin=door.url)[0] == 403
    assert post(door, "Scan", body, Host="evil.example")[0] == 421
    assert post(door, "", body)[0] == 404
    connection = HTTPConnection("127.0.0.1", door.port)
    connection.request("OPTIONS", "/", headers={"Origin": door.url})
    answer = connection.getresponse()
    assert answer.status == 403
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    connection.close()


def test_unknown_operations_are_refused_and_streams_pass(door: Served) -> None:
    for target in ("DynamoDB_20120810.../GetItem", "DynamoDBStreams_20120810.Other", "x"):
        connection = HTTPConnection("127.0.0.1", door.port)
        connection.request("POST", "/", b"{}", {"X-Amz-Target": target})
        answer = connection.getresponse()
        assert answer.status == 400
        assert b"UnknownOperationException" in answer.read()
        connection.close()
    assert client_of(door.url, "dynamodbstreams").list_streams()["Streams"] == []


def request(table: str, at: str = "a") -> bytes:
    """Return a GetItem as it is on the wire."""
    body = json.dumps({"TableName": table, "Key": {"room": {"S": "r"}, "at": {"S": at}}})
    head = "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: DynamoDB_20120810.GetItem\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def page(door: Served, path: str) -> bytes:
    connection = HTTPConnection("127.0.0.1", door.port)
    connection.request("GET", path)
    answer = connection.getresponse().read()
    connection.close()
    return answer


def answered(door: Served) -> int:
    """Return how many GetItems the door has answered."""
    lines = page(door, "/metrics").decode().splitlines()
    found = [line for line in lines if line.startswith("heatsink_door_requests_total{")]
    return sum(int(float(line.split()[-1])) for line in found if '"GetItem"' in line)


def asking_without_reading(door: Served, count: int) -> socket.socket:
    """Return a connection that has sent requests for large items and reads no answer."""
    at = "large"
    item = {"room": {"S": "r"}, "at": {"S": at}, "text": {"S": "x" * 300_000}}
    client_of(door.url).put_item(TableName="plain", Item=item)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connection.connect(("127.0.0.1", door.port))
    connection.sendall(request("plain", at) * count)
    return connection


def test_a_client_that_reads_no_answers_is_not_read_on(door: Served) -> None:
    count, before, seen = 100, answered(door), [-1]

    def is_steady() -> bool:
        for _ in range(20):  # in this time the door would answer as many of the others
            post(door, "ListTables", b"{}")
        seen.append(answered(door) - before)
        return seen[-1] == seen[-2] > 0

    with asking_without_reading(door, count) as connection:
        until(is_steady)
        assert seen[-1] < count / 2
        left, whole = b"", 0
        while whole < count:
            arrived = connection.recv(1_048_576)
            assert arrived, "the door closed the connection"
            left += arrived
            whole += left.count(b"HTTP/1.1 200 OK\r\n")
            left = left[-16:]
    assert answered(door) - before == count


def test_a_client_that_never_reads_is_cut_off(emulator: LocalDynamoDB, tmp_path: Path) -> None:
    with a_door(tmp_path, emulator.url, "--limit", "idle_s=1") as door:
        with asking_without_reading(door, 100) as connection:
            until(lambda: b"heatsink_door_connections 1.0" in page(door, "/metrics"))

            def is_cut_off() -> bool:
                try:
                    connection.send(b"x")
                except ConnectionError:
                    return True
                return False

            until(is_cut_off)
        assert post(door, "ListTables", b"{}")[0] == 200


def test_pipelined_requests_are_answered_in_their_order(door: Served) -> None:
    client_of(door.url).put_item(TableName="plain", Item=ITEM)
    wanted = [b'{"Item"', b"ResourceNotFound", b'{"Item"', b"ResourceNotFound"]
    with socket.create_connection(("127.0.0.1", door.port)) as connection:
        connection.sendall(b"".join(request(name) for name in ("plain", "missing") * 2))
        seen = b""
        while seen.count(b"HTTP/1.1 ") < 4 or not seen.endswith(b"}"):
            seen += connection.recv(65_536)
    answers = seen.split(b"HTTP/1.1 ")[1:]
    assert [part in answer for part, answer in zip(wanted, answers, strict=True)] == [True] * 4


def test_a_client_that_asks_for_the_endpoint_stays_at_the_door(door: Served) -> None:
    found = client_of(door.url).describe_endpoints()["Endpoints"]
    assert [one["Address"] for one in found] == [f"127.0.0.1:{door.port}"]


def test_a_client_may_hold_its_body_back_until_it_is_asked_for(door: Served) -> None:
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: DynamoDB_20120810.ListTables\r\n"
    head += b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection(("127.0.0.1", door.port), timeout=60) as connection:
        connection.sendall(head)
        assert connection.recv(1_000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        assert connection.recv(1_000).startswith(b"HTTP/1.1 200 OK")


def test_health_and_metrics(door: Served) -> None:
    def get(path: str) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", door.port)
        connection.request("GET", path)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    assert get("/healthz") == (200, b"ok\n")
    assert get("/readyz")[0] == 200
    client_of(door.url).list_tables()
    status, text = get("/metrics")
    assert status == 200
    assert b'heatsink_door_requests_total{operation="ListTables",status="200",way="passed"}' in text


def test_requests_above_the_limit_are_refused_and_the_rest_are_answered(tmp_path: Path) -> None:
    with ExitStack() as stack:
        slow = stack.enter_context(LocalDynamoDB(EngineSettings(port=0, latency_s=0.2)))
        door = stack.enter_context(a_door(tmp_path, slow.url, "--limit", "requests=2"))
        seen: list[int] = []
        threads = [
            threading.Thread(target=lambda: seen.append(post(door, "ListTables", b"{}")[0]))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(seen) == {200, 503}
        assert post(door, "ListTables", b"{}")[0] == 200


def test_large_bodies_above_the_limit_are_refused(emulator: LocalDynamoDB, tmp_path: Path) -> None:
    with a_door(tmp_path, emulator.url, "--limit", "held_bytes=100000") as door:
        assert post(door, "ListTables", b" " * 200_000)[0] == 503
        for _ in range(3):
            assert post(door, "ListTables", b"{}" + b" " * 60_000)[0] == 200


def test_requests_in_progress_finish_before_it_stops(tmp_path: Path) -> None:
    with ExitStack() as stack:
        slow = stack.enter_context(LocalDynamoDB(EngineSettings(port=0, latency_s=0.2)))
        door = stack.enter_context(a_door(tmp_path, slow.url))
        seen: list[int] = []
        asking = threading.Thread(target=lambda: seen.append(post(door, "ListTables", b"{}")[0]))
        asking.start()

        def is_asked() -> bool:
            connection = HTTPConnection("127.0.0.1", door.port)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read()
            connection.close()
            return b"heatsink_door_in_progress 1.0" in text

        until(is_asked)
        door.ask_to_stop()
        assert door.wait() == 0
        asking.join()
        assert seen == [200]


async def test_the_task_of_an_idle_connection_keeps_no_bodies() -> None:
    kept: list[bytes] = []

    class Echo:
        async def answer(self, _: str, body: bytes) -> Given:
            kept.extend((body, b"[%b]" % body))
            return Given(200, kept[-1], "passed", b"id")

    upstream: Any = Echo()
    gate = Gate(upstream, DoorLimits(), SystemClock(), Random(1))
    [listener] = listen("127.0.0.1", 0)
    await gate.start([listener])
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    for _ in range(2):
        writer.write(request("plain"))
        await reader.readuntil(b"]")
    expected = [sys.getrefcount(one) for one in [b"alone %d" % number for number in range(4)]]
    expected[2] += 1  # the parser keeps the body of the last request
    assert [sys.getrefcount(one) for one in kept] == expected
    writer.close()
    await gate.end()


def test_an_endpoint_without_transactions_is_named_at_start(
    emulator: LocalDynamoDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the words of ScyllaDB's Alternator for an operation that it does not have."""
    answer = Engine.answer

    def refuse(self: Engine, target: str, body: bytes) -> tuple[int, bytes]:
        operation = target.rpartition(".")[2]
        if not operation.startswith("Transact"):
            return answer(self, target, body)
        code = "com.amazonaws.dynamodb.v20120810#UnknownOperationException"
        message = f"Unsupported operation {operation}"
        return 400, json.dumps({"__type": code, "message": message}).encode()

    monkeypatch.setattr(Engine, "answer", refuse)
    with a_door(tmp_path, emulator.url) as door:
        client_of(door.url).list_tables()
    said = [event["message"] for event in door.events if event["level"] == "warning"]
    assert said
    assert "no TransactGetItems and no TransactWriteItems" in said[0]
