"""What every process that serves HTTP needs: an endpoint, bounded connections, signals and logs.

Sockets are opened first, so that a port in use is reported before anything else. uvicorn's faster
HTTP parser limits neither the size of a request's head (request line and headers) nor the time
until the head is complete. `BoundedConnection` limits both.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from socket import socket
from typing import Any

import click
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
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
from .api.requests import Guard, Scope, Token

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Page = Callable[[], Response]
FEW = ConnectionLimits(connections=1_000)  # enough for health checks and Prometheus
FEW_GRACE_S = 5.0
HUMAN = "%(asctime)s %(levelname)-7s %(message)s"
INDENT = "  "
_encode = msgspec.json.Encoder(enc_hook=str).encode
serving = logging.getLogger("heatsink.serve")


@dataclass(frozen=True)
class Endpoint:
    """The address where a process serves HTTP, and the callers that it accepts.

    An address that other machines can reach requires at least one token. `flag` is the command-line
    option that sets the port.
    """

    host: str
    port: int
    tokens: tuple[Token, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    limits: ConnectionLimits = FEW
    grace_s: float = FEW_GRACE_S
    flag: str = "--port"

    def __post_init__(self) -> None:
        check_reach(self.host, self.tokens)

    @property
    def guard(self) -> Guard:
        return Guard(self.tokens, names_of(self.host, self.allow_hosts))

    @contextmanager
    def listening(self) -> Iterator[list[socket]]:
        """Open the listening sockets, yield them, and close them at the end of the block."""
        listeners = listen(self.host, self.port, self.flag)
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
    if host not in LOOPBACK_NAMES and not tokens:
        raise InvalidSetting(
            f"host {host!r} is reachable from outside: set --token, or --host 127.0.0.1",
            field="host",
        )


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


def plain_app(pages: Mapping[str, tuple[Scope | None, Page]], guard: Guard) -> Starlette:
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


class Ending:
    """Ends a service when a signal arrives.

    If the service has set `stop`, the signal calls `stop`. Before that, while the service still
    starts, the signal cancels its task. If a library swallows the cancellation, `stop` is called as
    soon as the service sets it.
    """

    def __init__(self, starting: asyncio.Task[Any]) -> None:
        self._stop: Callable[[], object] | None = None
        self.cancelled = False
        self.number: int | None = None
        """The signal that came first."""
        self._starting = starting

    @property
    def stop(self) -> Callable[[], object] | None:
        return self._stop

    @stop.setter
    def stop(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        if self.number is not None:
            stop()

    def end(self, number: int) -> None:
        self.number = self.number or number
        if self._stop is not None:
            self._stop()
        elif not self.cancelled:
            self.cancelled = self._starting.cancel()


@contextmanager
def until_signal(noted: Sequence[int] = ()) -> Iterator[Ending]:
    """Run the block until SIGINT or SIGTERM arrives, then let the block clean up.

    Yields the `Ending` on which a service sets `stop`. `noted` are signals that arrived before the
    event loop ran: see `noting_signals`.
    """
    starting, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert starting is not None
    ending = Ending(starting)
    for number in SIGNALS:
        loop.add_signal_handler(number, ending.end, number)
    if noted:
        ending.end(noted[0])
    try:
        yield ending
    except asyncio.CancelledError:
        if not ending.cancelled or starting.uncancel():
            raise


def default_signals() -> None:
    """Restore the default signal handlers: the next signal then ends this process immediately."""
    for number in SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)


@contextmanager
def noting_signals() -> Iterator[Sequence[int]]:
    """Yield a list that collects the signals which arrive during the block.

    Use it before an event loop can handle signals, and pass the list to `until_signal`.
    """
    noted: list[int] = []
    before = {number: signal.signal(number, lambda n, _: noted.append(n)) for number in SIGNALS}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_service(service: Callable[[Ending], Awaitable[None]]) -> None:
    """Run a service until it ends or a signal ends it.

    Raises KeyboardInterrupt if the signal was SIGINT (Ctrl-C).
    """
    if run(service) == signal.SIGINT:
        raise KeyboardInterrupt


def run(
    service: Callable[[Ending], Awaitable[None]],
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int | None:
    """Run a service until it ends or a signal ends it.

    Returns the number of the signal, or None if no signal arrived. A signal ends the service even
    if it arrives before the event loop runs. `new_loop` makes the event loop; None means asyncio's.
    """

    async def until_ended(noted: Sequence[int]) -> int | None:
        with until_signal(noted) as ending:
            await service(ending)
        return ending.number

    with noting_signals() as noted, asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(until_ended(noted))


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes uvloop's event loop, or None if uvloop is not installed.

    It makes servers of many HTTP connections faster. Workers and the emulator gain nothing.
    """
    try:
        import uvloop
    except ImportError:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return made


def one_line(text: str) -> str:
    """Escape every character that ends a line, controls a terminal or hides other characters."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


class TextLines(logging.Formatter):
    """Formats each log record as one line of text, followed by an indented traceback if it has one.

    Messages contain keys and other text from clients. Line breaks in messages are escaped, so that
    a client cannot forge a record.
    """

    def __init__(self) -> None:
        super().__init__(HUMAN)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 (logging's name)
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(INDENT + one_line(line) for line in text.split("\n"))


class JsonLines(logging.Formatter):
    """Formats each log record as one JSON object on one line.

    The `event` and the `fields` that are passed as `extra={"event": …, "fields": {…}}` become
    members of the object.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", "log"),
            "message": _utf8(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = _utf8(self.formatException(record.exc_info))
        return _encode(line).decode()


def _utf8(text: str) -> str:
    """Escape lone surrogates, which JSON cannot hold."""
    return text.encode(errors="backslashreplace").decode()


def set_up(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(
        logging.ERROR
    )  # a client's bad request is not worth a line
    for name in ("heatsink.serve", "heatsink.audit", "heatsink.lead"):
        logging.getLogger(name).setLevel(logging.INFO)


def announce(as_json: bool, event: str, message: str, **fields: Any) -> None:
    """Announce that the process runs: as text on standard output, or as a JSON log line."""
    if as_json:
        tell(event, message, **fields)
    else:
        click.echo(message)


def tell(event: str, message: str, **fields: Any) -> None:
    serving.info(message, extra={"event": event, "fields": fields})
