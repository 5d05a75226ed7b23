"""`heatsink serve`: the whole system in one process, from its start to its shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from socket import socket

import msgspec
from starlette.types import ASGIApp

from heatsink.bulk.actions import Actions
from heatsink.bulk.settings import BulkSettings
from heatsink.client.connect import connect
from heatsink.client.heatsink import Heatsink
from heatsink.client.prometheus import WorkCollector
from heatsink.cluster.rules import SlotSettings
from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import Clock
from heatsink.primitives.ids import IdScheme, Uuid7
from heatsink.spread.policy import BucketRules

from .api.app import App
from .api.calls.operations import Recent
from .api.calls.system import make_feed
from .api.metrics import RequestCollector, metrics_of
from .api.requests import CacheRules, RequestCounts, RequestLimits, Service, Token
from .running import Ending, tell
from .shell import Endpoint, address_of, check_reach
from .tracing import traced, tracing_hooks
from .workforce import Workforce

DATABASE, QUEUE = "heatsink.db", "queue"


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `heatsink serve`.

    If `store` is None, the server keeps a SQLite store in the folder `data` and, unless `queue` is
    set, an embedded queue.
    """

    data: Path
    store: str | None = None
    queue: str | None = None
    news: str | None = None
    host: str = "127.0.0.1"
    port: int = 8321
    coordinate: bool = True
    work: bool = True
    name: str = ""
    ids: IdScheme = msgspec.field(default_factory=Uuid7)
    rules: BucketRules = BucketRules()
    tokens: tuple[Token, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    cache: CacheRules = CacheRules()
    limits: RequestLimits = RequestLimits()
    bulk: BulkSettings = msgspec.field(default_factory=BulkSettings)
    cluster: str = ""
    slots: SlotSettings = SlotSettings()
    tracing: bool = False

    def __post_init__(self) -> None:
        check_reach(self.host, self.tokens)

    @property
    def endpoint(self) -> Endpoint:
        limits = self.limits
        return Endpoint(self.host, self.port, self.tokens, self.allow_hosts, limits, limits.grace_s)

    @property
    def has_queue(self) -> bool:
        return self.queue is not None or not (self.store or "").startswith("dynamodb:")


def make_client(settings: ServeSettings, clock: Clock, rng: Random) -> Heatsink:
    store, queue = settings.store, settings.queue
    hooks = tracing_hooks(settings.tracing)
    if store is None:
        try:
            settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidSetting(
                f"--data must be a folder that you can write to: {error}"
            ) from None
        folder = settings.data.resolve()
        store, queue = f"sqlite:///{folder}/{DATABASE}", queue or f"embedded:///{folder}/{QUEUE}"
    return connect(
        store,
        news=settings.news,
        queue=queue,
        clock=clock,
        rng=rng,
        coordinate=settings.coordinate,
        name=settings.name,
        ids=settings.ids,
        rules=settings.rules,
        bulk=settings.bulk,
        cluster=settings.cluster,
        slots=settings.slots,
        hooks=hooks,
    )


@asynccontextmanager
async def running_app(
    hs: Heatsink,
    settings: ServeSettings,
    clock: Clock,
    workforce: Workforce | None = None,
    pages: Mapping[str, ASGIApp] | None = None,
) -> AsyncIterator[App]:
    counts = RequestCounts()
    feed, recent = make_feed(hs, clock, counts), Recent(hs, counts, clock)
    staff = workforce or Workforce(hs, clock)
    metrics = metrics_of(hs, RequestCollector(counts), WorkCollector(staff))
    limits, cache = settings.limits, settings.cache
    texts = metrics.text, recent.answer
    service = Service(hs, clock, limits, cache, feed, counts, *texts, staff)
    remembering = asyncio.ensure_future(recent.run())
    try:
        yield App(service, settings.endpoint.guard, pages)
    finally:
        remembering.cancel()
        await asyncio.gather(remembering, return_exceptions=True)
        await feed.close()
        if workforce is None:
            await staff.close()


async def serve(
    settings: ServeSettings,
    listeners: Sequence[socket],
    actions: Actions,
    clock: Clock,
    rng: Random,
    ending: Ending,
    pages: Mapping[str, ASGIApp] | None = None,
) -> None:
    """Run the server until a signal arrives.

    Then the server finishes the requests in progress, finishes claimed items or returns them to the
    queue, and releases the coordinator's lease.
    """
    async with AsyncExitStack() as farewell:
        hs = await farewell.enter_async_context(make_client(settings, clock, rng))
        workforce = await _open_queue(hs, settings, actions, clock)
        if settings.has_queue:
            farewell.push_async_callback(_end_work, workforce)
        app = await farewell.enter_async_context(running_app(hs, settings, clock, workforce, pages))
        on_end = partial(_end_requests, app)
        server = settings.endpoint.server(traced(app, settings.tracing), on_end)
        ending.stop = server.end
        port = listeners[0].getsockname()[1]
        address = address_of(settings.host, port)
        tell("started", f"Heatsink is serving {address} (API: /docs)", port=port)
        await server.serve(sockets=list(listeners))


def _end_requests(app: App) -> None:
    tell("stopping", "stopping: finishing the requests in progress, accepting no new ones")
    app.end_streams()


async def _end_work(workforce: Workforce) -> None:
    if workforce.works:
        tell("worker-stops", "the worker is finishing its items, or returning them to the queue")
    await workforce.close()


async def _open_queue(
    hs: Heatsink, settings: ServeSettings, actions: Actions, clock: Clock
) -> Workforce:
    if not settings.has_queue:
        tell("no-queue", "no --queue is set: bulk actions and timelines are refused")
        return Workforce(hs, clock)
    await hs.bulk.open()
    if not settings.work:
        return Workforce(hs, clock)
    make = partial(hs.worker, actions, grace_s=settings.limits.grace_s)
    workforce = Workforce(hs, clock, make, has_actions=len(actions) > 0)
    workforce.start()
    return workforce
