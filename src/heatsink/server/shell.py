"""What every process that serves HTTP needs: an endpoint and bounded connections.

Sockets are opened first, so that a port in use is reported before anything else. uvicorn's faster
HTTP parser limits neither the size of a request's head (request line and headers) nor the time
until the head is complete. `BoundedConnection` limits both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from socket import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as HttpTools

from heatsink.errors import InvalidSetting
from heatsink.primitives.connections import (
    LOOPBACK_NAMES,
    NOT_HTTP,
    Bounded,
    ConnectionLimits,
    Crowd,
    listen,
    names_of,
    within_files,
)

from .api.metrics import PROMETHEUS, Metrics
from .api.problems import MEDIA_TYPE, Refusal, encoded, problem_of
from .api.requests import CallerCheck, Scope, Token

Page = Callable[[], Response]
FEW = ConnectionLimits(connections=1_000)  # enough for health checks and Prometheus
FEW_GRACE_S = 5.0


@dataclass(frozen=True)
class Endpoint:
    """The address where a process serves HTTP, and the callers that it accepts.

    An address that other machines can reach requires at least one token. `flag` is the command-line
    option that sets the port. With `is_shared`, several processes may listen on the port.
    """

    host: str
    port: int
    tokens: tuple[Token, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    limits: ConnectionLimits = FEW
    grace_s: float = FEW_GRACE_S
    flag: str = "--port"
    is_shared: bool = False

    def __post_init__(self) -> None:
        check_reach(self.host, self.tokens)

    @property
    def guard(self) -> CallerCheck:
        return CallerCheck(self.tokens, names_of(self.host, self.allow_hosts))

    @contextmanager
    def listening(self) -> Iterator[list[socket]]:
        """Open the listening sockets, yield them, and close them at the end of the block."""
        listeners = listen(self.host, self.port, self.flag, self.is_shared)
        try:
            yield listeners
        finally:
            for listener in listeners:
                listener.close()

    def server(self, app: ASGIApp, on_end: Callable[[], object] = lambda: None) -> Server:
        """Return an HTTP server for `app`.

        When the server is told to end, it calls `on_end`. After that, requests in progress have
        `grace_s` to finish.
        """
        return Server(configured(app, self.limits, self.grace_s), on_end)


def check_reach(host: str, tokens: Sequence[Token]) -> None:
    if host and host.strip("0123456789.") == "" and not _is_address(host):
        raise InvalidSetting(f"host {host!r} is no such address: use 127.0.0.1", field="host")
    if host not in LOOPBACK_NAMES and not tokens:
        raise InvalidSetting(
            f"host {host!r} is reachable from outside: set --token, or --host 127.0.0.1",
            field="host",
        )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def address_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class BoundedConnection(HttpTools, Bounded):
    """uvicorn's HTTP connection, with limits on the size and the duration of a request's head.

    uvicorn's own timer closes idle connections.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.enter()

    def give_up(self) -> None:
        self.connections.discard(self)
        super().give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        was_in_head = self.in_head
        super().data_received(data)
        self.heard(len(data), was_in_head)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.begin_head()

    def on_url(self, url: bytes) -> None:
        self.count_url(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.count_header(name, value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.end_head()
        self.keep()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unsent = float("inf")
        if not self.pipeline and not self.transport.is_closing():
            self.release()

    def timeout_keep_alive_handler(self) -> None:
        self.close_if_stuck(self.loop.time())
        if self in self.crowd.all:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        too_large = self.head_refusal()
        self.refuse(431 if too_large else NOT_HTTP, too_large or "the request is not HTTP")

    def refuse(self, status: int, detail: str) -> None:
        if self.transport.is_closing():
            return
        body = encoded(problem_of(Refusal(status, detail)))
        kind, phrase = MEDIA_TYPE.decode(), HTTPStatus(status).phrase
        head = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def configured(app: ASGIApp, limits: ConnectionLimits, grace_s: float) -> uvicorn.Config:
    """Return a uvicorn configuration with `limits` on connections.

    When the server stops, requests in progress have `grace_s` to finish.
    """
    crowd = Crowd(within_files(limits), closes_idle=False)
    connection: Any = type("BoundedConnection", (BoundedConnection,), {"crowd": crowd})
    return uvicorn.Config(
        app,
        http=connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=max(int(limits.idle_s), 1),
        timeout_graceful_shutdown=max(int(grace_s), 1),
    )


def plain_app(pages: Mapping[str, tuple[Scope | None, Page]], guard: CallerCheck) -> Starlette:
    """Return an application with a few pages, each with the scope that its callers need."""

    def answering(scope: Scope | None, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            guard.check(dict(request.headers.raw), scope)
            return page()

        return answer

    async def refuse(_: Request, refusal: Exception) -> Response:
        assert isinstance(refusal, Refusal)
        headers = {name.decode(): value.decode() for name, value in refusal.headers}
        return PlainTextResponse(f"{refusal}\n", refusal.status, headers)

    routes = [Route(path, answering(scope, page)) for path, (scope, page) in pages.items()]
    return Starlette(routes=routes, exception_handlers={Refusal: refuse})


def health_app(
    ready: Callable[[], Mapping[str, object]], metrics: Metrics, guard: CallerCheck
) -> Starlette:
    """Return the app with /healthz (the process runs), /readyz and /metrics.

    `ready` returns the body of /readyz. Its field `ready` decides between 200 and 503.
    """

    def healthz() -> Response:
        return PlainTextResponse("ok\n")

    def readyz() -> Response:
        body = ready()
        return JSONResponse(body, 200 if body["ready"] else 503)

    pages = {"/healthz": (None, healthz), "/readyz": (None, readyz)}
    return plain_app({**pages, "/metrics": ("read", metrics_page(metrics))}, guard)


def metrics_page(metrics: Metrics) -> Page:
    return lambda: PlainTextResponse(metrics.text(), media_type=PROMETHEUS)


class Server(uvicorn.Server):
    """A uvicorn server that stops gracefully at the first signal, and immediately at the second.

    The process's own signal handler calls `end`. uvicorn's handlers are off, because uvicorn raises
    the signals again when it ends, and then our clean-up would not run. The first call of `end`
    calls `on_end`, which ends event streams: open streams would keep the server from stopping.
    """

    def __init__(self, config: uvicorn.Config, on_end: Callable[[], object] = lambda: None) -> None:
        super().__init__(config)
        self._on_end = on_end

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        if not self.should_exit:
            self._on_end()
        self.force_exit = self.should_exit
        self.should_exit = True


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return a function that makes uvloop's event loop, or None if uvloop is not installed.

    uvloop makes servers with many HTTP connections faster. Workers and the emulator gain nothing.
    """
    try:
        import uvloop
    except ImportError:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return made
