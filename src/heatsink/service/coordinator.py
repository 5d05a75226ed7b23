"""`heatsink coordinator`: decides for a fleet. Run several: one leads, the others stand by."""

from __future__ import annotations

import asyncio
import hmac
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socket import socket
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from heatsink.client.connect import connect
from heatsink.client.heatsink import Heatsink
from heatsink.client.status import Status
from heatsink.client.urls import open_stores
from heatsink.clock import Clock, SystemClock
from heatsink.errors import InvalidSetting, Unavailable
from heatsink.ids import IdScheme, Uuid7, scheme_named

from .listening import listen
from .queue_metrics import QueueCollector
from .serve.logs import tell

LOOPBACK = ("127.0.0.1", "::1", "localhost")
METRICS = {
    "leads": "1 while this coordinator leads",
    "term": "The leader's term",
    "version": "Version of the registry this process has applied",
    "horizon_s": "Seconds by which the view's horizon is ahead of now",
    "servers": "Servers that report heat",
    "spread_keys": "Keys with more than one bucket now",
    "extra_buckets": "Buckets beyond the first of every key",
    "pinned_keys": "Keys pinned by an operator",
}


@dataclass(frozen=True)
class Endpoints:
    """Where /healthz and the others are. Beyond this machine nothing is served without a token."""

    host: str
    port: int
    token: str | None

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.token:
            raise InvalidSetting(
                f"host {self.host!r} is reachable from outside: set --token, or 127.0.0.1"
            )


def check_store(url: str) -> None:
    """A coordinator alone on its store would decide for nobody."""
    if url.startswith("memory:"):
        raise InvalidSetting(
            "memory:// is private to its process: give --store the sqlite:// or dynamodb:// "
            "store of your app servers"
        )


class Metrics:
    """No key is ever a label: their number is not ours to bound."""

    def __init__(self, read: Callable[[], Status], *others: Collector) -> None:
        self._read = read
        self._registry = CollectorRegistry()
        for other in others:
            self._registry.register(other)
        self._gauges = {
            name: Gauge(f"heatsink_{name}", text, registry=self._registry)
            for name, text in METRICS.items()
        }

    def text(self) -> bytes:
        status = self._read()
        for name, gauge in self._gauges.items():
            gauge.set(float(getattr(status, name)))
        return generate_latest(self._registry)


def health_app(read: Callable[[], Status], token: str | None, *others: Collector) -> Starlette:
    """/healthz: the process answers; /readyz: its view is fresh; /metrics: for Prometheus."""
    metrics = Metrics(read, *others)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        status = read()
        body = {"ready": status.ready, "leads": status.leads, "version": status.version}
        return JSONResponse(body, 200 if status.ready else 503)

    async def show_metrics(request: Request) -> Response:
        if token and not _is_allowed(request, token):
            return PlainTextResponse("a bearer token is needed\n", 401)
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", show_metrics)]
    return Starlette(routes=routes)


def _is_allowed(request: Request, token: str) -> bool:
    given = request.headers.get("authorization", "")
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


async def coordinate(store: str, endpoints: Endpoints, **settings: Any) -> None:
    """`settings` are those of `connect`. Whether the port is free shows before all else."""
    listeners = listen(endpoints.host, endpoints.port)
    try:
        ids = await ids_of(store, SystemClock())
        client = connect(store, ids=ids, **settings)
        await run_coordinator(client, listeners, endpoints.token, bool(settings.get("queue")))
    finally:
        for listener in listeners:
            listener.close()


async def ids_of(url: str, clock: Clock) -> IdScheme:
    """The kind of ids that a store holds; of a new one, the default."""
    stores = open_stores(url, clock)
    try:
        await stores.open()
        return scheme_named((await stores.registry.meta()).meta.id_scheme)
    except Unavailable:  # no registry yet; if it is anything else, `connect` will say so
        return Uuid7()
    finally:
        await stores.close()


async def run_coordinator(
    client: Heatsink, listeners: list[socket], token: str | None, scales_workers: bool = False
) -> None:
    """Until it is told to stop; then the lease is given back, so that a standby leads at once."""
    async with client as heatsink:
        if scales_workers:
            await heatsink.bulk.open()
        watch = heatsink.queue_watch
        others = [QueueCollector(lambda: watch.latest)] if watch else []
        app = health_app(heatsink.status, token, *others)
        server = _Server(uvicorn.Config(app, log_level="warning"))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, server.end)
        for listener in listeners:
            _tell_where(*listener.getsockname()[:2])
        await server.serve(listeners)
    tell("stopped", "stopped; if this coordinator led, another one may now")


def _tell_where(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    where = f"/healthz, /readyz and /metrics are at http://{shown}:{port}"
    tell("started", f"this coordinator stands by; {where}", port=port)


class _Server(uvicorn.Server):
    """Ends when it is told to, and leaves the rest of the farewell to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        self.should_exit = True
