"""`heatsink coordinator`: decides for a fleet. Run several: one leads, the others stand by."""

from __future__ import annotations

import asyncio
import hmac
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from heatsink.client.heatsink import Heatsink
from heatsink.client.status import Status
from heatsink.errors import InvalidSetting

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


def check_address(host: str, token: str | None) -> None:
    """Beyond this machine nothing is served without a token."""
    if host not in LOOPBACK and not token:
        raise InvalidSetting(f"host {host!r} is reachable from outside: set --token, or 127.0.0.1")


class Metrics:
    """No key is ever a label: their number is not ours to bound."""

    def __init__(self, read: Callable[[], Status]) -> None:
        self._read = read
        self._registry = CollectorRegistry()
        self._gauges = {
            name: Gauge(f"heatsink_{name}", text, registry=self._registry)
            for name, text in METRICS.items()
        }

    def text(self) -> bytes:
        status = self._read()
        for name, gauge in self._gauges.items():
            gauge.set(float(getattr(status, name)))
        return generate_latest(self._registry)


def health_app(read: Callable[[], Status], token: str | None) -> Starlette:
    """/healthz: the process answers; /readyz: its view is fresh; /metrics: for Prometheus."""
    metrics = Metrics(read)

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


async def run_coordinator(client: Heatsink, host: str, port: int, token: str | None) -> None:
    """Until it is told to stop; then the lease is given back, so that a standby leads at once."""
    check_address(host, token)
    async with client as heatsink:
        app = health_app(heatsink.status, token)
        server = _Server(uvicorn.Config(app, host, port, log_level="warning"))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, server.end)
        await server.serve()


class _Server(uvicorn.Server):
    """Ends when it is told to, and leaves the rest of the farewell to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        self.should_exit = True
