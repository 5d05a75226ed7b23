"""Every HTTP server that we start: nobody can use it up before a request is complete."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from heatsink.stores.embedded import free_port
from heatsink.testing.redis import RedisServer
from tests.processes import Served, serving
from tests.servers import real

FILES = 400  # of which a server keeps half for connections
CROWD = 600
PATHS = {"serve": "/healthz", "coordinator": "/healthz", "worker": "/metrics", "dynamo": "/"}
ALIKE = ("coordinator", "worker")
SAME = pytest.mark.full("it listens as `serve` does")
HALF = b"GET %s HTTP/1.1\r\nhost: localhost\r\nx: "
MYAPP = "from heatsink.bulk import Actions\nactions = Actions()\nactions.action('nap')(print)\n"


@contextmanager
def started(command: str, folder: Path, files: int | None = None) -> Iterator[Served]:
    with ExitStack() as stack:
        if command == "worker":
            (folder / "myapp.py").write_text(MYAPP)
            redis = stack.enter_context(real(RedisServer))
            flags = ["myapp:actions", "--queue", redis.url, "--partitions", "2", "--relaxed"]
        elif command == "dynamo":
            flags = []
        else:
            flags = ["--store", f"sqlite:///{folder}/x.db"]
            flags += ["--no-worker"] if command == "serve" else []
        yield stack.enter_context(serving(folder, *flags, command=command, files=files))


@pytest.fixture(scope="module", params=list(PATHS))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, bytes]]:
    with started(request.param, tmp_path_factory.mktemp(request.param)) as served:
        yield served, PATHS[request.param].encode()


def connected(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), 20)


def answer(served: Served, sent: bytes) -> bytes:
    """What comes back until enough of it is there or the server hangs up."""
    with closing(connected(served)) as connection:
        received = b""
        try:
            connection.sendall(sent)
            while b"\r\n\r\n" not in received and (piece := connection.recv(65_536)):
                received += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
        return received


def head(path: bytes, *fields: bytes, host: bytes = b"localhost") -> bytes:
    lines = (b"GET %s HTTP/1.1" % path, b"host: %s" % host, *fields)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def is_well(served: Served, path: bytes) -> bool:
    return answer(served, head(path)).startswith(b"HTTP/1.1 200 ")


def test_a_request_has_a_bounded_number_of_headers(server: tuple[Served, bytes]) -> None:
    served, path = server
    some = [b"x-%d: y" % number for number in range(90)]
    assert answer(served, head(path, *some)).startswith(b"HTTP/1.1 200 ")
    assert answer(served, head(path, *some, *some)).startswith(b"HTTP/1.1 431 ")


def test_a_head_has_a_bounded_size(server: tuple[Served, bytes]) -> None:
    served, path = server
    for large in (head(path, b"x: " + b"y" * 20_000), head(path + b"?" + b"x" * 20_000)):
        assert answer(served, large).startswith(b"HTTP/1.1 431 ")
    assert is_well(served, path)


def test_a_head_without_an_end_is_cut_off(server: tuple[Served, bytes]) -> None:
    served, path = server
    for piece in (b"x" * 65_536, b"x: y\r\n" * 10_000, b"\r\nx: y" * 10_000):
        with closing(connected(served)) as connection:
            connection.sendall(HALF % path)
            with pytest.raises(OSError, match=r"reset|Broken"):
                connection.sendall(piece * 1_000)  # some 65 MB, which no server takes in
    assert is_well(served, path)


def test_another_host_is_refused(server: tuple[Served, bytes]) -> None:
    """A page that rebinds its own name to this machine sends that name."""
    served, path = server
    for host in (b"evil.example", b"evil.example:%d" % served.port, b"127.0.0.1.evil.example"):
        refused = answer(served, head(path, host=host))
        assert refused.startswith(b"HTTP/1.1 421 "), host
    for host in (b"localhost", b"127.0.0.1:%d" % served.port, b"[::1]", b"LOCALHOST:1"):
        assert answer(served, head(path, host=host)).startswith(b"HTTP/1.1 200 "), host


def test_a_page_of_another_origin_is_refused(server: tuple[Served, bytes]) -> None:
    served, path = server
    foreign = head(path, b"origin: http://evil.example")
    assert answer(served, foreign).startswith(b"HTTP/1.1 403 ")
    assert answer(served, head(path, b"origin: http://localhost")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "command", [*(pytest.param(each, marks=SAME) for each in (*ALIKE, "dynamo")), "serve"]
)
def test_half_sent_requests_keep_nobody_out(command: str, tmp_path: Path) -> None:
    path = PATHS[command].encode()
    with started(command, tmp_path, files=FILES) as served, ExitStack() as stack:
        for _ in range(CROWD):
            connection = stack.enter_context(closing(connected(served)))
            connection.sendall(HALF % path)
            assert served.process.poll() is None
        for _ in range(3):
            assert is_well(served, path)


def test_other_names_are_allowed_by_flag(tmp_path: Path) -> None:
    with serving(tmp_path, "--allow-host", "Engine.test", command="dynamo") as served:
        asked = head(b"/", host=b"engine.test:8322")
        assert answer(served, asked).startswith(b"HTTP/1.1 200 ")


def test_a_taken_metrics_port_is_one_line(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "myapp.py").write_text(MYAPP)
    port = free_port()
    with real(RedisServer) as redis, socket.create_server(("127.0.0.1", port)):
        command = [sys.executable, "-m", "heatsink", "worker", "myapp:actions"]
        command += ["--queue", redis.url, "--relaxed", "--metrics-port", str(port)]
        command += ["--metrics-host", "127.0.0.1"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"heatsink: port {port} is in use: choose another with --port\n"
