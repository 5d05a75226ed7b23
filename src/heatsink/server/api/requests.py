"""The path of a request: find its route, check the caller, read the body, count the response.

Paths are matched segment by segment before they are decoded. A key may contain a slash (`%2F`), and
a router that decodes first would take this slash for a separator.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import blake2b
from itertools import combinations
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.responses import Response
from starlette.types import Receive

from heatsink.client.heatsink import Heatsink
from heatsink.client.prometheus import BOUNDS_S
from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import check_number, check_whole
from heatsink.primitives.clock import Clock
from heatsink.primitives.connections import ConnectionLimits, refusal_of
from heatsink.primitives.words import did_you_mean
from heatsink.server.workforce import Workforce

from .feed import Feed
from .problems import NOTHING, UNKNOWN_TOKEN, Refusal
from .shapes import NoQuery, Requests, RequestTotals

RETRY_HEADER = "Idempotency-Key"
ARRAY, LINES, CSV = "application/json", "application/x-ndjson", "text/csv"
RETRY_KEY_MAX = 256
Scope = Literal["read", "work", "operate", "admin"]
SCOPES: dict[Scope, frozenset[Scope]] = {
    "read": frozenset({"read"}),
    "work": frozenset({"work"}),
    "operate": frozenset({"read", "work", "operate"}),
    "admin": frozenset({"read", "work", "operate", "admin"}),
}
"""The scopes of tokens. A token may make the calls that need one of the scopes in its set."""
MIB = 1_024 * 1_024
DIGITS_MAX = 18
NAMES_AT = 3  # paths like /v1/bulk/{name}: what follows is one of a few verbs
PATH_LOOKED_AT = 64  # characters of an unknown path that are compared with ours
CLOSE = ((b"connection", b"close"),)
TOKEN_LENGTH_MIN = 8
CHALLENGE = ((b"www-authenticate", b"Bearer"),)
UNKNOWN = "unknown token: the server was not started with it; check for a typo, or ask its operator"
BINS = len(BOUNDS_S) + 1
DATA = ("/v1/conversations/", "/v1/counters/", "/v1/timelines/")
REFUSED = (429, 503)
Kind = Literal["writes", "reads"]
Query = TypeVar("Query")
Body = TypeVar("Body")
Value = TypeVar("Value")
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_pair, _half = re.compile(_HIGH + _LOW), re.compile(_HIGH + b"|" + _LOW)


@dataclass(frozen=True)
class CacheRules:
    """For how many seconds browsers and CDNs may serve a read as fresh, and then as stale."""

    fresh_for: int = 1
    stale_for: int = 5


class RequestLimits(ConnectionLimits, frozen=True):
    """Limits of requests and connections, set by `--limit NAME=NUMBER`.

    `request_s` limits a whole call. A stream may last longer, but may not pause for longer than
    `idle_s`. `body_bytes` limits a JSON body, `array_bytes` an array of items, `stream_bytes` a
    streamed body.
    """

    body_bytes: int = MIB
    array_bytes: int = 8 * MIB
    stream_bytes: int = 1_024 * MIB
    requests: int = 1_000
    streams: int = 100
    request_s: float = 30.0
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("body_bytes", "array_bytes", "stream_bytes"):
            check_whole(name, getattr(self, name), 1, 2**50)
        for name in ("requests", "streams"):
            check_whole(name, getattr(self, name), 1, 10**7)
        for name in ("request_s", "grace_s"):
            check_number(name, getattr(self, name), 0.01, 86_400)


@dataclass(frozen=True)
class Service:
    """The objects that all handlers of the API use."""

    hs: Heatsink
    clock: Clock
    limits: RequestLimits
    cache: CacheRules
    feed: Feed
    counts: RequestCounts
    metrics: Callable[[], bytes]
    recent: Callable[[], msgspec.Struct]
    workforce: Workforce


@dataclass(slots=True)
class ApiCall(Generic[Query, Body]):
    """One request, checked and decoded."""

    service: Service
    path: Mapping[str, str]
    query: Query
    body: Body
    headers: Mapping[bytes, bytes]
    receive: Receive


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler returns; `value` has the type that the route declares."""

    value: msgspec.Struct
    status: int = 200


Handler = Callable[[ApiCall[Any, Any]], Awaitable[Reply | Response]]


# -- routes ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Route:
    """A route of the API: method, path, handler and rules. With `scope` None anyone may call it.

    `name` is the operation's id in the OpenAPI document. Generated clients use it as the name of a
    function. With `stream` the body is read, or the response sent, in pieces. `statuses` are the
    codes of success. `problems` has the error codes that are special to this route, each with its
    meaning here; an empty text stands for the code's usual meaning. Browsers and CDNs may cache
    `absorbed` reads for a moment. `audited` calls are logged. `retry_key` describes the header
    Idempotency-Key; empty if the call does not take it.
    """

    method: str
    name: str
    path: str
    call: Handler
    summary: str
    answer: Any
    scope: Scope | None = "read"
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    statuses: tuple[int, ...] = (200,)
    problems: Mapping[int, str] = field(default_factory=dict)
    media_types: tuple[str, ...] = ("application/json",)
    stream: bool = False
    absorbed: bool = False
    audited: bool = False
    retry_key: str = ""

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    @property
    def takes_body(self) -> bool:
        return self.body is not None or (self.stream and self.method == "POST")

    @property
    def fields(self) -> frozenset[str]:
        """The fields of the request that an error response may name."""
        body = getattr(self.body, "__struct_fields__", ())
        return frozenset([*self.parameters, *self.query.__struct_fields__, *body])

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"


def retry_key_of(call: ApiCall[Any, Any]) -> str | None:
    """Return the header Idempotency-Key, or None. Raises `Refusal` if the header is malformed.

    Bytes outside ASCII are read as UTF-8, as most clients send them.
    """
    key = call.headers.get(RETRY_HEADER.lower().encode())
    if key is None:
        return None
    text = key.decode(errors="replace")
    if not 0 < len(text) <= RETRY_KEY_MAX or not text.isprintable() or "\ufffd" in text:
        wanted = f"1 to {RETRY_KEY_MAX} printable characters in UTF-8"
        raise Refusal(400, f"{RETRY_HEADER} must be {wanted}", RETRY_HEADER)
    return text


@dataclass
class _Node:
    children: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None
    routes: dict[str, Route] = field(default_factory=dict)


class RouteTable:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._paths: set[str] = set()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        for part in route.path.split("/")[1:]:
            if part.startswith("{"):
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.children.setdefault(part, _Node())
        node.routes[route.method] = route
        self._paths.add(route.path)

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
        """Return the route of a path, and the values of the route's parameters by name.

        Raises `Refusal` if there is no such path, or if the path does not allow the method.
        """
        node, values = self._root, []
        parts = raw_path.split("/")[1:]
        if not parts[-1] and self._has(parts[:-1]):
            raise Refusal(404, f"{NOTHING}; did you mean the path without the slash at its end?")
        for place, part in enumerate(parts, start=1):
            following = node.children.get(part)
            if following is None:
                following = node.any
                values.append(part)
            if following is None:
                is_verb = place == len(parts) > NAMES_AT
                raise self._nothing(raw_path, node.children if is_verb else ())
            node = following
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            raise _no_such_method(node) if node.routes else self._nothing(raw_path)
        return route, dict(zip(route.parameters, map(_decoded, values), strict=True))

    def _has(self, parts: Sequence[str]) -> bool:
        node: _Node | None = self._root
        for part in parts:
            node = node and (node.children.get(part) or node.any)
        return node is not None and bool(node.routes)

    def _escaped(self, raw_path: str) -> str | None:
        """Return the path with the slashes of a key as %2F; None if no route has such a path."""
        if len(raw_path) > PATH_LOOKED_AT:
            return None
        parts = raw_path.split("/")[1:]
        for start, end in combinations(range(len(parts) + 1), 2):
            wanted = [*parts[:start], "%2F".join(parts[start:end]), *parts[end:]]
            if end > start + 1 and self._has(wanted):
                return "/" + "/".join(wanted)
        return None

    def _nothing(self, raw_path: str, known: Collection[str] = ()) -> Refusal:
        """Return the error for a path that does not exist.

        It suggests a similar path, if there is one. `known` are the names that the last part of the
        path can have.
        """
        if known:
            start, _, name = raw_path[:PATH_LOOKED_AT].rpartition("/")
            cure = did_you_mean(name, sorted(known))
            return Refusal(404, f"there is no {name!r} at {start}/: {cure}")
        if escaped := self._escaped(raw_path):
            return Refusal(404, f"{NOTHING}; did you mean {escaped}? Write a slash in a key as %2F")
        near = get_close_matches(raw_path[:PATH_LOOKED_AT], self._paths, n=1)
        return Refusal(404, f"{NOTHING}; did you mean {near[0]}?" if near else NOTHING)


def _no_such_method(node: _Node) -> Refusal:
    allowed = ", ".join(sorted(node.routes))
    return Refusal(405, f"this path allows {allowed}", headers=((b"allow", allowed.encode()),))


def _decoded(part: str) -> str:
    if "%" not in part:
        return part
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise Refusal(400, "the decoded path is not UTF-8") from None


# -- callers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Token:
    scope: Scope
    digest: bytes

    @property
    def name(self) -> str:
        """A name for logs that distinguishes tokens without revealing their secrets."""
        return f"{self.scope}:{self.digest.hex()[:8]}"


def parse_token(text: str) -> Token:
    scope, _, secret = text.partition(":")
    if scope not in SCOPES:
        raise InvalidSetting(
            f"token must be SCOPE:TOKEN with a scope of {', '.join(SCOPES)}", field="token"
        )
    if len(secret) < TOKEN_LENGTH_MIN or not secret.isascii() or not secret.isprintable():
        raise InvalidSetting(
            f"token must have {TOKEN_LENGTH_MIN} or more letters and digits after {scope}:",
            field="token",
        )
    return token_of(scope, secret)


def token_of(scope: Scope, secret: str) -> Token:
    return Token(scope, _digest(secret.encode()))


class CallerCheck:
    """Checks the token, scope, host and origin of callers.

    Without tokens every caller may do everything. Only servers on this machine may have no tokens.
    `hosts` are the host names that the server accepts; None accepts any.
    """

    def __init__(self, tokens: Iterable[Token] = (), hosts: Iterable[str] | None = None) -> None:
        self._tokens = tuple(tokens)
        self._hosts = None if hosts is None else frozenset(hosts)

    @property
    def needs_token(self) -> bool:
        return bool(self._tokens)

    def check(self, headers: Mapping[bytes, bytes], scope: Scope | None) -> str:
        """Return the caller's name, for the audit log.

        Raises `Refusal` if the call is not allowed.
        """
        if self._hosts is not None:
            self._check_host(headers, self._hosts)
        if scope is None or not self._tokens:
            return "a caller without a token"
        return self._check_token(headers, scope)

    def _check_host(self, headers: Mapping[bytes, bytes], hosts: frozenset[str]) -> None:
        host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin")
        refusal = refusal_of(host, None if origin is None else origin.decode("latin-1"), hosts)
        if refusal is not None:
            raise Refusal(*refusal)

    def _check_token(self, headers: Mapping[bytes, bytes], scope: Scope) -> str:
        kind, _, secret = headers.get(b"authorization", b"").partition(b" ")
        digest = _digest(secret.strip())
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        if kind.lower() != b"bearer" or not secret.strip():
            raise Refusal(401, "send the header Authorization: Bearer TOKEN", headers=CHALLENGE)
        if found is None:
            raise Refusal(401, UNKNOWN, headers=CHALLENGE, title=UNKNOWN_TOKEN)
        if scope not in SCOPES[found.scope]:
            raise Refusal(403, f"this call needs the scope {scope}; the token has {found.scope}")
        return found.name


def _digest(secret: bytes) -> bytes:
    return blake2b(secret, digest_size=32, person=b"heatsink token").digest()


# -- bodies ------------------------------------------------------------------------------------


class Gone(Exception):
    """The client disconnected before it had sent the whole body."""

    def __str__(self) -> str:
        return "the client disconnected before it had sent the whole body"


def check_length(headers: Mapping[bytes, bytes], limit: int) -> None:
    """Refuse a body whose Content-Length is above `limit`, without reading it."""
    length = headers.get(b"content-length", b"")
    if length.isdigit():
        check_size(int(length[:DIGITS_MAX]), limit)


async def read_body(receive: Receive, limit: int) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        check_size(len(body), limit)
        return body
    parts, size = [], 0
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        check_size(size, limit)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    raise Gone


def check_uncompressed(headers: Mapping[bytes, bytes]) -> None:
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in (b"", b"identity"):
        raise Refusal(
            415,
            "the server does not read compressed bodies: send the body uncompressed, without the "
            "header content-encoding",
        )


async def stream_body(receive: Receive, limits: RequestLimits) -> AsyncIterator[bytes]:
    size, more = 0, True
    while more:
        try:
            async with asyncio.timeout(limits.idle_s):
                message = await receive()
        except TimeoutError:
            raise Refusal(
                408, f"no data for {limits.idle_s:g} s: the batch is not accepted"
            ) from None
        if message["type"] != "http.request":
            raise Gone
        body = message.get("body", b"")
        size += len(body)
        check_size(size, limits.stream_bytes)
        more = bool(message.get("more_body"))
        yield body


def check_size(size: int, limit: int) -> None:
    if size > limit:
        raise Refusal(
            413,
            f"the body is larger than {limit:,} bytes: split it, or raise the server's --limit "
            "body_bytes, array_bytes or stream_bytes",
            "body",
            CLOSE,
        )


def read_json(decode: Callable[[bytes], Value], data: bytes) -> Value:
    if not data.strip():
        raise msgspec.DecodeError("it is empty")
    try:
        return decode(data)
    except UnicodeDecodeError:
        raise msgspec.DecodeError("it is not UTF-8") from None
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        half = _half.search(_pair.sub(b"", data))
        if half is None:
            raise msgspec.DecodeError(_malformed(str(error))) from None
        lone = half[0].decode()
        raise msgspec.DecodeError(f"{lone} is a lone surrogate, which is not text") from None


def _malformed(said: str) -> str:
    """Return msgspec's error message `said` as Heatsink words it.

    For example: "JSON is malformed: invalid character (byte 3)".
    """
    if "truncated" in said:
        return "it ends too early"
    return said.removeprefix("JSON is malformed: ").replace(" (byte ", " at byte ").rstrip(")")


# -- counts ------------------------------------------------------------------------------------


class RequestCounts:
    """Counts of requests, in plain dictionaries, so that counting takes only a microsecond."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.answers: Counter[tuple[str, int]] = Counter()
        self.times: dict[str, list[int]] = {}
        self.sums_s: Counter[str] = Counter()

    def count(self, label: str, status: int, seconds: float) -> None:
        self.answers[label, status] += 1
        times = self.times.get(label)
        if times is None:
            times = self.times[label] = [0] * BINS
        times[bisect_left(BOUNDS_S, seconds)] += 1
        self.sums_s[label] += seconds  # type: ignore[assignment]

    def totals(self) -> Requests:
        """Return the totals of calls that read or write data. Calls of operators do not count."""
        writes = [label for label in self.times if _is_data(label) and not _is_read(label)]
        reads = [label for label in self.times if _is_data(label) and _is_read(label)]
        kinds = [self._total("writes", writes), self._total("reads", reads)]
        return Requests(list(BOUNDS_S), kinds)

    def _total(self, kind: Kind, labels: list[str]) -> RequestTotals:
        times = [self.times[label] for label in labels]
        statuses = [(s, n) for (label, s), n in self.answers.items() if label in labels]
        return RequestTotals(
            kind=kind,
            answered=sum(count for _, count in statuses),
            refused=sum(count for status, count in statuses if status in REFUSED),
            failed=sum(n for status, n in statuses if status >= 500 and status not in REFUSED),
            times=[sum(counts) for counts in zip(*times, strict=True)] or [0] * BINS,
        )


def _is_data(label: str) -> bool:
    return label.partition(" ")[2].startswith(DATA)


def _is_read(label: str) -> bool:
    return label.startswith("GET ")
