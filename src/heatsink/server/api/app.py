"""The ASGI application: find the route, check the caller, decode, call, encode.

Streams use Starlette's responses. All other responses are sent directly, since each layer between
a request and its handler slows down every append.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heatsink.primitives.retry import retrying_for
from heatsink.primitives.validation import what_is_wrong

from .docs_page import SERVER, docs_page
from .openapi import document
from .problems import INVALID, NOTHING, Refusal, encoded, headers_of, problem_of
from .requests import (
    CLOSE,
    ApiCall,
    CallerCheck,
    Gone,
    Reply,
    Route,
    RouteTable,
    Service,
    check_length,
    check_uncompressed,
    read_body,
    read_json,
)
from .shapes import NoQuery
from .table import ROUTES

audit = logging.getLogger("heatsink.audit")
logger = logging.getLogger("heatsink.api")
JSON = (b"content-type", b"application/json")
NOSNIFF = (b"x-content-type-options", b"nosniff")
NO_CACHE = (b"cache-control", b"no-cache")
READ_RETRIES_S = 2.0  # then whoever looks hears that the queue does not answer
NOBODY = "nobody"  # the caller in the audit log if the token was not accepted
DOCS = "/docs"
PAGE_HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"default-src 'none'"),
    NOSNIFF,
    NO_CACHE,
)
NO_PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>No such page</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
</head><body><main><h1>There is no page at this address</h1>
<p>Go to the <a href="/">dashboard</a> or to the <a href="/docs">API</a>.</p></main></body></html>
"""
PLAIN_HOST = re.compile(rb"[\w.:\[\]-]+")
JSON_HEADER = "content-type: application/json"
ELSEWHERE = "elsewhere"  # the metrics label of requests without a route
ROUTE = "heatsink.route"  # the name of the route in a request's ASGI scope
Headers = list[tuple[bytes, bytes]]
_encode = msgspec.json.Encoder().encode


class App:
    """The ASGI application of the HTTP API.

    `pages` are other applications, such as the dashboard, by the first segment of their paths.
    """

    def __init__(
        self, service: Service, guard: CallerCheck, pages: Mapping[str, ASGIApp] | None = None
    ) -> None:
        self._service = service
        self._guard = guard
        self._router = RouteTable(ROUTES)
        self._lines = {route: _Line(route, service) for route in ROUTES}
        described = document(ROUTES)
        self._pages = {**static_pages(described), **(pages or {})}
        visibility = b"private" if guard.needs_token else b"public"
        cache = service.cache
        kept = f"max-age={cache.fresh_for}, stale-while-revalidate={cache.stale_for}".encode()
        self._absorbed = (b"cache-control", visibility + b", " + kept)
        self._streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _no_lifespan(receive, send)
        if scope["type"] != "http":
            return None
        counts, started_s = self._service.counts, self._service.clock.monotonic_s()
        sent = _Sent(send)
        counts.in_flight += 1
        label = ELSEWHERE
        try:
            label = scope[ROUTE] = await self._answer(scope, receive, sent)
        finally:
            counts.in_flight -= 1
            counts.count(label, sent.status, self._service.clock.monotonic_s() - started_s)

    def end_streams(self) -> None:
        """End event streams and waiting claims, which would keep the server from stopping."""
        self._service.feed.end()
        self._service.workforce.end_claims()

    async def _answer(self, scope: Scope, receive: Receive, send: _Sent) -> str:
        """Answer a request, with an error response if it fails. Returns the label of the route."""
        line, who = None, NOBODY
        try:
            asked = _Exchange(scope, dict(scope["headers"]), receive, send)
            raw_path = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
            if page := self._pages.get("/" + raw_path[1:].partition("/")[0]):
                self._guard.check(asked.headers, None)
                await page(scope, receive, send)
                return ELSEWHERE
            route, path = self._router.find(scope["method"], raw_path)
            line = self._lines[route]
            who = self._guard.check(asked.headers, route.scope)
            self._check_room(route, scope["method"])
            await self._call(line, path, asked)
        except (Gone, ClientDisconnect):
            pass
        except Exception as error:
            if isinstance(error, Refusal) and error.status == 404 and _is_for_a_page(scope):
                await send.whole(404, list(PAGE_HEADERS), NO_PAGE)
            else:
                await self._refuse(error, line, send)
        if line is None:
            return ELSEWHERE
        if line.route.audited:
            _note(who, scope, send.status)
        return line.label

    def _check_room(self, route: Route, method: str) -> None:
        limits = self._service.limits
        crowded = self._service.counts.in_flight - self._streams > limits.requests
        if crowded and route.scope is not None:  # health checks still pass: busy is healthy
            raise Refusal(503, "too many concurrent requests: retry later", headers=CLOSE)
        if route.stream and method == "HEAD":
            raise Refusal(405, "this path allows GET", headers=((b"allow", b"GET"),))
        if route.stream and self._streams >= limits.streams:
            raise Refusal(503, "too many concurrent streams: retry later", headers=CLOSE)

    async def _call(self, line: _Line, path: dict[str, str], asked: _Exchange) -> None:
        if line.route.stream:
            self._streams += 1
            asked.send.patience_s = self._service.limits.idle_s
            try:
                call = line.decoded(path, b"", asked)
                await self._reply(await line.route.call(call), line.route, asked)
            finally:
                self._streams -= 1
            return
        longest_s = READ_RETRIES_S if line.route.method == "GET" else inf
        try:
            async with asyncio.timeout(self._service.limits.request_s):
                call = line.decoded(path, await line.body(asked), asked)
                with retrying_for(longest_s):
                    reply = await line.route.call(call)
                await self._reply(reply, line.route, asked)
        except TimeoutError:
            raise Refusal(
                503, "timed out; a write may have been applied: retry with the same id"
            ) from None

    async def _reply(self, reply: Reply | Response, route: Route, asked: _Exchange) -> None:
        if isinstance(reply, Response):
            reply.raw_headers.append(NOSNIFF)
            await reply(asked.scope, asked.receive, asked.send)
            return
        body, status = _encode(reply.value), reply.status
        headers = [JSON, NOSNIFF]
        if route.method == "GET":
            tag = b'"' + blake2b(body, digest_size=12).hexdigest().encode() + b'"'
            headers += [(b"etag", tag), self._absorbed if route.absorbed else NO_CACHE]
            if status == 200 and tag in asked.headers.get(b"if-none-match", b""):
                body, status = b"", 304
        await asked.send.whole(status, headers, body)

    async def _refuse(self, error: Exception, line: _Line | None, send: _Sent) -> None:
        if send.status and isinstance(error, TimeoutError | Refusal):
            return  # the client does not read; the answer stays unfinished
        problem = problem_of(error, line.fields if line else ())
        if problem.status == 500:
            logger.error("a request failed", exc_info=error)
        if send.status:
            return
        with suppress(OSError):
            headers = [NOSNIFF, *headers_of(problem, error)]
            await send.whole(problem.status, headers, encoded(problem))


@dataclass(slots=True)
class _Exchange:
    """A request as ASGI passes it, and the object that sends the response."""

    scope: Scope
    headers: dict[bytes, bytes]
    receive: Receive
    send: _Sent


class _Line:
    """A route with everything that can be computed before a request comes."""

    def __init__(self, route: Route, service: Service) -> None:
        self.route = route
        self.label = route.label
        self.fields = route.fields
        self._service = service
        self._limit = service.limits.body_bytes
        self._no_query = NoQuery() if route.query is NoQuery else None
        self._decode = None if route.body is None else msgspec.json.Decoder(route.body).decode

    async def body(self, asked: _Exchange) -> bytes:
        if self._decode is None:
            return b""
        kind = asked.headers.get(b"content-type", b"application/json").partition(b";")[0]
        if kind.strip().lower() != b"application/json":
            raise Refusal(415, f"the body must be JSON: send the header {JSON_HEADER!r}")
        check_uncompressed(asked.headers)
        check_length(asked.headers, self._limit)
        return await read_body(asked.receive, self._limit)

    def decoded(self, path: dict[str, str], body: bytes, asked: _Exchange) -> ApiCall[Any, Any]:
        query, text, kind = self._no_query, asked.scope["query_string"], self.route.query
        value = None
        try:
            if query is None or text:
                query = _query(text, kind)
            if self._decode is not None:
                kind = self.route.body
                value = read_json(self._decode, body)
        except msgspec.ValidationError as error:
            field, words = what_is_wrong(error, kind)
            raise Refusal(400, words, field, title=INVALID) from None
        return ApiCall(self._service, path, query, value, asked.headers, asked.receive)


def _query(text: bytes, kind: type[msgspec.Struct]) -> Any:
    try:
        pairs = parse_qsl(
            text.decode("ascii"), keep_blank_values=True, max_num_fields=50, errors="strict"
        )
    except ValueError:
        raise Refusal(400, "the query string cannot be decoded") from None
    names = [name for name, _ in pairs]
    for name in kind.__struct_fields__:
        if names.count(name) > 1:
            raise Refusal(400, f"{name} is given twice: give it once", name, title=INVALID)
    return msgspec.convert(dict(pairs), kind, strict=False)


class _Sent:
    """Sends a response and remembers its status.

    If `patience_s` is set and the client reads nothing for this time, this raises TimeoutError.
    """

    __slots__ = ("_send", "patience_s", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.patience_s: float | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        if self.patience_s is None:
            await self._send(message)
            return
        async with asyncio.timeout(self.patience_s):
            await self._send(message)

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        self.status = status
        if status != 304:
            headers.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _note(who: str, scope: Scope, status: int) -> None:
    """Write to the audit log who made which call, and the status of the answer."""
    client = scope.get("client")
    what = f"{scope['method']} {scope['path']}"
    extra = {"who": who, "from": client[0] if client else "", "what": what, "status": status}
    audit.info("%s %s → %d", who, what, status, extra={"event": "audit", "fields": extra})


def static_pages(described: dict[str, Any]) -> dict[str, ASGIApp]:
    return {
        path: _Static(path, body, media_type)
        for path, body, media_type in (
            ("/openapi.json", _encode(described), b"application/json"),
            (DOCS, docs_page(described).encode(), b"text/html; charset=utf-8"),
        )
    }


class _Static:
    def __init__(self, path: str, body: bytes, media_type: bytes) -> None:
        self._path = path
        self._body = body
        policy = b"default-src 'none'; style-src 'unsafe-inline'"
        self._headers = [
            (b"content-type", media_type),
            (b"content-security-policy", policy),
            NOSNIFF,
            NO_CACHE,
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        if scope["path"] != self._path:
            raise Refusal(404, NOTHING)
        if scope["method"] not in ("GET", "HEAD"):
            raise Refusal(405, "this path allows GET", headers=((b"allow", b"GET"),))
        body = self._body
        if self._path == DOCS and (address := _address(scope)):
            body = body.replace(SERVER.encode(), address)  # examples to copy for this server
        await _Sent(send).whole(200, list(self._headers), body)


def _is_for_a_page(scope: Scope) -> bool:
    """Return whether a browser asks for a page, and not a program for data."""
    accepts = (value for name, value in scope["headers"] if name == b"accept")
    is_call = scope["method"] != "GET" or scope["path"].startswith("/v1/")
    return not is_call and any(b"text/html" in value for value in accepts)


def _address(scope: Scope) -> bytes | None:
    """Return the address at which the client reached this server; None if it is not known."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) != 1 or not PLAIN_HOST.fullmatch(hosts[0]):
        return None
    return b"%s://%s" % (scope["scheme"].encode(), hosts[0])


async def _no_lifespan(receive: Receive, send: Send) -> None:
    """Acknowledge ASGI lifespan events, and do nothing else.

    The caller of this application opens and closes all that the application needs.
    """
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})
