"""The demo as a live page on this machine: one page, one stream of events, no outside request."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from heatsink.service.dashboard.site import SafeHeaders, plotly_file

from .stage import Stage
from .traffic import SHAPES

HOST = "127.0.0.1"
HOSTS = [HOST, "localhost"]
STATIC = Path(__file__).parent / "static"
SHUTDOWN_S = 2


def make_app(stage: Stage) -> Starlette:
    plotly = plotly_file()

    async def index(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def plotly_script(_: Request) -> Response:
        return FileResponse(plotly, media_type="text/javascript")

    async def events(_: Request) -> Response:
        return StreamingResponse(_as_sse(stage.follow()), media_type="text/event-stream")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await stage.close()

    routes = [
        Route("/", index),
        Route("/plotly.min.js", plotly_script),
        Route("/events", events),
        Route("/run", _run_again(stage), methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)
    return Starlette(routes=routes, middleware=[Middleware(SafeHeaders), hosts], lifespan=lifespan)


def _run_again(stage: Stage) -> Callable[[Request], Awaitable[Response]]:
    async def run(request: Request) -> Response:
        """Only our own page may start a run: any other site the visitor has open may not."""
        if request.headers.get("origin") != f"http://{request.headers['host']}":
            return PlainTextResponse("only the demo's own page may do that", status_code=403)
        shape = request.query_params.get("shape", "ramp")
        if shape not in SHAPES:
            return PlainTextResponse(f"shape must be {' or '.join(SHAPES)}", status_code=400)
        if not stage.start(shape):
            return PlainTextResponse("a run is under way", status_code=409)
        return Response(status_code=204)

    return run


async def _as_sse(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for event in events:
        yield b"data: " + event + b"\n\n"


class Server(uvicorn.Server):
    """Ends the viewers' streams before it waits for their connections to close."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(
            uvicorn.Config(
                make_app(stage),
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_S,
            )
        )
        self._stage = stage

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stage.end()
        super().handle_exit(sig, frame)


async def serve(stage: Stage, listener: socket.socket) -> None:
    await Server(stage).serve(sockets=[listener])
