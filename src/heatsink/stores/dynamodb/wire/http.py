"""The HTTP/1.1 side of a server that speaks DynamoDB's protocol, with keep-alive.

The emulator and the door share this module. A connection parses requests within limits
(`primitives.connections`), decompresses them, and checks host names. If its server requires
signatures, the connection checks them, too. The server answers the requests.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from random import Random
from typing import Protocol, cast
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
)
from heatsink.primitives.words import pip_install

from .compression import BadEncoding, packed, unpacked
from .errors import ServiceRefused
from .signing import SignedRequest

try:
    import httptools
except ImportError as missing:
    raise Misconfigured(
        f"a DynamoDB endpoint needs {missing.name}: {pip_install('local')}"
    ) from None

logger = logging.getLogger("heatsink")
encode = msgspec.json.Encoder().encode
INTERNAL = 500
LAST_TURNS = 5  # of the event loop, so that connections being accepted are made and closed
BODY_BYTES_MAX = 16 * 1_024 * 1_024
REQUEST_ID_BITS = 128  # shown with 52 digits, as on AWS
TARGET, HOST_FIELD, ORIGIN = b"x-amz-target", b"host", b"origin"
TARGET_LENGTH, HOST_LENGTH, ORIGIN_LENGTH = len(TARGET), len(HOST_FIELD), len(ORIGIN)
EXPECT, CONTINUE = b"expect", b"HTTP/1.1 100 Continue\r\n\r\n"
ACCEPTED, ENCODED = b"accept-encoding", b"content-encoding"
ACCEPTED_LENGTH, ENCODED_LENGTH = len(ACCEPTED), len(ENCODED)
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
    b"x-amzn-RequestId: %052X\r\nx-amz-crc32: %d\r\nDate: %b\r\n\r\n"
)


@lru_cache(maxsize=1)
def http_date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


class Framing:
    """Makes complete HTTP answers like DynamoDB's, with a request id, the date and a checksum."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng

    def framed(self, status: int, body: bytes, accepted: bytes = b"") -> bytes:
        """Return a complete HTTP answer with this body.

        `accepted` are the encodings that the client accepts, as in its header Accept-Encoding.
        """
        request_id = self._rng.getrandbits(REQUEST_ID_BITS)
        date = http_date(int(self._clock.now_s()))
        if accepted and (compressed := packed(body, accepted)):
            body, date = compressed[0], date + b"\r\nContent-Encoding: " + compressed[1]
        return _HEAD % (status, REASONS[status], len(body), request_id, crc32(body), date) + body


class WireServer(Protocol):
    """What a connection needs of its server."""

    name: str
    crowd: Crowd
    loop: asyncio.AbstractEventLoop

    def framed(self, status: int, body: bytes, accepted: bytes = b"") -> bytes: ...

    def handle(self, connection: WireConnection, target: str, body: bytes) -> None:
        """Answer a request of the API, now or later."""

    def browse(self, method: bytes, url: bytes, body: bytes) -> bytes:
        """Return the answer to a request without X-Amz-Target."""
        ...

    def refusal_of(self, host: bytes, origin: bytes) -> tuple[int, str] | None:
        """Return the status and the reason if the host or the origin of a request is not allowed.

        Returns None if both are.
        """

    def unauthorized(self, request: SignedRequest) -> bytes | None:
        """Return the answer to a request without a valid signature or token; None if it has one."""


class WireConnection(asyncio.Protocol, Bounded):
    """The connection of one client. Requests are answered in the order in which they came.

    The parser gets incoming data in pieces of at most the maximum size of a head. So the size of a
    head is limited without a sum over its headers.
    """

    def __init__(self, server: WireServer) -> None:
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
        self._has_ended = False  # a request ended in the data that the parser reads now
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
        was_in_head, self._has_ended = self._in_head, False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._refuse_failed(error)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse_head(NOT_HTTP, "this is not HTTP/1.1")
        if self._in_head:
            self.heard(len(data), was_in_head and not self._has_ended)

    def _refuse_head(self, status: int, detail: str) -> None:
        if too_large := self.head_refusal():
            status, detail = HEAD_TOO_LARGE, too_large
        self.refuse(status, detail)

    def _refuse_failed(self, error: Exception) -> None:
        """Answer a request for which a callback of the parser raised `error`.

        Either the request's head is wrong, or Heatsink has a bug.
        """
        if not isinstance(error.__context__, HeadTooLarge):
            name = self._server.name
            logger.error("a request failed: this is a bug in the %s", name, exc_info=error)
        self._refuse_head(INTERNAL, f"the {self._server.name} failed: its log has the traceback")

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
        elif length == ORIGIN_LENGTH:  # which is also that of EXPECT
            self._on_origin_or_expect(name.lower(), value)

    def _on_origin_or_expect(self, name: bytes, value: bytes) -> None:
        if name == ORIGIN:
            self._origin = value
        elif name == EXPECT and value.lower() == b"100-continue" and not self._owed:
            self.transport.write(CONTINUE)  # the client holds its body back until then

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
        self._stirred = self._has_ended = True
        if self._in_head:
            self._take_head()
        if (self._origin or self._host != self._known_host) and not self._is_allowed():
            return
        if self._target:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            if self._encoding:
                try:
                    body = unpacked(body, self._encoding, BODY_BYTES_MAX)
                except BadEncoding as error:
                    refusal = ServiceRefused("InternalServerError", str(error)).body()
                    self.send(self._server.framed(error.status, encode(refusal)))
                    return
            self._server.handle(self, self._target.decode("latin-1"), body)
        else:
            body = b"".join(self._body)
            self.send(self._server.browse(self.parser.get_method(), self._url, body))

    @property
    def host(self) -> str:
        """The name and port by which the client knows this server."""
        return self._host.decode("latin-1")

    def _is_allowed(self) -> bool:
        refusal = self._server.refusal_of(self._host, self._origin)
        if refusal is not None:
            self.turn_away(*refusal)
            return False
        self._known_host = self._host
        return True

    def owe(self, answers: int) -> None:
        """Add `answers` (negative: subtract) to the number of requests that wait for an answer.

        A connection with such requests does not count as idle.
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
            answer = self._for_page(answer)
        if self._is_last or not self.parser.should_keep_alive():
            self.transport.write(_last(answer))
            self.transport.close()
        else:
            self.transport.write(answer)

    def _for_page(self, answer: bytes) -> bytes:
        """Return the answer as a page in a browser gets it."""
        return answer

    def turn_away(self, status: int, detail: str) -> None:
        """Refuse a request because of its host or origin."""
        self.refuse(status, detail)

    def refuse(self, status: int, detail: str) -> None:
        """Send an error as the last answer, and close the connection."""
        self._is_last = True
        self.send(self._server.framed(status, encode({"message": detail})))


def _last(answer: bytes) -> bytes:
    """Return the answer with a header that says that the server closes the connection after it."""
    head, line, rest = answer.partition(b"\r\n")
    return head + line + CLOSE + rest


class GuardedConnection(WireConnection):
    """A connection whose requests need a token: in a header, or as the secret key of a signature.

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


async def close_all(server: asyncio.Server | None, crowd: Crowd) -> None:
    """Stop accepting connections, and close those that are open."""
    if server is not None:
        await stop_accepting(server)
        server.close()
    for _ in range(LAST_TURNS):
        for connection in list(crowd.all):
            connection.transport.close()
        await _turn_of_the_loop()
    if server is not None:
        await server.wait_closed()


async def stop_accepting(server: asyncio.Server) -> None:
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
