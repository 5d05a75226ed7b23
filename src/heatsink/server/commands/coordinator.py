"""`heatsink coordinator`: decides for a fleet. Run several: one leads, the others stand by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from socket import socket
from typing import Any

from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response

from heatsink.client.connect import connect
from heatsink.client.heatsink import Heatsink
from heatsink.client.prometheus import QueueCollector, StatusCollector
from heatsink.client.status import Status
from heatsink.client.urls import open_stores
from heatsink.errors import InvalidSetting, Unavailable
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.connections import LOOPBACK_NAMES, ConnectionLimits, names_of
from heatsink.primitives.ids import IdScheme, Uuid7, scheme_named
from heatsink.server.api.metrics import PROMETHEUS, Metrics
from heatsink.server.api.requests import Guard, token_of
from heatsink.server.shell import (
    FEW,
    FEW_GRACE_S,
    Ending,
    Server,
    configured,
    listen,
    plain_app,
    tell,
    until_signal,
)


@dataclass(frozen=True)
class Endpoints:
    """Where the process serves /healthz, /readyz and /metrics; other machines need a token."""

    host: str
    port: int
    token: str | None
    allow_hosts: tuple[str, ...] = ()
    limits: ConnectionLimits = FEW

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK_NAMES and not self.token:
            raise InvalidSetting(
                f"host {self.host!r} is reachable from outside: set --token, or 127.0.0.1",
                field="host",
            )

    @property
    def guard(self) -> Guard:
        tokens = [token_of("read", self.token)] if self.token else []
        return Guard(tokens, names_of(self.host, self.allow_hosts))


def check_store(url: str) -> None:
    """Refuse memory://: the coordinator would be alone on its store."""
    if url.startswith("memory:"):
        raise InvalidSetting(
            "memory:// is private to its process: give --store the sqlite:// or dynamodb:// "
            "store of your app servers"
        )


def health_app(read: Callable[[], Status], guard: Guard, *others: Collector) -> Starlette:
    """/healthz: the process answers; /readyz: its view is fresh; /metrics: for Prometheus."""
    metrics = Metrics(*others, StatusCollector(read))

    def healthz() -> Response:
        return PlainTextResponse("ok\n")

    def readyz() -> Response:
        status = read()
        body = {"ready": status.ready, "leads": status.leads, "version": status.version}
        return JSONResponse(body, 200 if status.ready else 503)

    def show_metrics() -> Response:
        return PlainTextResponse(metrics.text(), media_type=PROMETHEUS)

    pages = {"/healthz": (None, healthz), "/readyz": (None, readyz)}
    return plain_app({**pages, "/metrics": ("read", show_metrics)}, guard)


async def coordinate(
    store: str, endpoints: Endpoints, noted: Sequence[int] = (), **settings: Any
) -> None:
    """Run a coordinator; `settings` are those of `connect`. A port in use is reported first."""
    listeners = listen(endpoints.host, endpoints.port)
    try:
        with until_signal(noted) as ending:
            ids = await ids_of(store, SystemClock())
            client = connect(store, ids=ids, **settings)
            scales_workers = bool(settings.get("queue"))
            await run_coordinator(client, listeners, endpoints, ending, scales_workers)
    finally:
        for listener in listeners:
            listener.close()
    tell("stopped", "stopped; if this coordinator led, another one can lead now")


async def ids_of(url: str, clock: Clock) -> IdScheme:
    """The kind of ids in a store; the default for a new store."""
    stores = open_stores(url, clock)
    try:
        await stores.open()
        return scheme_named((await stores.registry.meta()).meta.id_scheme)
    except Unavailable:  # no registry yet; `connect` reports any other cause
        return Uuid7()
    finally:
        await stores.close()


async def run_coordinator(
    client: Heatsink,
    listeners: list[socket],
    endpoints: Endpoints,
    ending: Ending,
    scales_workers: bool = False,
) -> None:
    """Run until a signal, then release the lease, so that a standby leads at once."""
    async with client as heatsink:
        if scales_workers:
            await heatsink.bulk.open()
        watch = heatsink.queue_watch
        others = [QueueCollector(lambda: watch.latest)] if watch else []
        app = health_app(heatsink.status, endpoints.guard, *others)
        ending.server = Server(configured(app, endpoints.limits, FEW_GRACE_S))
        for listener in listeners:
            _tell_where(*listener.getsockname()[:2])
        await ending.server.serve(listeners)


def _tell_where(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    where = f"/healthz, /readyz and /metrics are at http://{shown}:{port}"
    tell("started", f"this coordinator stands by; {where}", port=port)
