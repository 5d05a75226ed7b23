"""The HTTP server of the door: accepts requests, checks their senders, and sends the answers.

On loopback, the door accepts requests with any signature, since only programs of this machine can
reach it. A web page cannot call the door: a request needs the header X-Amz-Target. A page may send
this header to another site only with that site's permission (CORS), which the door never gives. The
door also refuses host names that are not this machine's. On other addresses, the door accepts only
requests that are signed with one of its own key pairs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from socket import socket
from ssl import SSLContext
from typing import Any
from zlib import crc32

import msgspec

from heatsink.errors import HeatsinkError
from heatsink.primitives.checks import check_number, check_whole
from heatsink.primitives.clock import Clock
from heatsink.primitives.connections import (
    FORBIDDEN,
    ConnectionLimits,
    Crowd,
    names_of,
    refusal_of,
    within_files,
)
from heatsink.stores.dynamodb.wire.http import (
    REASONS,
    Framing,
    GuardedConnection,
    WireConnection,
    WireServer,
    close_all,
    http_date,
    stop_accepting,
)
from heatsink.stores.dynamodb.wire.signing import API, STREAMS_API, SignedRequest

from .access import STREAMS, Guard, Refusal, denied, tables_in
from .upstream import Upstream, refused

logger = logging.getLogger("heatsink")
encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(dict[str, Any]).decode
SERVICE = "com.amazonaws.dynamodb.v20120810#"
CORAL = "com.amazon.coral.service#"
NO_TARGET = b'{"message":"this is a DynamoDB endpoint: requests need an X-Amz-Target header"}'
NO_PAGES = "heatsink door answers no web page: call it from a program"
CROWDED = "heatsink door is at its limit of requests in progress: retry"
MIB = 1_024 * 1_024
OK, BAD_REQUEST, NOT_FOUND, CROWDED_STATUS = 200, 400, 404, 503
ENDPOINT_MINUTES = 1_440
WATCH_S = 0.02
LINGER_S = 0.5
_HEAD = (
    b"HTTP/1.1 %d %s\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n"
    b"x-amzn-RequestId: %b\r\nx-amz-crc32: %d\r\nDate: %b\r\n\r\n"
)
_PLAIN = (
    b"HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"
    b"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\r\n"
)
Work = Callable[[], Awaitable[bytes]]


def written_anew(body: bytes) -> bytes:
    """Return a request's JSON without repeated fields.

    If a field occurs twice, some servers use the first value and others the last. So a request that
    names two tables could pass the check of scopes with one table, and read the other.
    """
    try:
        return encode(decode(body))
    except ValueError:
        return body  # no JSON object: it names no table


class DoorLimits(ConnectionLimits, frozen=True):
    """Limits of one process of the door, set by `--limit NAME=NUMBER`."""

    requests: int = 1_000
    """Maximum number of requests in progress; further ones get 503, which SDKs retry."""
    held_bytes: int = 256 * MIB
    """Maximum size of all request bodies that the process holds at once."""
    grace_s: float = 10.0
    """How long requests in progress may take to finish when the process stops, in seconds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("requests", self.requests, 1, 10**7)
        check_whole("held_bytes", self.held_bytes, 1, 2**50)
        check_number("grace_s", self.grace_s, 0.01, 86_400)


def _endpoints(host: str) -> bytes:
    """Return the door as the only endpoint, so that no client goes past the door to DynamoDB."""
    return encode({"Endpoints": [{"Address": host, "CachePeriodInMinutes": ENDPOINT_MINUTES}]})


class DoorConnection(WireConnection):
    """A connection that answers its requests one after the other.

    While the client does not read its answers, the connection reads no further requests.
    """

    _server: Gate

    def __init__(self, server: WireServer) -> None:
        super().__init__(server)
        self._waiting: deque[Work | bytes] = deque()
        self._is_busy = False
        self._held = 0
        self._unread: asyncio.Future[None] | None = None  # the client has answers to read
        self._is_paused = False
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[Work | None] | None = None  # what the task waits for, if idle

    def on_body(self, body: bytes) -> None:
        self._held += len(body)
        self._server.held += len(body)
        if self._server.held > self._server.limits.held_bytes:
            self.refuse(CROWDED_STATUS, "heatsink door holds too many large requests: retry")
        else:
            super().on_body(body)

    def let_go(self) -> None:
        self._server.held -= self._held
        self._held = 0

    def connection_lost(self, error: Exception | None) -> None:
        self.let_go()
        self._waiting.clear()
        self._note_read()
        if self._is_busy and self._task is not None:
            self._server.see_to_its_end(self._task)
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        super().connection_lost(error)

    def pause_writing(self) -> None:
        self._pause()
        self._unread = self._unread or self.loop.create_future()

    def resume_writing(self) -> None:
        self._note_read()
        self._unsent = float("inf")
        if not (self._is_busy and self._waiting):
            self._resume()

    def _pause(self) -> None:
        self._is_paused = True
        self.transport.pause_reading()

    def _resume(self) -> None:
        self._is_paused = False
        self.transport.resume_reading()

    def _note_read(self) -> None:
        if self._unread is not None and not self._unread.done():
            self._unread.set_result(None)
        self._unread = None

    def take(self, work: Work) -> None:
        """Begin to answer a request, after those before it.

        Until then, read no further requests.
        """
        if not self.parser.should_keep_alive():  # the parser soon forgets it
            self._is_last = True
        if self._is_busy:
            self._pause()
            self._waiting.append(work)
        else:
            self._is_busy = True
            self.owe(1)
            if self._next is None:
                self._task = self.loop.create_task(self._work(work))
            else:
                self._next.set_result(work)

    async def _work(self, work: Work) -> None:
        """Answer requests until the connection is lost.

        One task serves all requests of a connection, since a task for each would cost more CPU.
        """
        todo: Work | bytes | None = work
        del work
        try:
            while todo is not None:
                answer = todo if isinstance(todo, bytes) else await todo()
                self.let_go()
                if self._waiting:
                    self._send_now(answer, is_last=False)
                    if self._unread is not None:
                        await self._until_read()
                    todo = self._waiting.popleft() if self._waiting else None  # None: it was lost
                else:
                    self._send_last(answer)
                    del todo, answer  # so that an idle connection keeps no large bodies
                    self._next = self.loop.create_future()
                    todo = await self._next if self._is_open else None
        finally:
            self._next = None
            if self._is_busy:
                self._is_busy = False
                self.owe(-1)

    def _send_last(self, answer: bytes) -> None:
        """Send the answer to a request after which no other one waits."""
        self._is_busy = False
        try:
            self._send_now(answer, is_last=self._is_last or self._server.is_ending)
            if self._is_paused and self._unread is None and self._is_open:
                self._resume()
        finally:
            self.owe(-1)

    async def _until_read(self) -> None:
        """Wait until the client reads its answers.

        If it never does, close the connection as idle.
        """
        self.owe(-1)
        try:
            while self._unread is not None:
                await self._unread
        finally:
            self.owe(1)

    def send(self, answer: bytes) -> None:
        if self._is_busy:
            self._pause()
            self._waiting.append(answer)
        else:
            self._send_now(answer, self._is_last or not self.parser.should_keep_alive())

    def _send_now(self, answer: bytes, is_last: bool) -> None:
        was, self._is_last = self._is_last, is_last
        super().send(answer)
        self._is_last = was or is_last

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that answers requests; None if no request is in progress."""
        return self._task if self._is_busy else None


class SignedDoorConnection(DoorConnection, GuardedConnection):
    """A connection whose requests must be signed with one of the door's key pairs."""


class Gate(Framing):
    """Serves the protocol of DynamoDB in front of `upstream`.

    With a `guard`, requests must be signed. `pages` are the answers to GET requests without
    X-Amz-Target, by their paths: status and text.
    """

    name = "door"

    def __init__(
        self,
        upstream: Upstream,
        limits: DoorLimits,
        clock: Clock,
        rng: Random,
        guard: Guard | None = None,
        allow_hosts: tuple[str, ...] = (),
    ) -> None:
        super().__init__(clock, rng)
        self._upstream = upstream
        self._guard = guard
        self._names = names_of("127.0.0.1", allow_hosts) if guard is None else None
        self.limits = within_files(limits)
        self.pages: dict[str, Callable[[], tuple[int, bytes]]] = {}
        self.crowd = Crowd(self.limits)
        self.loop: asyncio.AbstractEventLoop
        self.held = 0
        self.in_progress = 0
        self.is_ending = False
        self.answers: Counter[tuple[str, str, int]] = Counter()
        """Answers by operation, way and status."""
        self.seconds = {"passed": 0.0, "adapted": 0.0}
        """Seconds from request to answer, summed up by way."""
        self._orphans: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    def refusal_of(self, host: bytes, origin: bytes) -> tuple[int, str] | None:
        if origin:
            return FORBIDDEN, NO_PAGES
        if self._names is None:
            return None  # any name: the signature covers it
        return refusal_of(host.decode("latin-1"), None, self._names)

    def unauthorized(self, request: SignedRequest) -> bytes | None:
        if self._guard is None or "x-amz-target" not in request.headers:
            return None  # pages have no secrets
        checked = self._guard.check(request)
        if isinstance(checked, Refusal):
            return self._refused(checked)
        target = request.headers["x-amz-target"].removeprefix(API)
        tables = tables_in(request.body)
        if not checked.allows(target, tables):
            return self._refused(denied(checked, target, tables))
        return None

    def _refused(self, refusal: Refusal) -> bytes:
        body = encode({"__type": CORAL + refusal.code, "message": refusal.message})
        return self.framed(BAD_REQUEST, body)

    def handle(self, connection: WireConnection, target: str, body: bytes) -> None:
        assert isinstance(connection, DoorConnection)
        operation = target.removeprefix(API)
        is_known = target in STREAMS or (operation != target and operation.isalnum())
        if not is_known:
            connection.send(self._refused(Refusal("UnknownOperationException", "")))
        elif operation == "DescribeEndpoints" and connection.host:
            connection.send(self.framed(OK, _endpoints(connection.host)))
        elif self.in_progress >= self.limits.requests:
            busy = {"__type": SERVICE + "ServiceUnavailable", "message": CROWDED}
            connection.send(self.framed(CROWDED_STATUS, encode(busy)))
        else:
            connection.take(partial(self._answer, operation, body, connection.accepted))

    async def _answer(self, operation: str, body: bytes, accepted: bytes) -> bytes:
        self.in_progress += 1
        start_s = self._clock.monotonic_s()
        try:
            if self._guard is not None:
                body = written_anew(body)
            given = await self._upstream.answer(operation, body)
        except HeatsinkError as error:
            given = refused(error)
        except Exception:
            logger.exception("a request failed: this is a bug in the door")
            message = "heatsink door failed: its log has the traceback"
            return self.framed(
                500, encode({"__type": CORAL + "InternalFailure", "message": message})
            )
        finally:
            self.in_progress -= 1
        self.answers[operation.removeprefix(STREAMS_API), given.way, given.status] += 1
        self.seconds[given.way] += self._clock.monotonic_s() - start_s
        if (self._guard is not None and accepted) or not given.request_id:
            return self.framed(given.status, given.body, accepted if self._guard else b"")
        date = http_date(int(self._clock.now_s()))
        reason = REASONS.get(given.status, b"Error")
        head = (given.status, reason, len(given.body), given.request_id, crc32(given.body), date)
        return _HEAD % head + given.body

    def browse(self, method: bytes, url: bytes, body: bytes) -> bytes:  # noqa: ARG002
        page = self.pages.get(url.partition(b"?")[0].decode("latin-1"))
        if method != b"GET" or page is None:
            return self.framed(NOT_FOUND, NO_TARGET)
        status, text = page()
        return _PLAIN % (status, REASONS[status], len(text)) + text

    def see_to_its_end(self, task: asyncio.Task[None]) -> None:
        """Let a request run to its end although its client has gone. Upstream may have got it."""
        self._orphans.add(task)
        task.add_done_callback(self._orphans.discard)

    def _busy(self) -> list[asyncio.Task[None]]:
        connections = [one for one in self.crowd.all if isinstance(one, DoorConnection)]
        return [*self._orphans, *(one.task for one in connections if one.task is not None)]

    def _make_connection(self) -> asyncio.Protocol:
        return DoorConnection(self) if self._guard is None else SignedDoorConnection(self)

    async def start(self, listeners: Sequence[socket], tls: SSLContext | None = None) -> None:
        """Start to accept connections, with TLS if there is a context for it."""
        self.loop = loop = asyncio.get_running_loop()
        handshake_s = None if tls is None else self.limits.header_s
        for listener in listeners:
            server = await loop.create_server(
                self._make_connection, sock=listener, ssl=tls, ssl_handshake_timeout=handshake_s
            )
            self._servers.append(server)

    async def end(self) -> None:
        """Accept no more connections, finish the requests in progress, and close."""
        self.is_ending = True
        now_s = self._clock.monotonic_s()
        until_s = now_s + self.limits.grace_s
        for server in self._servers:
            await stop_accepting(server)
        while self.crowd.all and self._clock.monotonic_s() < min(now_s + LINGER_S, until_s):
            await self._clock.sleep(WATCH_S)  # the next answer tells clients to connect anew
        for connection in list(self.crowd.all):
            if isinstance(connection, DoorConnection) and connection.task is None:
                connection.transport.close()
        while self._busy() and self._clock.monotonic_s() < until_s:
            await self._clock.sleep(WATCH_S)
        for task in self._busy():
            task.cancel()
        for server in self._servers:
            await close_all(server, self.crowd)
