"""Persistent HTTP/1.1 connections to one endpoint, each with one request at a time.

An HTTP library builds a request object, a response object and several callbacks for each call.
Here, the caller passes the bytes of a whole request, and one future waits for its answer. So a put
takes little more CPU than the event loop and the system calls (`./dev bench dynamodb_client`).

A connection never gives one request the answer to another. It takes a new request only after a
complete answer that ended exactly where the data ended. In all other cases it is closed: after a
cancellation, an error, surplus bytes, `Connection: close`, or an answer that came before the whole
request was sent. An answer must have a length or be chunked. If an answer ended only with the end
of the connection, nobody could tell it from half an answer.

The pool sets no deadline for a request, and no limit for the number of connections. Its caller sets
both (`primitives.cut`, `Turns`).
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from base64 import b64encode
from typing import cast
from urllib.parse import unquote, urlsplit

import httptools
import msgspec

from heatsink.errors import InvalidSetting

CONNECT_S = 3.0
IDLE_S = 15.0
AGE_S = 300.0
AGE_SHARE = 0.75  # connections live for between this share of AGE_S and all of it
GOLDEN = 0.618033988749895
ADDRESSES_S = 5.0
GONE_S = 1.0
HEAD_BYTES_MAX = 64 * 1_024
ANSWER_BYTES_MAX = 64 * 1_024 * 1_024
DATE, CHECKSUM, REQUEST_ID = b"date", b"x-amz-crc32", b"x-amzn-requestid"
LENGTHS = frozenset(map(len, (DATE, CHECKSUM, REQUEST_ID)))
OK = 200
PROXY_NEEDS_A_PASSWORD = 407
STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
PORTS = {"http": 80, "https": 443}


class WireAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request, with the headers Date, x-amz-crc32 and x-amzn-RequestId.

    A header that the answer lacks is empty.
    """

    status: int
    date: bytes
    body: bytes
    checksum: bytes = b""
    request_id: bytes = b""


class CannotConnect(OSError):
    """No connection could be made. `reason` is the error of the system, of TLS or of the proxy."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.reason = reason


class NotHttp(OSError):
    """The other side does not speak HTTP as it must."""


class Broken(ConnectionError):
    """The connection ended before its answer was complete."""


class Unanswered(Broken):
    """A kept connection ended before the first byte of the answer.

    Most likely the server closed it for being idle, just when the request was sent. But the server
    may also have run the request.
    """


class ProxyRefused(OSError):
    """The proxy did not connect to the endpoint."""

    def __init__(self, proxy: str, status: int) -> None:
        cure = "check user and password in HTTPS_PROXY"
        if status != PROXY_NEEDS_A_PASSWORD:
            cure = "check HTTPS_PROXY and NO_PROXY"
        super().__init__(f"the proxy {proxy} answered with status {status}: {cure}")


class Connection(asyncio.Protocol):
    """One connection. It is in use, or in the pool's list `idle`, or closed."""

    transport: asyncio.Transport

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop, expires_s: float) -> None:
        self._pool = pool
        self.loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[WireAnswer] | None = None
        self._received = 0  # bytes of the present answer
        self._status = 0  # of the answer; 0 while it is not complete
        self._is_kept = False
        self._named: dict[bytes, bytes] = {}  # the headers that are kept, by their names
        self._body: list[bytes] = []
        self._served = 0
        self.expires_s = expires_s
        self.idle_since_s = 0.0
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports are not derived
        self.is_open = True
        self._pool.entered(self)

    def send(self, request: bytes) -> asyncio.Future[WireAnswer]:
        """Send a request.

        The caller awaits the returned future, and calls `give_up` if it stops waiting.
        """
        self._waiter = waiter = self.loop.create_future()
        self.transport.write(request)
        return waiter

    def give_up(self, waiter: asyncio.Future[WireAnswer]) -> None:
        """Close the connection if this answer has not arrived yet.

        If the task was cancelled after the answer had arrived, do nothing: the connection may
        already serve another request.
        """
        if self._waiter is waiter:
            self.abort()

    def abort(self) -> None:
        self.is_open = False
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            self.abort()  # bytes that no request asked for
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(NotHttp(str(error)))
            return
        if self._status:
            self._finish(waiter)
        elif self._received > (ANSWER_BYTES_MAX if self._body else HEAD_BYTES_MAX):
            self._fail(NotHttp("the answer is too large"))

    def on_message_begin(self) -> None:
        if self._status:
            raise NotHttp("bytes after the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) in LENGTHS:
            self._named[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < OK:  # 100 Continue, 103 Early Hints: the answer, with its headers, is to come
            self._named = {}
            return
        self._status = status
        self._is_kept = self._parser.should_keep_alive()  # the parser soon forgets it

    def _finish(self, waiter: asyncio.Future[WireAnswer]) -> None:
        body, named = self._body, self._named.get
        waiter.set_result(
            WireAnswer(
                self._status,
                named(DATE, b""),
                body[0] if len(body) == 1 else b"".join(body),
                named(CHECKSUM, b""),
                named(REQUEST_ID, b""),
            )
        )
        self._waiter = None
        transport = self.transport
        if not self._is_kept or transport.get_write_buffer_size():
            self.abort()
        elif self.is_open and not transport.is_closing():
            self._received = self._status = 0
            self._named = {}
            self._body = []
            self._served += 1
            self._pool.release(self)

    def _fail(self, error: OSError) -> None:
        self.abort()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def eof_received(self) -> None:
        self.is_open = False

    def connection_lost(self, error: Exception | None) -> None:
        said = str(error or "") or "the server closed it before its answer was complete"
        is_unanswered = self._served and not self._received
        self._fail(Unanswered(said) if is_unanswered else Broken(said))
        self._pool.left(self)
        del self._parser  # it refers to this connection


class Pool:
    """Connections to one endpoint: `http://host:port` or `https://host:port`."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._scheme = parts.scheme
        self._host = parts.hostname or ""
        self._port = parts.port or PORTS[parts.scheme]
        self._idle: list[Connection] = []  # the last one was used last
        self._all: set[Connection] = set()
        self._connecting: set[asyncio.Future[Connection]] = set()
        self._made = 0
        self._timer: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None] | None = None
        self._way: Way | Tunnel | None = None
        self._is_closed = False

    @property
    def connections(self) -> int:
        return len(self._all)

    async def ask(self, request: bytes, again: bool = False) -> WireAnswer:
        """Send a request and return its answer.

        If a kept connection ends before the first byte of the answer, the request may or may not
        have been applied. With `again`, it is then sent once more, on a new connection.

        Raises `CannotConnect`, `TimeoutError` if a connection took too long, `NotHttp`, `Broken`,
        and `asyncio.CancelledError` if the pool was closed meanwhile.
        """
        connection = self._take()
        if connection is not None:
            waiter = connection.send(request)
            try:
                return await waiter
            except Unanswered:
                if not again:
                    raise
            except BaseException:
                connection.give_up(waiter)
                raise
        connection = await self._open()
        waiter = connection.send(request)
        try:
            return await waiter
        except BaseException:
            connection.give_up(waiter)
            raise

    def _take(self) -> Connection | None:
        """Return the kept connection that was used last, or None."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.is_open and not connection.transport.is_closing():
                if connection.idle_since_s + IDLE_S > connection.loop.time():
                    return connection
                connection.abort()  # the event loop stood still: the timer is late
        return None

    async def _open(self) -> Connection:
        attempt = asyncio.ensure_future(self._connect())
        self._connecting.add(attempt)
        attempt.add_done_callback(self._connecting.discard)
        return await attempt

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        self._made += 1
        share = AGE_SHARE + (1 - AGE_SHARE) * (self._made * GOLDEN % 1)
        connection = Connection(self, loop, loop.time() + AGE_S * share)
        if self._way is None:
            self._way = way_to(self._scheme, self._host, self._port)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._way.connect(connection)
        except TimeoutError:
            raise
        except OSError as error:
            raise CannotConnect(error) from None
        return connection

    def entered(self, connection: Connection) -> None:
        self._all.add(connection)
        if self._is_closed:
            connection.abort()

    def left(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._gone is not None and not self._all and not self._gone.done():
            self._gone.set_result(None)

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request, unless it is too old."""
        loop = connection.loop
        connection.idle_since_s = now_s = loop.time()
        if now_s > connection.expires_s:
            connection.abort()
            return
        self._idle.append(connection)
        if self._timer is None:
            self._timer = loop.call_later(IDLE_S, self._close_idle, loop)

    def _close_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        while self._idle and self._idle[0].idle_since_s + IDLE_S <= now_s:
            self._idle.pop(0).abort()
        self._timer = None
        if self._idle:
            due_s = self._idle[0].idle_since_s + IDLE_S
            self._timer = loop.call_at(due_s, self._close_idle, loop)

    async def close(self) -> None:
        """Close all connections. Requests that wait for an answer fail."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        attempts = [*self._connecting]
        for attempt in attempts:
            attempt.cancel()
        for connection in self._all:
            connection.abort()
        if attempts:
            await asyncio.wait(attempts, timeout=GONE_S)
        if self._all:  # the event loop closes their sockets in one of its next turns
            self._gone = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._gone], timeout=GONE_S)


class Way:
    """How to reach the endpoint: its addresses, and TLS if `context` is given."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._context = context
        self._addresses: list[str] = []
        self._resolved_s = float("-inf")
        self._lock = asyncio.Lock()

    async def connect(self, connection: Connection) -> None:
        """Connect to the first address that answers.

        From now on, an address that does not answer is tried last.

        Raises the error of the last address.
        """
        name = self._host if self._context else None
        failure = OSError("the host has no address")
        for address in await self._resolve():
            connect = asyncio.get_running_loop().create_connection
            try:
                await connect(
                    lambda: connection,
                    address,
                    self._port,
                    ssl=self._context,
                    server_hostname=name,
                )
            except OSError as error:
                failure = error
                if address in self._addresses:
                    self._addresses.remove(address)
                    self._addresses.append(address)
            else:
                return
        raise failure

    async def _resolve(self) -> list[str]:
        """Return the host's addresses. Connections that start together share one look-up."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() - self._resolved_s > ADDRESSES_S:
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                self._addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
                self._resolved_s = loop.time()
        return [*self._addresses]


class Tunnel:
    """A way to the endpoint through an HTTP proxy. The proxy passes TLS on and cannot read it."""

    def __init__(self, proxy: str, host: str, port: int, context: ssl.SSLContext) -> None:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if parts.scheme != "http" or not parts.hostname:
            raise InvalidSetting(
                "HTTPS_PROXY must be http://host:port or http://user:pass@host:port"
            )
        self._name = f"{parts.hostname}:{parts.port or PORTS['http']}"
        self._proxy = parts.hostname, parts.port or PORTS["http"]
        self._host = host
        self._context = context
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            lines.append(f"Proxy-Authorization: Basic {b64encode(pair.encode()).decode()}")
        self._request = "\r\n".join([*lines, "\r\n"]).encode()

    async def connect(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        transport, handshake = await loop.create_connection(Handshake, *self._proxy)
        try:
            transport.write(self._request)
            status = await handshake.status
            if status != OK:
                raise ProxyRefused(self._name, status)
            secured = await loop.start_tls(
                transport, connection, self._context, server_hostname=self._host
            )
            assert secured is not None
            connection.connection_made(secured)
        except BaseException:
            transport.abort()
            raise


class Handshake(asyncio.Protocol):
    """Waits for the answer of a proxy to CONNECT. Its body, if any, is not read."""

    def __init__(self) -> None:
        self._head = b""
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self.status.done():
            return
        if b"\r\n\r\n" not in self._head:
            if len(self._head) > HEAD_BYTES_MAX:
                self.status.set_exception(NotHttp("the proxy's answer is too large"))
            return
        head, _, rest = self._head.partition(b"\r\n\r\n")
        found = STATUS_LINE.match(head)
        if found is None or (rest and int(found[1]) == OK):
            self.status.set_exception(NotHttp("the proxy does not speak HTTP"))
        else:
            self.status.set_result(int(found[1]))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.status.done():
            self.status.set_exception(error or Broken("the proxy closed the connection"))


def way_to(scheme: str, host: str, port: int) -> Way | Tunnel:
    """Return the way to a host. HTTPS goes through a proxy if the environment names one."""
    if scheme == "http":
        return Way(host, port, None)
    from urllib.request import getproxies, proxy_bypass  # slow to import, and seldom needed

    context, proxy = ssl.create_default_context(), getproxies().get("https")
    if proxy and not proxy_bypass(host):
        return Tunnel(proxy, host, port, context)
    return Way(host, port, context)
