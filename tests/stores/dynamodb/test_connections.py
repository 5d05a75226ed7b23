"""Connections on real sockets: kept, repeated, limited in age, over TLS and through a proxy."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from heatsink.errors import HeatsinkError, InvalidSetting, NoAccess, Unavailable
from heatsink.primitives.clock import SystemClock
from heatsink.stores.dynamodb import connections
from heatsink.stores.dynamodb.client import DynamoClient, FixedCredentials, Result
from heatsink.stores.embedded import free_port
from tests.http_server import Reply, accepting, framed, read_request, serving
from tests.tls import HOST, certificate_file, tls_before
from tests.waiting import soon

OK = framed(Reply(200, b"{}"))


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    made = trustme.CA()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate_file(made, tmp_path)))
    return made


@asynccontextmanager
async def client_of(endpoint: str, timeout_s: float = 5.0) -> AsyncIterator[DynamoClient]:
    client = DynamoClient(endpoint, "eu-west-1", FixedCredentials(), SystemClock(), timeout_s)
    try:
        yield client
    finally:
        await client.close()
        assert client._pool.connections == 0


async def get(client: DynamoClient) -> Result:
    return await client.call("GetItem", {})


async def said_by(endpoint: str, kind: type[HeatsinkError] = Unavailable) -> str:
    async with client_of(endpoint) as client:
        with pytest.raises(kind) as caught:
            await get(client)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Scripted:
    """Answers each request of a connection as its script says; then closes the connection."""

    def __init__(self, *scripts: list[bytes]) -> None:
        self._scripts = iter(scripts)
        self.connections = 0
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for answer in next(self._scripts):
            await read_request(reader)
            self.requests += 1
            writer.write(answer)
            await writer.drain()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        async with accepting(self.serve) as port:
            yield f"http://{HOST}:{port}"


async def test_one_connection_serves_calls_one_after_the_other() -> None:
    server = Scripted([OK] * 5)
    async with server.listening() as url, client_of(url) as client:
        for _ in range(5):
            await get(client)
    assert (server.connections, server.requests) == (1, 5)


async def test_a_read_on_a_connection_that_was_just_closed_is_sent_again() -> None:
    server = Scripted([OK, b""], [OK])
    async with server.listening() as url, client_of(url) as client:
        await get(client)
        await get(client)
    assert (server.connections, server.requests) == (2, 3)


async def test_a_write_on_a_connection_that_was_just_closed_is_left_to_the_caller() -> None:
    server = Scripted([OK, b""], [OK])
    async with server.listening() as url, client_of(url) as client:
        await get(client)
        with pytest.raises(Unavailable, match=r"broke .*: retry"):
            await client.call("PutItem", {})
    assert server.requests == 2


async def test_a_read_is_not_sent_a_third_time() -> None:
    server = Scripted([OK, b""], [b""], [OK])
    async with server.listening() as url, client_of(url) as client:
        await get(client)
        with pytest.raises(Unavailable, match=r"broke .*: retry"):
            await get(client)
    assert server.requests == 3


async def test_a_connection_is_not_kept_after_connection_close() -> None:
    last = framed(Reply(200, b"{}", {"Connection": "close"}))
    server = Scripted([last], [OK])
    async with server.listening() as url, client_of(url) as client:
        await get(client)
        await get(client)
    assert (server.connections, server.requests) == (2, 2)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_answers_in_other_frames_are_read(answer: bytes) -> None:
    async with Scripted([answer]).listening() as url, client_of(url) as client:
        assert (await get(client)).body == {}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "broke"),  # its end is the end of the connection
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "broke"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{}", "is not DynamoDB"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}", "is not DynamoDB"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "is not DynamoDB"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "is not DynamoDB"),
        (OK + OK, "is not DynamoDB"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "is not DynamoDB"),
        (framed(Reply(200, b'{"a":' * 100_000)), "is not DynamoDB"),
        (framed(Reply(500, b'{"a":' * 100_000)), "is not DynamoDB"),
        (framed(Reply(400, b'{"__type": "a\\nb"}')), "is not DynamoDB"),
    ],
)
async def test_an_answer_of_wrong_length_or_form_is_refused(answer: bytes, said: str) -> None:
    async with Scripted([answer]).listening() as url:
        assert said in await said_by(url)


async def test_an_error_of_many_lines_is_told_in_one_short_line() -> None:
    said = b'{"__type": "x#ValidationException", "message": "a\\nb%b"}' % (b"\\u001b" * 100_000)
    async with Scripted([framed(Reply(400, said))]).listening() as url:
        told = await said_by(url, HeatsinkError)
    assert "a b" in told
    assert told.isprintable()
    assert len(told) < 2_000


async def test_slow_bytes_end_at_the_deadline() -> None:
    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for place in range(1_000):
            writer.write(OK[place % len(OK) : place % len(OK) + 1])
            await writer.drain()
            await asyncio.sleep(0.02)

    async with accepting(trickle) as port, client_of(f"http://{HOST}:{port}", 0.2) as client:
        with pytest.raises(Unavailable, match="did not answer within"):
            await get(client)


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.05)
    async with Scripted([OK] * 2).listening() as url, client_of(url) as client:
        await get(client)
        await soon(lambda: not client._pool.connections)


async def test_old_connections_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "AGE_S", 0.0)
    server = Scripted([OK], [OK])
    async with server.listening() as url, client_of(url) as client:
        await get(client)
        await get(client)
    assert server.connections == 2


async def test_a_connection_that_is_not_accepted_ends_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TLS with a server that accepts and stays silent."""
    monkeypatch.setattr(connections, "CONNECT_S", 0.1)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with accepting(silent) as port:
        assert "cannot connect" in await said_by(f"https://{HOST}:{port}")


async def answer_ok(_: Mapping[str, str], __: bytes) -> Reply:
    return Reply(200, b"{}")


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_a_certificate_of_another_host_is_refused(authority: trustme.CA) -> None:
    async with serving(answer_ok) as url, tls_before(port_of(url), authority, "other.test") as port:
        said = await said_by(f"https://{HOST}:{port}", NoAccess)
    assert "shows a certificate that is not trusted" in said


async def test_tls_with_a_server_without_tls_is_a_failed_connection() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)

    async with accepting(greet) as port:
        said = await said_by(f"https://{HOST}:{port}")
    assert "cannot connect to DynamoDB" in said


class Proxy:
    """Connects to a port of this machine, whatever host it is asked for."""

    def __init__(self, port: int, refusal: bytes = b"") -> None:
        self._port = port
        self._refusal = refusal
        self.heads: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        if self._refusal:
            writer.write(self._refusal)
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        behind, onward = await asyncio.open_connection(HOST, self._port)
        await asyncio.gather(copy(reader, onward), copy(behind, writer))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        async with accepting(self.serve) as port:
            yield f"{HOST}:{port}"


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.transport.abort()


async def test_https_goes_through_the_proxy_of_the_environment(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(answer_ok) as url, tls_before(port_of(url), authority, "db.test") as port:
        proxy = Proxy(port)
        async with proxy.listening() as address:
            monkeypatch.setenv("HTTPS_PROXY", f"http://ann:p%40ss@{address}")
            async with client_of("https://db.test") as client:
                for _ in range(3):
                    assert (await get(client)).body == {}
    password = b64encode(b"ann:p@ss").decode()
    [head] = proxy.heads
    assert head.startswith("CONNECT db.test:443 HTTP/1.1\r\nHost: db.test:443\r\n")
    assert f"Proxy-Authorization: Basic {password}\r\n" in head


async def test_no_proxy_is_heeded(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{HOST}:{free_port()}")
    monkeypatch.setenv("NO_PROXY", f"other.test,{HOST}")
    async with (
        serving(answer_ok) as url,
        tls_before(port_of(url), authority) as port,
        client_of(f"https://{HOST}:{port}") as client,
    ):
        await get(client)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 407 No\r\n\r\n", "status 407: check user and password in HTTPS_PROXY"),
        (b"HTTP/1.1 503 No\r\n\r\n", "status 503: check HTTPS_PROXY and NO_PROXY"),
        (b"HTTP/1.1 200 Yes\r\n\r\nand more", "the proxy does not speak HTTP"),
        (b"220 smtp ready\r\n\r\n", "the proxy does not speak HTTP"),
        (b"HTTP/1.1 200 Yes\r\n", "the proxy closed the connection"),
        (b"x" * 100_000, "the proxy's answer is too large"),
    ],
)
async def test_a_proxy_that_refuses_is_named(
    answer: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Proxy(0, answer).listening() as address:
        monkeypatch.setenv("HTTPS_PROXY", address)
        assert said in await said_by("https://db.test")


async def test_a_silent_proxy_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECT_S", 0.1)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with accepting(silent) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{HOST}:{port}")
        assert "cannot connect" in await said_by("https://db.test")


async def test_half_an_answer_over_tls_is_no_answer(authority: trustme.CA) -> None:
    """The server cuts the connection without ending TLS, where a body without length would end."""
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"
    server = Scripted([half], [half])
    async with server.listening() as url, tls_before(port_of(url), authority) as port:
        assert "broke" in await said_by(f"https://{HOST}:{port}")


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "https://proxy.test", "http://:1"])
async def test_a_proxy_of_another_kind_is_refused(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    assert "HTTPS_PROXY must be http://" in await said_by("https://db.test", InvalidSetting)
