"""The HTTP/1.1 server of the emulator, with keep-alive.

The server is for tests and laptops. By default, it checks no credentials and listens on 127.0.0.1
only. With a token, it checks signatures, and can listen on other addresses. Pages of other sites in
a browser cannot call it: the header X-Amz-Target needs a preflight request, which the server grants
to pages of this machine only. The server also refuses other host names than this machine's. A GET
without X-Amz-Target returns the page about partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from email.utils import formatdate
from functools import lru_cache
from hmac import compare_digest
from random import Random
from typing import cast
from zlib import crc32

import msgspec

from heatsink.errors import Misconfigured
from heatsink.primitives.clock import Clock
from heatsink.primitives.connections import (
    HEAD_TOO_LARGE,
    NOT_HTTP,
    Bounded,
    Crowd,
    HeadTooLarge,
    listen,
    names_of,
    refusal_of,
    within_files,
)
from heatsink.primitives.words import pip_install
from heatsink.stores.dynamodb.wire.errors import Refused
from heatsink.stores.dynamodb.wire.signing import SignedRequest, is_signed_with

from . import page
from .browsers import PREFLIGHT, BadEncoding, for_origin, is_local, packed, unpacked
from .control import CONTROL, Control, error_of
from .engine import INTERNAL, Engine
from .settings import EngineSettings

try:
    import httptools
except ImportError as missing:
    raise Misconfigured(f"the emulator needs {missing.name}: {pip_install('local')}") from None

logger = logging.getLogger("heatsink")
encode = msgspec.json.Encoder().encode
TEND_AGAIN_S = 1.0
LAST_TURNS = 5  # of the event loop, so that connections being accepted are made and closed
BODY_BYTES_MAX = 16 * 1_024 * 1_024
REQUEST_ID_BITS = 128
TARGET, HOST_FIELD, ORIGIN = b"x-amz-target", b"host", b"origin"
TARGET_LENGTH, HOST_LENGTH, ORIGIN_LENGTH = len(TARGET), len(HOST_FIELD), len(ORIGIN)
ACCEPTED, ENCODED = b"accept-encoding", b"content-encoding"
ACCEPTED_LENGTH, ENCODED_LENGTH = len(ACCEPTED), len(ENCODED)
NOT_THE_API = b'{"message":"this is a DynamoDB endpoint: requests need an X-Amz-Target header"}'
NO_COMMAND = b'{"message":"POST to /control/fail, /throttle, /split or /reset, or GET /control"}'
CORAL = "com.amazon.coral.service#"
NO_CREDENTIALS = (
    "MissingAuthenticationTokenException",
    "Request is missing Authentication Token",
)
BAD_SIGNATURE = (
    "The request signature we calculated does not match the signature you provided. Check your AWS "
    "Secret Access Key and signing method: this emulator wants its token as the secret key."
)
INVALID_SIGNATURE = ("InvalidSignatureException", BAD_SIGNATURE)
REASONS = {
    200: b"OK",
    400: b"Bad Request",
    403: b"Forbidden",
    404: b"Not Found",
    408: b"Request Timeout",
    413: b"Content Too Large",
    421: b"Misdirected Request",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}
CLOSE = b"Connection: close\r\n"
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


class EngineConnection(asyncio.Protocol, Bounded):
    """The connection of one client. Requests are answered in the order in which they came.

    The parser gets incoming data in pieces of at most the maximum size of a head. So the size of a
    head is limited without a sum over its headers.
    """

    def __init__(self, server: EngineServer) -> None:
        self._server = server
        self.crowd = server.crowd
        self.loop = server.loop
        self.parser = httptools.HttpRequestParser(self)
        self._piece = server.crowd.limits.header_bytes
        self._headers_max = server.crowd.limits.headers
        self._host, self._origin, self._target = b"", b"", b""
        self.accepted, self._encoding = b"", b""
        self._known_host: bytes | None = None
        self._is_open = self._is_last = False
        self._owed = 0  # answers that are not sent yet
        self._url = b""
        self._body: list[bytes] = []
        self._size = self._size_seen = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports are not derived
        self._is_open = True
        self.enter()

    def connection_lost(self, _: Exception | None) -> None:
        self._is_open = False
        self.leave()

    def give_up(self) -> None:
        self._is_open = False
        super().give_up()

    def close_if_stuck(self, now_s: float) -> None:
        if self._size == self._size_seen:
            super().close_if_stuck(now_s)
        else:  # a body that is still arriving
            self._size_seen = self._size
            self.release()

    def data_received(self, data: bytes) -> None:
        if len(data) > self._piece:
            for start in range(0, len(data), self._piece):
                self.data_received(data[start : start + self._piece])
            return
        was_in_head = self._in_head
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._refuse_failed(error)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse_head(NOT_HTTP, "this is not HTTP/1.1")
        if self._in_head:
            self.heard(len(data), was_in_head)

    def _refuse_head(self, status: int, detail: str) -> None:
        if too_large := self.head_refusal():
            status, detail = HEAD_TOO_LARGE, too_large
        self.refuse(status, detail)

    def _refuse_failed(self, error: Exception) -> None:
        """Refuse a request on which a callback of the parser raised: its head, or a bug here."""
        if not isinstance(error.__context__, HeadTooLarge):
            logger.error("a request failed: this is a bug in the emulator", exc_info=error)
        self._refuse_head(INTERNAL, "the emulator failed: its log has the traceback")

    def pause_writing(self) -> None:
        """Stop reading requests from a client that does not read its answers."""
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._unsent = float("inf")
        self.transport.resume_reading()

    def on_message_begin(self) -> None:
        self._in_head, self._arrived, self._headers = True, 0, 0
        self._host, self._origin, self._target = b"", b"", b""
        self.accepted, self._encoding = b"", b""
        self._url, self._body, self._size = b"", [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        length = len(name)
        if length > TARGET_LENGTH:
            if length == ACCEPTED_LENGTH and name.lower() == ACCEPTED:
                self.accepted = self.accepted or value  # DynamoDB ignores all but the first
            elif length == ENCODED_LENGTH and name.lower() == ENCODED:
                self._encoding = value
            return
        if length == TARGET_LENGTH:
            if name.lower() == TARGET:
                self._target = value
        elif length == HOST_LENGTH:
            if name.lower() == HOST_FIELD:
                self._host = value
        elif length == ORIGIN_LENGTH and name.lower() == ORIGIN:
            self._origin = value

    def _take_head(self) -> None:
        if self._headers > self._headers_max or self._arrived >= self._piece:
            raise HeadTooLarge
        self._in_head = False
        if self.crowd.heads:
            self.end_head()

    def on_body(self, body: bytes) -> None:
        if self._in_head:
            self._take_head()
        self._size += len(body)
        if self._size <= BODY_BYTES_MAX:
            self._body.append(body)
        else:
            self._body.clear()
            self.refuse(413, "the request is too large: the limit is 16 MB")

    def on_message_complete(self) -> None:
        self._stirred = True
        if self._in_head:
            self._take_head()
        if self._origin and self.parser.get_method() == b"OPTIONS":
            self._grant()
            return
        if (self._origin or self._host != self._known_host) and not self._is_allowed():
            return
        if self._target:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            if self._encoding:
                try:
                    body = unpacked(body, self._encoding, BODY_BYTES_MAX)
                except BadEncoding as error:
                    refusal = Refused("InternalServerError", str(error)).body()
                    self.send(self._server.framed(error.status, encode(refusal)))
                    return
            self._server.handle(self, self._target.decode("latin-1"), body)
        else:
            body = b"".join(self._body)
            self.send(self._server.browse(self.parser.get_method(), self._url, body))

    def _grant(self) -> None:
        """Answer the preflight request of a browser."""
        refusal = self._server.refusal_of(self._host, self._origin)
        if refusal is None:
            self.send(PREFLIGHT)
        else:
            self._origin = b""
            self.refuse(*refusal)

    def _is_allowed(self) -> bool:
        refusal = self._server.refusal_of(self._host, self._origin)
        if refusal is not None:
            self._origin = b""
            self.refuse(*refusal)
            return False
        self._known_host = self._host
        return True

    def owe(self, answers: int) -> None:
        """Add `answers` to the number of pending answers. `answers` may be negative.

        A connection with pending answers does not count as idle.
        """
        self._owed += answers
        if self._owed:
            self.keep()
        elif self._is_open:
            self.release()

    def send(self, answer: bytes) -> None:
        if not self._is_open or self.transport.is_closing():
            return
        if self._origin:
            answer = for_origin(answer, self._origin)
        if self._is_last or not self.parser.should_keep_alive():
            self.transport.write(_last(answer))
            self.transport.close()
        else:
            self.transport.write(answer)

    def refuse(self, status: int, detail: str) -> None:
        """Send an error as the last answer, and close the connection."""
        self._is_last = True
        self.send(self._server.framed(status, encode({"message": detail})))


def _last(answer: bytes) -> bytes:
    """Announce in an answer that the server closes the connection after it."""
    head, line, rest = answer.partition(b"\r\n")
    return head + line + CLOSE + rest


class GuardedConnection(EngineConnection):
    """A connection whose requests need a token: as the secret key of a signature, or as it is.

    Signatures cover headers, so this class keeps all of them.
    """

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._all: dict[str, str] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._all[key] = f"{self._all[key]},{text}" if key in self._all else text

    def _is_allowed(self) -> bool:
        self._known_host = None  # check every request
        if not super()._is_allowed():
            return False
        self._known_host = None
        method, url = self.parser.get_method().decode("latin-1"), self._url.decode("latin-1")
        request = SignedRequest(method, url, self._all, b"".join(self._body))
        refusal = self._server.unauthorized(request)
        if refusal is not None:
            self.send(refusal)
        return refusal is None


class EngineServer:
    """Serves the engine over HTTP."""

    def __init__(self, settings: EngineSettings, clock: Clock, rng: Random) -> None:
        self._engine = Engine(settings, clock, rng)
        self.control = Control(self._engine, clock)
        self._latency_s = settings.latency_s
        self._port = settings.port
        self._clock = clock
        self._rng = rng
        self._late: set[asyncio.Task[None]] = set()
        self._tending: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._host, self._token = settings.host, settings.token
        self._names = names_of(settings.host, settings.allow_hosts)
        self._limits = settings.connections
        self.crowd: Crowd
        self.loop: asyncio.AbstractEventLoop

    def refusal_of(self, host: bytes, origin: bytes) -> tuple[int, str] | None:
        """Return the status and the reason if a request with these headers must be refused.

        Returns None if the request is allowed. `primitives.connections` has the rules.
        """
        if self._names is None:
            return None  # an address of any name: clients need the token
        page = origin.decode("latin-1") if origin else None
        if page is not None and is_local(page, self._names):
            page = None
        return refusal_of(host.decode("latin-1"), page, self._names)

    def unauthorized(self, request: SignedRequest) -> bytes | None:
        """Return the answer to a request without the right token. None if the token is right."""
        token, given = self._token or "", request.headers.get("authorization", "")
        if compare_digest(given.encode(), f"Bearer {token}".encode()):
            return None
        if is_signed_with(token, request, self._clock.now_s()):
            return None
        name, message = INVALID_SIGNATURE if given else NO_CREDENTIALS
        return self.framed(400, encode({"__type": CORAL + name, "message": message}))

    def framed(self, status: int, body: bytes, accepted: bytes = b"") -> bytes:
        """Return an answer. `accepted` are the encodings in which the client accepts its body."""
        request_id = self._rng.getrandbits(REQUEST_ID_BITS)
        date = http_date(int(self._clock.now_s()))
        if accepted and (compressed := packed(body, accepted)):
            body, date = compressed[0], date + b"\r\nContent-Encoding: " + compressed[1]
        return _HEAD % (status, REASONS[status], len(body), request_id, crc32(body), date) + body

    def browse(self, method: bytes, url: bytes, body: bytes) -> bytes:
        """Answer a request without X-Amz-Target: the page, the control endpoint, or 404."""
        path = url.partition(b"?")[0].decode("latin-1")
        if path.startswith(CONTROL):
            answer = self.control.answer(method.decode("latin-1"), path, body)
            return self.framed(*(answer or (404, NO_COMMAND)))
        found = page.answer(path, self._engine) if method == b"GET" else None
        if found is None:
            return self.framed(404, NOT_THE_API)
        kind, body = found
        return _PAGE_HEAD % (kind.encode(), len(body)) + body

    async def start(self) -> str:
        """Start to listen. Returns the server's URL."""
        self.loop = loop = asyncio.get_running_loop()
        self.crowd = Crowd(within_files(self._limits))
        kind = EngineConnection if self._token is None else GuardedConnection
        (listener,) = listen(self._host, self._port)
        self._server = await loop.create_server(lambda: kind(self), sock=listener)
        self._tending = loop.create_task(self._keep_tending())
        return f"http://{self._host}:{self._server.sockets[0].getsockname()[1]}"

    async def _keep_tending(self) -> None:
        """Let partitions adapt until cancelled. Log an internal error, then continue."""
        while True:
            try:
                await self._engine.keep_tending()
            except Exception:
                logger.exception("adapting partitions failed; retrying")
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
            for connection in list(self.crowd.all):
                connection.transport.close()
            await _turn_of_the_loop()
        if self._server is not None:
            await self._server.wait_closed()
        self._engine.close()

    def handle(self, connection: EngineConnection, target: str, body: bytes) -> None:
        if not self._latency_s:
            self._answer(connection, target, body)
            return
        task = asyncio.get_running_loop().create_task(self._handle_late(connection, target, body))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _handle_late(self, connection: EngineConnection, target: str, body: bytes) -> None:
        connection.owe(1)
        await self._clock.sleep(self._latency_s)
        self._answer(connection, target, body)
        connection.owe(-1)

    def _answer(self, connection: EngineConnection, target: str, body: bytes) -> None:
        fault = self.control.fault(target, body) if self.control.faults else None
        if fault is None:
            accepted = connection.accepted
            connection.send(self.framed(*self._engine.answer(target, body), accepted))
            return
        if fault.applied:
            self._engine.answer(target, body)
        if fault.error == "Disconnect":
            connection.give_up()
        else:
            connection.send(self.framed(*error_of(fault)))


async def _stop_accepting(server: asyncio.Server) -> None:
    """Finish pending accepts before the server closes. CPython 3.11 would leak their sockets."""
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        with suppress(NotImplementedError):  # some event loops lack it
            loop.remove_reader(listener.fileno())
    await _turn_of_the_loop()


async def _turn_of_the_loop() -> None:
    """Wait for one iteration of the event loop.

    This uses no clock, since a clock may stand still in tests.
    """
    loop = asyncio.get_running_loop()
    turned = loop.create_future()
    loop.call_soon(turned.set_result, None)
    await turned


@asynccontextmanager
async def running_engine(
    settings: EngineSettings, clock: Clock, rng: Random | None = None
) -> AsyncIterator[str]:
    """Run the emulator in this event loop and yield its URL.

    Port 0 in the settings means any free port.
    """
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
    """Run the emulator until cancelled. Calls `announce` with the URL once it accepts requests."""
    async with running_engine(settings, clock, rng) as url:
        announce(url)
        await asyncio.get_running_loop().create_future()
