"""Routes: what a line of the table says, and how a request finds its line.

Paths are matched segment by segment before they are decoded: a key may contain a slash (`%2F`),
which a router that looks at the decoded path takes for a separator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.responses import Response
from starlette.types import Receive

from heatsink.bulk.work.consumer import Consumer
from heatsink.client.heatsink import Heatsink
from heatsink.primitives.clock import Clock

from .bodies import RequestLimits
from .feed import Feed
from .metrics import Metrics
from .problems import NOTHING, Refusal
from .shapes import NoQuery


@dataclass(frozen=True)
class CacheRules:
    """How long browsers and CDNs may answer hot reads themselves, in seconds."""

    fresh_for: int = 1
    stale_for: int = 5


@dataclass(frozen=True)
class Service:
    """What the calls of the API share."""

    hs: Heatsink
    clock: Clock
    limits: RequestLimits
    cache: CacheRules
    feed: Feed
    metrics: Metrics
    recent: Callable[[], msgspec.Struct]
    consumer: Consumer | None = None


Scope = Literal["read", "operate", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "operate", "admin")
Query = TypeVar("Query")
Body = TypeVar("Body")


@dataclass(slots=True)
class Call(Generic[Query, Body]):
    """One request, checked and decoded."""

    service: Service
    path: Mapping[str, str]
    query: Query
    body: Body
    headers: Mapping[bytes, bytes]
    receive: Receive


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the route's type, with additional `headers`."""

    value: msgspec.Struct
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()


Handler = Callable[[Call[Any, Any]], Awaitable[Reply | Response]]


@dataclass(frozen=True, eq=False)
class Route:
    """One line of the table. `scope` None is open to everybody.

    With `stream` the body is read, or the answer sent, in pieces. `statuses` are those of success,
    `problems` those of errors beyond the ones that any call may get. `absorbed` reads may be cached
    by browsers and CDNs for a moment; `audited` calls are logged.
    """

    method: str
    path: str
    call: Handler
    summary: str
    answer: Any
    scope: Scope | None = "read"
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    statuses: tuple[int, ...] = (200,)
    problems: tuple[int, ...] = ()
    media_type: str = "application/json"
    body_types: tuple[str, ...] = ("application/json",)
    stream: bool = False
    absorbed: bool = False
    audited: bool = False

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    @property
    def fields(self) -> frozenset[str]:
        """The fields that an error may name."""
        body = getattr(self.body, "__struct_fields__", ())
        return frozenset([*self.parameters, *self.query.__struct_fields__, *body])

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"


@dataclass
class _Node:
    children: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None
    routes: dict[str, Route] = field(default_factory=dict)


class RouteTable:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
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

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
        """The route of a path, and the values of the names in its braces."""
        node, values = self._root, []
        for part in raw_path.split("/")[1:]:
            following = node.children.get(part)
            if following is None:
                following = node.any
                values.append(part)
            if following is None:
                raise Refusal(404, NOTHING)
            node = following
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            raise _no_such_method(node)
        return route, dict(zip(route.parameters, map(_decoded, values), strict=True))


def _no_such_method(node: _Node) -> Refusal:
    if not node.routes:
        return Refusal(404, NOTHING)
    allowed = ", ".join(sorted(node.routes))
    return Refusal(405, f"this path allows {allowed}", headers=((b"allow", allowed.encode()),))


def _decoded(part: str) -> str:
    if "%" not in part:
        return part
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise Refusal(400, "the decoded path is not UTF-8") from None
