"""The demo as a live page on this machine, with the dashboard of its Heatsink beside it."""

from __future__ import annotations

from asyncio import FIRST_COMPLETED, Event, ensure_future, gather, wait
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from socket import socket

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from heatsink.errors import InvalidSetting
from heatsink.server.api.app import App
from heatsink.server.dashboard import SafeHeaders, make_pages
from heatsink.server.process import ServeSettings, running_app
from heatsink.server.running import Ending
from heatsink.server.shell import Endpoint

from .acts import find_act
from .stage import Stage
from .traffic import SHAPES, TrafficPlan
from .world import DemoWorld

PATH = "/demo"
STATIC = Path(__file__).parent / "static"
OpenWorld = Callable[[TrafficPlan], AbstractAsyncContextManager[DemoWorld]]


def make_site(stage: Stage) -> dict[str, ASGIApp]:
    """Return the dashboard and the demo's page, by the first segment of their paths."""

    async def index(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def events(_: Request) -> Response:
        return StreamingResponse(_as_sse(stage.follow()), media_type="text/event-stream")

    routes = [
        Route(PATH, index),
        Route(f"{PATH}/events", events),
        Route(f"{PATH}/run", _run(stage), methods=["POST"]),
        Mount(f"{PATH}/static", StaticFiles(directory=STATIC)),
    ]
    site = Starlette(routes=routes, middleware=[Middleware(SafeHeaders)])
    return {**make_pages({PATH: "Demo"}), PATH: site}


def _run(stage: Stage) -> Callable[[Request], Awaitable[Response]]:
    async def run(request: Request) -> Response:
        """Start a run. Only the demo's own page may do this, no other site in the browser."""
        if request.headers.get("origin") != f"http://{request.headers['host']}":
            return PlainTextResponse("only the demo's own page may do that", status_code=403)
        shape = request.query_params.get("shape") or None
        if shape is not None and shape not in SHAPES:
            return PlainTextResponse(f"shape must be {' or '.join(SHAPES)}", status_code=400)
        try:
            act = find_act(request.query_params.get("act", "1"))
        except InvalidSetting as error:
            return PlainTextResponse(str(error), status_code=400)
        smaller = request.query_params.get("smaller") == "1"
        if not stage.start(act.name, shape, smaller):
            return PlainTextResponse("this act is running already", status_code=409)
        return Response(status_code=204)

    return run


async def _as_sse(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for event in events:
        yield b"data: " + event + b"\n\n"


class Front:
    """Passes requests to the application of the current world.

    While one world is replaced by another, requests wait.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._app: App | None = None
        self._shown = Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while self._app is None:
            await self._shown.wait()
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def showing(self, world: DemoWorld) -> AsyncIterator[None]:
        settings, pages = ServeSettings(data=Path()), make_site(self._stage)
        async with running_app(world.hs, settings, world.clock, pages=pages) as app:
            self._app = app
            self._shown.set()
            try:
                yield
            finally:
                self._app = None
                self._shown.clear()
                app.end_streams()

    def end_streams(self) -> None:
        """End all viewers' streams, before the server waits for their connections to close."""
        self._stage.end()
        if self._app is not None:
            self._app.end_streams()


async def _keep_a_world(worlds: OpenWorld, stage: Stage, front: Front, opened: Event) -> None:
    """Keep a world open that fits the stage's plan, and open another one when the plan changes."""
    while True:
        async with worlds(stage.plan) as world, front.showing(world):
            await world.hs.bulk.open()  # starting its server later would delay a running act
            stage.enter(world)
            opened.set()
            await stage.wants_another()


async def serve(
    worlds: OpenWorld,
    stage: Stage,
    endpoint: Endpoint,
    listeners: list[socket],
    ending: Ending,
    started: Callable[[], None],
) -> None:
    """Serve the demo until a signal arrives."""
    front, opened = Front(stage), Event()
    server = endpoint.server(front, front.end_streams)
    keeping = ensure_future(_keep_a_world(worlds, stage, front, opened))
    opening = ensure_future(opened.wait())
    try:
        await wait([keeping, opening], return_when=FIRST_COMPLETED)
        if not keeping.done():
            started()
            ending.stop = server.end
            keeping.add_done_callback(lambda _: server.end())  # no world, no demo
            await server.serve(sockets=listeners)
        if keeping.done():
            await keeping
    finally:
        await stage.close()
        for task in (opening, keeping):
            task.cancel()
        await gather(opening, keeping, return_exceptions=True)
