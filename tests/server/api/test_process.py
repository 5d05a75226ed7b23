"""A real server: signals, slow clients, crowds of connections."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest

from heatsink import connect
from heatsink.primitives.connections import within_files
from heatsink.server.api.requests import RequestLimits
from tests.processes import Served, serving
from tests.waiting import PATIENCE_S, until

LIMITS = (
    "header_bytes=4000",
    "header_s=1",
    "idle_s=2",
    "request_s=2",
    "connections=200",
    "body_bytes=100000",
    "grace_s=5",
)
FLAGS = [word for limit in LIMITS for word in ("--limit", limit)]
BRIEF = ("--limit", "grace_s=5")
MESSAGES = "/v1/conversations/conv/messages"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), "--store", "memory://", *FLAGS) as served:
        yield served


@pytest.mark.skipif(not Path("/proc").exists(), reason="only Linux lists the files of a process")
def test_the_server_uses_uvloop_if_it_is_installed(server: Served) -> None:
    assert "uvloop" in Path(f"/proc/{server.process.pid}/maps").read_text()


def connected(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 10)


def in_flight(server: Served) -> float:
    """Requests that the server is answering, with this one."""
    figures = httpx.get(server.url + "/metrics").text
    return float(re.findall(r"^heatsink_http_in_flight (.*)$", figures, re.MULTILINE)[0])


def everything(connection: socket.socket) -> bytes:
    """Until the other side closes."""
    data = b""
    while True:
        try:
            piece = connection.recv(65_536)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def until_refused(server: Served) -> None:
    with suppress(ConnectionRefusedError):
        while True:
            connected(server).close()
            sleep(0.02)


def is_well(server: Served) -> bool:
    started_s = monotonic()
    answer = httpx.post(server.url + MESSAGES, json={"body": "still here"}, timeout=10)
    return answer.status_code == 201 and monotonic() - started_s < 5


# -- stopping --------------------------------------------------------------------------------


def test_a_request_under_way_is_finished_before_the_end(tmp_path: Path) -> None:
    slow = tmp_path / "myapp.py"
    slow.write_text(
        "import asyncio\nfrom heatsink.bulk import Actions\nactions = Actions()\n"
        "@actions.action('nap')\nasync def nap(item, context):\n    await asyncio.sleep(60)\n"
    )
    with serving(tmp_path, "--data", "data", "--actions", "myapp:actions", *BRIEF) as served:
        made = httpx.post(served.url + "/v1/bulk/nap", json=[1, 2, 3], timeout=20)
        id = made.json()["id"]
        stream = httpx.stream("GET", served.url + "/v1/events", timeout=20)
        with stream as events, closing(connected(served)) as connection:
            lines = events.iter_lines()
            next(lines)
            body = json.dumps({"body": "the last one"})
            head = f"POST {MESSAGES} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}"
            connection.sendall(f"{head}\r\n\r\n{body[:5]}".encode())
            sleep(0.3)
            served.ask_to_stop()
            until_refused(served)
            connection.sendall(body[5:].encode())
            assert everything(connection).startswith(b"HTTP/1.1 201")
            list(lines)  # the stream of events ends by itself
        assert served.wait() == 0
        assert served.names == ["started", "audit", "stopping", "worker-stops", "stopped"]
    with closing(sqlite3.connect(tmp_path / "data" / "heatsink.db")) as database:
        (rows,) = database.execute("SELECT count(*) FROM rows").fetchone()
    assert rows == 1

    async def look_again() -> tuple[str, int, int]:
        queue = f"embedded:///{tmp_path}/data/queue"
        async with connect(f"sqlite:///{tmp_path}/data/heatsink.db", queue=queue) as hs:
            leader = (await hs.parts.stores.registry.meta()).meta.leader
            progress = await hs.bulk.status(id)
            return leader, progress.running, progress.waiting

    leader, running, waiting = asyncio.run(look_again())
    assert served.process.pid not in [int(p) for p in leader.split(":")[1:2]], "the lease is back"
    assert (running, waiting) == (0, 3), "what was claimed is given back"


def test_a_port_in_use_is_one_line(server: Served, tmp_path: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "heatsink", "serve", "--port", str(server.port)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("choose another with --port")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "heatsink-data").exists()


# -- abuse -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 10_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 2_000 + b"\r\n",
        b"GET /healthz?" + b"x" * 10_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nx: " + b"never ends" * 1_000,
    ],
)
def test_a_head_that_is_too_large(server: Served, head: bytes) -> None:
    with closing(connected(server)) as connection:
        connection.sendall(head)
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in answer
    assert is_well(server)


def test_what_is_no_http(server: Served) -> None:
    for nonsense in (b"\x16\x03\x01hello", b"GET\r\n\r\n", b"\x00" * 100, b"* * *\r\n\r\n"):
        with closing(connected(server)) as connection:
            connection.sendall(nonsense)
            answer = everything(connection)
        assert answer.startswith(b"HTTP/1.1 400 "), nonsense
        assert b"application/problem+json" in answer
    assert is_well(server)


def test_a_head_that_comes_too_slowly(server: Served) -> None:
    with closing(connected(server)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        with suppress(OSError):  # it hung up on us, as this machine stood still for a while
            for _ in range(4):
                sleep(0.2)
                connection.sendall(b"x: y\r\n")
        assert everything(connection).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_comes_too_slowly(server: Served) -> None:
    with closing(connected(server)) as connection:
        head = f"POST {MESSAGES} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"
        connection.sendall(head.encode() + b'{"body"')
        connection.settimeout(PATIENCE_S)
        assert connection.recv(1_000).startswith(b"HTTP/1.1 503 ")


@pytest.mark.sleeps("a client that reads nothing does not see that the server gives up on it")
def test_a_reader_that_takes_nothing(server: Served) -> None:
    """The answer is far larger than what fits between the two."""
    with httpx.Client(base_url=server.url) as client:
        for _ in range(100):
            client.post("/v1/conversations/big/messages", json={"body": "x" * 90_000})
    with closing(connected(server)) as connection:
        connection.sendall(
            b"GET /v1/conversations/big/messages?limit=1000 HTTP/1.1\r\nhost: localhost\r\n\r\n"
        )
        sleep(6)
        assert len(everything(connection)) < 100 * 90_000, "it was given up on"
    assert is_well(server)


def test_a_crowd_of_silent_connections_keeps_nobody_out(server: Served) -> None:
    with ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(closing(connected(server)))
        assert is_well(server)
        until(lambda: in_flight(server) == 1)
        assert is_well(server)


def test_of_too_many_connections_the_longest_idle_go(tmp_path: Path) -> None:
    def is_open(connection: socket.socket) -> bool:
        connection.settimeout(0)
        try:
            return connection.recv(1) != b""
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False

    flags = ("--store", "memory://", "--limit", "connections=50")
    with serving(tmp_path, *flags) as served, ExitStack() as stack:
        crowd = [stack.enter_context(closing(connected(served))) for _ in range(120)]
        assert is_well(served)
        assert [is_open(each) for each in crowd[:70]] == [False] * 70
        assert all(is_open(each) for each in crowd[-45:])


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "room"),
    [
        (1_024, 4_096, 1_200, 1_000),
        (1_024, 600, 600, 400),
        (5_000, 5_000, None, 1_000),
        (1_024, resource.RLIM_INFINITY, 1_200, 1_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 1_000),
    ],
)
def test_there_are_no_more_connections_than_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, asked: int | None, room: int
) -> None:
    set_to: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: set_to.append(pair[0]))
    assert within_files(RequestLimits(connections=1_000)).connections == room
    assert set_to == ([] if asked is None else [asked])


def test_a_body_without_an_end(server: Served) -> None:
    with closing(connected(server)) as connection:
        head = f"POST {MESSAGES} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        piece = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        try:
            for _ in range(200):
                connection.sendall(piece)
        except OSError:
            pass  # it hung up on us
        assert everything(connection)[:13] in (b"HTTP/1.1 413 ", b"")
    assert is_well(server)


def test_a_client_that_leaves_in_the_middle_of_a_batch(server: Served) -> None:
    head = (
        "POST /v1/bulk/tag HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
        "content-type: application/x-ndjson\r\nidempotency-key: left\r\n\r\n"
    )
    with closing(connected(server)) as connection:
        connection.sendall(head.encode() + b'7\r\n"item"\n\r\n')
        sleep(0.3)
    url = server.url + "/v1/bulk/left"
    until(lambda: httpx.get(url).json().get("state") == "aborted", "an aborted batch", look_s=0.1)


def test_a_flood_of_unique_keys_stays_small(server: Served) -> None:
    def rss_kb() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")

    def flood(worker: int, count: int) -> None:
        with httpx.Client(base_url=server.url) as client:
            for number in range(count):
                client.get(f"/v1/keys/{'k' * 300}{worker}-{number}")

    flood(0, 200)
    before = rss_kb()
    crowd = [threading.Thread(target=flood, args=(n, 150)) for n in range(1, 5)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert rss_kb() - before < 30_000
    text = httpx.get(server.url + "/metrics").text
    assert "kkkk" not in text, "no key is ever a label"
