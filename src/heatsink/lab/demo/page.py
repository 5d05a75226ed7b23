"""The demo as a live page on this machine, with the dashboard of its Heatsink beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from socket import socket

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from heatsink.errors import InvalidSetting
from heatsink.server.api.app import App
from heatsink.server.dashboard import SafeHeaders, make_pages
from heatsink.server.process import ServeSettings, running_app
from heatsink.server.shell import Ending, Endpoint, Server

from .acts import find_act
from .stage import Stage
from .traffic import SHAPES
from .world import DemoWorld

PATH = "/demo"
STATIC = Path(__file__).parent / "static"


def make_site(stage: Stage) -> dict[str, ASGIApp]:
    """All that is served besides the API, by the first part of its path."""

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
        """Start a run; only the demo's own page may, no other site open in the browser."""
        if request.headers.get("origin") != f"http://{request.headers['host']}":
            return PlainTextResponse("only the demo's own page may do that", status_code=403)
        shape = request.query_params.get("shape") or None
        if shape is not None and shape not in SHAPES:
            return PlainTextResponse(f"shape must be {' or '.join(SHAPES)}", status_code=400)
        try:
            act = find_act(request.query_params.get("act", "1"))
        except InvalidSetting as error:
            return PlainTextResponse(str(error), status_code=400)
        if not stage.start(act.name, shape):
            return PlainTextResponse("this act is running already", status_code=409)
        return Response(status_code=204)

    return run


async def _as_sse(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for event in events:
        yield b"data: " + event + b"\n\n"


def make_server(app: App, stage: Stage, endpoint: Endpoint) -> Server:
    """A server that ends the viewers' streams before it waits for their connections to close."""

    def end_streams() -> None:
        stage.end()
        app.end_streams()

    return endpoint.server(app, end_streams)


async def serve(
    world: DemoWorld, stage: Stage, endpoint: Endpoint, listeners: list[socket], ending: Ending
) -> None:
    """Serve until a signal."""
    settings = ServeSettings(data=Path())
    async with running_app(world.hs, settings, world.clock, pages=make_site(stage)) as app:
        server = make_server(app, stage, endpoint)
        ending.stop = server.end
        try:
            await server.serve(sockets=listeners)
        finally:
            await stage.close()
