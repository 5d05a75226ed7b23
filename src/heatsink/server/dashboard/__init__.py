"""The dashboard of `heatsink serve`: static files that follow the API's events.

Every tab has a URL of its own. All URLs serve the same file, and its script looks at the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heatsink.errors import Misconfigured
from heatsink.primitives.words import pip_install

STATIC = Path(__file__).parent / "static"
TABS = ("/", "/keys", "/bulk", "/reads", "/timelines", "/cluster", "/registry", "/settings")
PLOTLY = "/plotly.min.js"
MORE = "<!-- more pages -->"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class SafeHeaders:
    """Adds headers to every response that forbid inline scripts, other origins, and framing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def plotly_file() -> Path:
    """Return the path of plotly.js in the plotly package. The package is never imported."""
    found = find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise Misconfigured(f"the page needs plotly: {pip_install('server')}")
    return Path(found.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


def make_pages(more: Mapping[str, str] | None = None) -> dict[str, ASGIApp]:
    """Return the dashboard's application under the first segment of each path that it serves.

    `more` are further pages that the dashboard's header links to, by their paths.
    """
    plotly = plotly_file()
    links = "".join(f'<a href="{path}">{name}</a>' for path, name in (more or {}).items())
    page = (STATIC / "index.html").read_text().replace(MORE, links)

    async def index(_: Request) -> Response:
        return HTMLResponse(page)

    async def plotly_script(_: Request) -> Response:
        return FileResponse(plotly, media_type="text/javascript")

    routes = [
        *(Route(tab, index) for tab in TABS),
        Route(PLOTLY, plotly_script),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    site = Starlette(routes=routes, middleware=[Middleware(SafeHeaders)])
    return dict.fromkeys([*TABS, PLOTLY, "/static"], site)
