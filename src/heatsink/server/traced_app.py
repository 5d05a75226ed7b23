"""OpenTelemetry spans of HTTP requests.

If a request names the caller's span, the span of the request becomes a child of the caller's span.
"""

from __future__ import annotations

from functools import partial

from opentelemetry.propagate import extract
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, get_tracer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heatsink import __version__

from .api.app import ROUTE


class TracedApp:
    """Records a span for each request to another ASGI application.

    That application stores the label of the request's route in the ASGI scope. The label becomes
    the name of the span.
    """

    def __init__(self, app: ASGIApp, provider: TracerProvider | None = None) -> None:
        self._app = app
        self._span = get_tracer("heatsink", __version__, provider).start_as_current_span

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        about = {"http.request.method": scope["method"], "url.path": scope["path"]}
        with self._span(
            scope["method"], context=extract(headers), kind=SpanKind.SERVER, attributes=about
        ) as span:
            try:
                await self._app(scope, receive, partial(_send, send, span))
            finally:
                _name(span, scope.get(ROUTE, ""))


async def _send(send: Send, span: Span, message: Message) -> None:
    if message["type"] == "http.response.start":
        status = message["status"]
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
    await send(message)


def _name(span: Span, route: str) -> None:
    path = route.partition(" ")[2]
    if path:
        span.update_name(route)
        span.set_attribute("http.route", path)
