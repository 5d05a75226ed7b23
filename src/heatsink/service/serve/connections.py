"""HTTP connections with bounds: the head of a request in size and time, and how many there are.

uvicorn bounds neither for the faster of its parsers. Of too many connections those that idle the
longest have to go, so that a crowd of silent ones cannot keep the others out.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as HttpTools

from heatsink.service.api.limits import Limits
from heatsink.service.api.problems import MEDIA_TYPE, Refusal, encoded, problem_of

FILES_BESIDES = 200  # of the store, the queue and its partitions
PHRASES = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class _HeadTooLarge(Exception):
    """Ends the parser's work."""


class Connection(HttpTools):
    limits: Limits
    idle: dict[Connection, None]
    """Without a request under way; the longest idle first."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._in_head = True
        self._deadline: asyncio.TimerHandle | None = None
        self._unsent = float("inf")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()
        self.idle[self] = None
        if len(self.connections) > self.limits.connections:
            next(iter(self.idle)).give_up()

    def give_up(self) -> None:
        """At once, also for the count: the loop hears of it only after it took more in."""
        self.idle.pop(self, None)
        self.connections.discard(self)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.limits.header_bytes:
            self._refuse(431)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._url_and_headers = 0
        if not self._in_head:
            self._begin_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._url_and_headers += size
        if self._url_and_headers > self.limits.header_bytes:
            raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        self._end_head()
        self.idle.pop(self, None)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unsent = float("inf")
        if not self.pipeline and not self.transport.is_closing():
            self.idle[self] = None

    def timeout_keep_alive_handler(self) -> None:
        """A reader that still takes the answer has time; from one that does not, nothing is due."""
        left = self.transport.get_write_buffer_size()
        if 0 < left < self._unsent:
            self._unsent = left
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            self.transport.abort()

    def _begin_head(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._deadline = self.loop.call_later(self.limits.header_s, self._too_slow)

    def _end_head(self) -> None:
        self._in_head = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self._head_bytes:
            self._refuse(408)
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        too_large = self._url_and_headers > self.limits.header_bytes
        self._refuse(431 if too_large else 400)

    _url_and_headers = 0

    def _refuse(self, status: int) -> None:
        if self.transport.is_closing():
            return
        details = {
            400: "this is not HTTP",
            408: f"the request's head took longer than {self.limits.header_s:g} s",
            431: f"the request's head is larger than {self.limits.header_bytes:,} bytes",
        }
        body = encoded(problem_of(Refusal(status, details[status])))
        head = (
            f"HTTP/1.1 {status} {PHRASES[status]}\r\ncontent-type: {MEDIA_TYPE.decode()}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def within_files(limits: Limits) -> Limits:
    """As many connections as this process may have files open, after asking for enough.

    A server without a file left for the next connection would keep everybody waiting.
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


def connections_within(limits: Limits) -> type[Connection]:
    """The class of connections for one server."""
    return type("BoundedConnection", (Connection,), {"limits": limits, "idle": {}})
