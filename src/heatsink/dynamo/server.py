"""HTTP/1.1 with keep-alive for the engine, as fast as one process allows.

Credentials and signatures are accepted unseen: the engine is for tests and laptops and listens on
127.0.0.1 only. A web page cannot reach it from a browser: X-Amz-Target needs a preflight request,
which is refused. A GET without it is for the page about partitions.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from email.utils import formatdate
from functools import lru_cache
from random import Random
from zlib import crc32

from heatsink.clock import Clock
from heatsink.errors import Misconfigured

from . import page
from .engine import Engine
from .settings import HOST, EngineSettings

try:
    import httptools
except ImportError as missing:
    raise Misconfigured(f"the engine needs {missing.name}: pip install 'heatsink[local]'") from None

logger = logging.getLogger("heatsink")
TEND_AGAIN_S = 1.0
LAST_TURNS = 5  # until connections that are just being accepted are there, and gone
BODY_BYTES_MAX = 16 * 1_024 * 1_024
REQUEST_ID_BITS = 128
TARGET = b"x-amz-target"
TARGET_LENGTH = len(TARGET)
NOT_THE_API = b'{"message":"this is a DynamoDB endpoint: requests name an X-Amz-Target"}'
REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 413: b"Content Too Large"}
_HEAD = (
    b"HTTP/1.1 %d %s\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n"
    b"x-amzn-RequestId: %032X\r\nx-amz-crc32: %d\r\nDate: %b\r\n\r\n"
)
_PAGE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-cache\r\n"
    b"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    b"Content-Security-Policy: default-src 'none'; script-src 'self'; connect-src 'self'; "
    b"img-src 'self'; style-src 'self'; frame-ancestors 'none'\r\n\r\n"
)


@lru_cache(maxsize=1)
def http_date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


class Connection(asyncio.Protocol):
    """One client. Requests are answered in the order they came."""

    def __init__(self, server: EngineServer) -> None:
        self._server = server
        self.parser = httptools.HttpRequestParser(IncomingRequest(self, server))
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.transports.add(transport)

    def connection_lost(self, _: Exception | None) -> None:
        if self._transport is not None:
            self._server.transports.discard(self._transport)
            self._transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.refuse(400, b"this is not HTTP/1.1")

    def pause_writing(self) -> None:
        """A client that does not read its answers may not ask for more."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def send(self, answer: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(answer)
        if not self.parser.should_keep_alive():
            self._transport.close()

    def refuse(self, status: int, why: bytes) -> None:
        """The last answer on this connection."""
        self.send(self._server.framed(status, b'{"message":"%s"}' % why))
        if self._transport is not None:
            self._transport.close()


class IncomingRequest:
    """Gathers what the HTTP parser finds until a request is complete."""

    def __init__(self, connection: Connection, server: EngineServer) -> None:
        self._connection = connection
        self._server = server
        self._target = ""
        self._url = b""
        self._body: list[bytes] = []
        self._size = 0

    def on_message_begin(self) -> None:
        self._target, self._url, self._body, self._size = "", b"", [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == TARGET_LENGTH and name.lower() == TARGET:
            self._target = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= BODY_BYTES_MAX:
            self._body.append(body)
        else:
            self._body.clear()
            self._connection.refuse(413, b"a request may have 16 MB")

    def on_message_complete(self) -> None:
        if self._target:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._server.handle(self._connection, self._target, body)
        else:
            method = self._connection.parser.get_method()
            self._connection.send(self._server.browse(method, self._url))


class EngineServer:
    """The engine behind a listening socket."""

    def __init__(self, settings: EngineSettings, clock: Clock, rng: Random) -> None:
        self._engine = Engine(settings, clock, rng)
        self._latency_s = settings.latency_s
        self._port = settings.port
        self._clock = clock
        self._rng = rng
        self._late: set[asyncio.Task[None]] = set()
        self._tending: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self.transports: set[asyncio.Transport] = set()

    def framed(self, status: int, body: bytes) -> bytes:
        request_id = self._rng.getrandbits(REQUEST_ID_BITS)
        date = http_date(int(self._clock.now_s()))
        return _HEAD % (status, REASONS[status], len(body), request_id, crc32(body), date) + body

    def browse(self, method: bytes, url: bytes) -> bytes:
        """The answer to a request that names no operation: a browser's, or a mistake."""
        path = url.partition(b"?")[0].decode("latin-1")
        found = page.answer(path, self._engine) if method == b"GET" else None
        if found is None:
            return self.framed(404, NOT_THE_API)
        kind, body = found
        return _PAGE_HEAD % (kind.encode(), len(body)) + body

    async def start(self) -> str:
        """Listen, and say at which URL."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: Connection(self), HOST, self._port)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise Misconfigured(
                f"port {self._port} cannot be listened on ({reason}): choose another"
            ) from None
        self._tending = loop.create_task(self._keep_tending())
        return f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def _keep_tending(self) -> None:
        """A mistake of ours is told with its place, at most once in a while; requests go on."""
        while True:
            try:
                await self._engine.keep_tending()
            except Exception:
                logger.exception("partitions could not be tended; trying again")
            await self._clock.sleep(TEND_AGAIN_S)

    async def stop(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
        if self._server is not None:
            await _stop_accepting(self._server)
            self._server.close()
        for task in self._late:
            task.cancel()
        for _ in range(LAST_TURNS):
            for transport in list(self.transports):
                transport.close()
            await _turn_of_the_loop()
        if self._server is not None:
            await self._server.wait_closed()

    def handle(self, connection: Connection, target: str, body: bytes) -> None:
        if not self._latency_s:
            connection.send(self.framed(*self._engine.answer(target, body)))
            return
        task = asyncio.get_running_loop().create_task(self._handle_late(connection, target, body))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _handle_late(self, connection: Connection, target: str, body: bytes) -> None:
        await self._clock.sleep(self._latency_s)
        connection.send(self.framed(*self._engine.answer(target, body)))


async def _stop_accepting(server: asyncio.Server) -> None:
    """What was just accepted is made first: once a server is closed, CPython 3.11 loses it open."""
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        with suppress(NotImplementedError):  # not every loop can
            loop.remove_reader(listener.fileno())
    await _turn_of_the_loop()


async def _turn_of_the_loop() -> None:
    """Whatever the time is: a clock that stands still would never let go."""
    loop = asyncio.get_running_loop()
    turned = loop.create_future()
    loop.call_soon(turned.set_result, None)
    await turned


@asynccontextmanager
async def running_engine(
    settings: EngineSettings, clock: Clock, rng: Random | None = None
) -> AsyncIterator[str]:
    """The engine inside this event loop, at the settings' port (0: any free). Yields its URL."""
    server = EngineServer(settings, clock, rng or Random(0))
    url = await server.start()
    try:
        yield url
    finally:
        await server.stop()


async def serve(
    settings: EngineSettings,
    clock: Clock,
    rng: Random,
    announce: Callable[[str], object] = lambda _: None,
) -> None:
    """Run until cancelled. `announce` is told the URL once requests are accepted."""
    async with running_engine(settings, clock, rng) as url:
        announce(url)
        await asyncio.get_running_loop().create_future()
