"""What every HTTP server of Heatsink needs: sockets, bounded connections, a check of the host.

A client must not be able to exhaust a server with incomplete requests. So the head of a request is
bounded in bytes, in headers and in time. A silent connection is closed. If there are too many
connections, the server closes the one that has been idle for the longest. So many silent
connections or half-sent requests cannot keep other clients out.

A protocol inherits `Bounded` beside its own base and calls it at each step of the parser:

    connection_made → enter · data_received → heard · on_message_begin → begin_head
    on_url → count_url · on_header → count_header · on_headers_complete → end_head
    a request is being answered → keep · the answer is sent → release · connection_lost → leave

If calls of `release` cost too much, a protocol may instead set `_stirred` after each answer. The
longest idle connection is then found only approximately, as in a CLOCK cache.

One timer serves all connections of a server. A request that arrives in one piece starts no timer.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from abc import abstractmethod
from collections.abc import Collection
from typing import TypeVar

import msgspec

from heatsink.errors import Misconfigured

from .checks import check_number, check_whole

LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
FILES_BESIDES = 200  # of the store, the queue and its partitions
NOT_HTTP, HEAD_TOO_SLOW, HEAD_TOO_LARGE = 400, 408, 431
FORBIDDEN, MISDIRECTED = 403, 421
SHOWN_MAX = 80


class ConnectionLimits(msgspec.Struct, frozen=True):
    """Limits for requests that are not complete yet."""

    header_bytes: int = 16 * 1_024
    """Maximum size of a request's head: its URL and its headers."""
    headers: int = 100
    """Maximum number of headers of a request."""
    header_s: float = 10.0
    """Maximum time for a head to arrive, in seconds."""
    connections: int = 10_000
    """Maximum number of connections; if there are more, the longest idle one is closed."""
    idle_s: float = 30.0
    """Seconds after which a silent connection is closed."""

    def __post_init__(self) -> None:
        check_whole("header_bytes", self.header_bytes, 1, 2**50)
        check_whole("headers", self.headers, 1, 10**6)
        check_whole("connections", self.connections, 1, 10**7)
        for name in ("header_s", "idle_s"):
            check_number(name, getattr(self, name), 0.01, 86_400)


SomeLimits = TypeVar("SomeLimits", bound=ConnectionLimits)


class HeadTooLarge(Exception):
    """The head of a request exceeds its limits; raised to stop the parser."""


class Crowd:
    """All connections of one server."""

    def __init__(self, limits: ConnectionLimits, closes_idle: bool = True) -> None:
        self.limits = limits
        self.all: set[Bounded] = set()
        self.idle: dict[Bounded, float] = {}
        """Connections without a request, and since when they are idle; the longest idle first."""
        self.heads: dict[Bounded, float] = {}
        """Connections whose head is not complete, and since when; the oldest first."""
        self._closes_idle = closes_idle
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set a timer for the connection whose time is up first, unless a timer is set already."""
        if self._timer is not None:
            return
        dues = [since_s + self.limits.header_s for since_s in _first(self.heads)]
        if self._closes_idle:
            dues += [since_s + self.limits.idle_s for since_s in _first(self.idle)]
        if dues:
            self._timer = loop.call_at(min(dues), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, now_s = None, loop.time()
        for connection in _due(self.heads, now_s - self.limits.header_s):
            connection.end_head()
            connection.head_is_late()
        if self._closes_idle:
            for connection in _due(self.idle, now_s - self.limits.idle_s):
                if not connection.was_stirred():
                    connection.close_if_stuck(now_s)
        self.watch(loop)

    def longest_idle(self) -> Bounded:
        """Return the connection that has been idle for the longest time.

        A connection may have been used since it was put into the order: then it first moves to the
        end.
        """
        while (first := next(iter(self.idle))).was_stirred():
            pass
        return first

    def end_watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _first(waiting: dict[Bounded, float]) -> list[float]:
    return [next(iter(waiting.values()))] if waiting else []


def _due(waiting: dict[Bounded, float], before_s: float) -> list[Bounded]:
    due = []
    for connection, since_s in waiting.items():
        if since_s > before_s:
            break
        due.append(connection)
    return due


class Bounded:
    """One connection of a `Crowd`, with limits on idle time and on the size of heads.

    A protocol inherits from this class: see the module's docstring.
    """

    crowd: Crowd
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _in_head = True  # also before the first request, which must come in time too
    _has_begun = False
    _arrived = 0  # bytes of an incomplete head, parsed or not
    _head_bytes = 0
    _headers = 0
    _unsent = float("inf")
    _stirred = False  # a request was answered since the last `release`

    @abstractmethod
    def refuse(self, status: int, detail: str) -> None:
        """Answer with an error and close the connection."""

    def enter(self) -> None:
        """Add a new connection to the crowd. If there are too many, close the longest idle one."""
        crowd, now_s = self.crowd, self.loop.time()
        crowd.all.add(self)
        crowd.heads[self] = crowd.idle[self] = now_s
        if len(crowd.all) > crowd.limits.connections:
            crowd.longest_idle().give_up()
        crowd.watch(self.loop)

    def give_up(self) -> None:
        """Drop the connection, and remove it from the crowd now.

        The event loop reports the end of the connection only later.
        """
        self.leave()
        self.transport.abort()

    def leave(self) -> None:
        """Remove the connection from the crowd."""
        crowd = self.crowd
        crowd.all.discard(self)
        crowd.idle.pop(self, None)
        crowd.heads.pop(self, None)
        if not crowd.all:
            crowd.end_watch()

    def heard(self, size: int, was_in_head: bool) -> None:
        """Count `size` bytes that the parser has read. Refuse the request if its head is too large.

        `was_in_head` says whether all of these bytes belong to the head that is not complete yet.
        """
        if not self._in_head:
            return
        self._has_begun = True
        if was_in_head:
            self._arrived += size
        if self._arrived > self.crowd.limits.header_bytes:
            self.refuse(HEAD_TOO_LARGE, self.head_refusal())
        elif self not in self.crowd.heads and self in self.crowd.all:
            self.crowd.heads[self] = self.loop.time()
            self.crowd.watch(self.loop)

    @property
    def in_head(self) -> bool:
        return self._in_head

    def begin_head(self) -> None:
        self._in_head = True
        self._arrived = self._head_bytes = self._headers = 0

    def count_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        self.check_head()

    def count_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        self._head_bytes += len(name) + len(value)
        self.check_head()

    def check_head(self) -> None:
        limits = self.crowd.limits
        if self._headers > limits.headers or self._head_bytes > limits.header_bytes:
            raise HeadTooLarge

    def end_head(self) -> None:
        self._in_head = False
        self.crowd.heads.pop(self, None)

    def head_refusal(self) -> str:
        """Return why the head is too large; empty if its size is allowed."""
        limits = self.crowd.limits
        if self._headers > limits.headers:
            return f"the request has more than {limits.headers:,} headers"
        if max(self._head_bytes, self._arrived) >= limits.header_bytes:
            return f"the request's head is larger than {limits.header_bytes:,} bytes"
        return ""

    def head_is_late(self) -> None:
        if self._has_begun:
            limit_s = self.crowd.limits.header_s
            self.refuse(HEAD_TOO_SLOW, f"the request's head took longer than {limit_s:g} s")
        else:
            self.transport.close()

    def keep(self) -> None:
        """Count the connection as busy, so that it stays open while a request is answered."""
        self.crowd.idle.pop(self, None)

    def release(self) -> None:
        """Count the connection as idle from now on."""
        crowd = self.crowd
        crowd.idle.pop(self, None)
        if self in crowd.all:
            crowd.idle[self] = self.loop.time()
            crowd.watch(self.loop)

    def was_stirred(self) -> bool:
        """Return whether a request was answered since the last call of `release`.

        If so, count the connection's idle time from now on.
        """
        stirred, self._stirred = self._stirred, False
        if stirred:
            self.release()
        return stirred

    def close_if_stuck(self, now_s: float) -> None:
        """Close the connection if its client has read nothing since this was last called.

        A client that reads slowly gets more time.
        """
        left = self.transport.get_write_buffer_size()
        if 0 < left < self._unsent:
            self._unsent = left
            self.crowd.idle.pop(self, None)
            self.crowd.idle[self] = now_s
        else:
            self.give_up()


def listen(
    host: str, port: int, flag: str = "--port", is_shared: bool = False
) -> list[socket.socket]:
    """Open one socket for every address of the host. Raises `Misconfigured` if that fails.

    With `is_shared`, several processes of one user may listen on the same port. The system spreads
    new connections over them.
    """
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, *_, address in found):
            listeners.append(socket.create_server(address, family=family, reuse_port=is_shared))
            # asyncio sets it only on sockets with a named protocol; connections inherit it here
            listeners[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        for listener in listeners:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Misconfigured(
                f"port {port} is in use: choose another with {flag}", field="port"
            ) from None
        unknown = isinstance(error, socket.gaierror)
        reason = error.strerror if unknown else os.strerror(error.errno or 0)
        raise Misconfigured(
            f"cannot listen on {host!r}, port {port} ({reason}): choose another --host or {flag}"
        ) from None
    return listeners


def within_files(limits: SomeLimits) -> SomeLimits:
    """Return the limits, with fewer connections if this process cannot open enough files.

    Before that, the function raises the process's limit of open files as far as it can. A server
    that cannot open a file for the next connection would keep all clients waiting.
    """
    wanted = limits.connections + FILES_BESIDES
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= wanted:
        return limits
    allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    if allowed >= wanted:
        return limits
    return msgspec.structs.replace(limits, connections=max(allowed - FILES_BESIDES, 1))


def names_of(host: str, allowed: Collection[str]) -> frozenset[str] | None:
    """Return the host names that a server at `host` accepts. None means any name.

    If any name is accepted, clients need a token.
    """
    if host not in LOOPBACK_NAMES and not allowed:
        return None
    return frozenset([*LOOPBACK_NAMES, *map(str.lower, allowed)])


def refusal_of(host: str, origin: str | None, names: Collection[str]) -> tuple[int, str] | None:
    """Return the HTTP status and reason with which a server refuses a request; None if allowed.

    `names` are the host names that the server accepts. The check keeps out web pages of other
    sites. A page may rebind the DNS name of its own site to this machine, but then the browser
    sends that name as the host. For any other page, the browser sends the page's origin.
    """
    if _without_port(host) not in names:
        shown = f"{host[:SHOWN_MAX]!r}"
        return MISDIRECTED, f"this server does not answer to the host {shown}: see --allow-host"
    if origin is not None and origin.partition("://")[2] != host:
        return FORBIDDEN, "pages of another origin may not call this server"
    return None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
