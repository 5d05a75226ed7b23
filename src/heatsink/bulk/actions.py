"""Actions: what is done to each item, by functions of the application that workers run.

Which URLs a worker may call when a batch is done: those below a prefix that was allowed.

A prefix is compared part by part, never as text: `https://hooks.example.com` would else allow
`https://hooks.example.com.evil.org`. Scheme, host and port must be equal, and the path must begin
with the prefix's whole segments once dot segments are gone, encoded ones too. What servers read
in different ways is refused, and what is called is the URL as it was checked.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import check_number, check_whole, shown, shown_url

LENGTH_MAX = 2_000
PORTS = {"http": 80, "https": 443}
TEXT = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")  # no user before it
AMBIGUOUS = re.compile(r"[/\\\x00-\x1f\x7f]|\A\.\.?;")  # in a segment once it is decoded
DECODED_MAX = 5  # times: who encodes more often hides something


class Webhook(NamedTuple):
    """A URL in its parts. `segments` are those of the path, none of them a dot segment."""

    scheme: str
    host: str
    port: int
    segments: tuple[str, ...]
    query: str

    @property
    def url(self) -> str:
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.host}{port}/{'/'.join(self.segments)}{query}"

    def is_below(self, prefix: Webhook) -> bool:
        path = prefix.segments[:-1] if prefix.segments[-1:] == ("",) else prefix.segments
        return self[:3] == prefix[:3] and self.segments[: len(path)] == path


def check_prefixes(field: str, prefixes: Iterable[Any]) -> tuple[Webhook, ...]:
    """Prefixes as an operator sets them; what is no URL is refused by its place."""
    if isinstance(prefixes, str) or not isinstance(prefixes, Iterable):
        raise InvalidSetting(f"{field} must be a list of URLs, not {shown(prefixes)}")
    found = []
    for number, prefix in enumerate(prefixes):
        parsed = _parse(prefix)
        if parsed is None or "?" in prefix or "#" in prefix:
            text = shown_url(prefix) if isinstance(prefix, str) else prefix
            raise InvalidSetting(
                f"{field}[{number}] must be a URL like https://host[:port]/path, without a user, "
                f"a query or anything unusual in it, not {shown(text)}"
            )
        if ".." in map(_decoded, urlsplit(prefix).path.split("/")):
            raise InvalidSetting(
                f"{field}[{number}] must not have '..' in its path, not {shown(prefix)}: "
                f"it allows all below /{'/'.join(parsed.segments)}; if that is meant, write that"
            )
        found.append(parsed)
    return tuple(found)


def check_allowed(field: str, url: str, prefixes: Iterable[Webhook]) -> str:
    """For whoever submits a batch: the worker checks it again, by prefixes of its own."""
    if allowed_url(url, prefixes) is None:
        raise InvalidSetting(
            f"{field} {shown(shown_url(url))} is not an allowed webhook: "
            "add its prefix to webhooks="
        )
    return url


def allowed_url(url: object, prefixes: Iterable[Webhook]) -> str | None:
    """The URL to call, if it is below one of the prefixes."""
    webhook = _parse(url)
    if webhook is None or not any(webhook.is_below(prefix) for prefix in prefixes):
        return None
    return webhook.url


def _parse(url: object) -> Webhook | None:
    if not isinstance(url, str) or len(url) > LENGTH_MAX or not TEXT.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    host = parts.netloc.removesuffix(f":{port}") if port is not None else parts.netloc
    if parts.scheme not in PORTS or port == 0 or not HOST.fullmatch(host):
        return None
    segments = _segments(parts.path)
    if segments is None:
        return None
    return Webhook(parts.scheme, host.lower(), port or PORTS[parts.scheme], segments, parts.query)


def _segments(path: str) -> tuple[str, ...] | None:
    """As RFC 3986 removes dot segments (5.2.4). None if servers may disagree about one."""
    kept: list[str] = []
    *folders, last = path.removeprefix("/").split("/")
    for segment in (*folders, last):
        name = _decoded(segment)
        if AMBIGUOUS.search(name) or _decoded(name) != name:
            return None
        if name == "..":
            del kept[-1:]
        elif name != ".":
            kept.append(segment)
    if _decoded(last) in (".", ".."):
        kept.append("")
    return tuple(kept)


def _decoded(segment: str) -> str:
    """As a server reads it that decodes once too often."""
    for _ in range(DECODED_MAX):
        segment = unquote(segment, errors="replace")
    return segment


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
ATTEMPTS_MAX = 1_000
TOGETHER_MAX = 1_000
DAY_S = 86_400.0
BUILT_IN = "heatsink."  # actions that every worker has
WEBHOOK = f"{BUILT_IN}webhook"  # tells a URL how a batch ended


class Retry(Exception):
    """Raise it in a handler: try this item again after so many seconds. It counts as an attempt."""

    def __init__(self, after: float | None = None, reason: str = "asked to be tried again") -> None:
        super().__init__(reason)
        self.after_s = after


class Fail(Exception):
    """Raise it in a handler: this item will never work; do not try again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class RateLimited(Exception):
    """Raise it in a handler when somebody downstream says "too many": it counts as no attempt.

    All items of the tenant and the action slow down until the rate is one that is taken.
    """

    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("rate-limited downstream")
        self.retry_after_s = retry_after


Once = Callable[["Context", str, bytes, int], Awaitable[None]]
"""Context, key, body, and how many this run has appended to the key before."""


async def no_store(*_: object) -> None:
    raise InvalidSetting("context.once() needs a data store: heatsink worker --store URL")


class Context:
    """What a handler knows about the item it has. `attempt` counts from 1."""

    __slots__ = (
        *("_appended", "_once", "action", "attempt", "batch", "index", "submitted_ms", "tenant"),
    )

    def __init__(
        self,
        batch: str,
        tenant: str,
        action: str,
        submitted_ms: int,
        index: int,
        attempt: int,
        once: Once = no_store,
    ) -> None:
        self.batch = batch
        self.tenant = tenant
        self.action = action
        self.submitted_ms = submitted_ms
        self.index = index
        self.attempt = attempt
        self._once = once
        self._appended: dict[str, int] | None = None

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt at this item: hand it to whoever removes duplicates."""
        return f"{self.batch}:{self.index}"

    async def once(self, key: str, body: bytes) -> None:
        """Append `body` to the log of `key`, once for this item however often it runs.

        The row *is* the record that it happened, so nothing can come between the two. If an
        earlier attempt appended something else, that stays. Several for one key are told apart by
        their order, which must be the same in every attempt.
        """
        self._appended = self._appended or {}
        before = self._appended.get(key, 0)
        self._appended[key] = before + 1
        await self._once(self, key, body, before)


@dataclass(frozen=True)
class Action:
    """A handler and how it is run."""

    name: str
    handler: Callable[..., Any]
    max_attempts: int = 5
    """So many times an item is tried before it has failed."""
    timeout_s: float = 60.0
    """A handler that takes longer is cancelled, which counts as an attempt."""
    backoff_s: float = 1.0
    """The pause before the second attempt; twice as long each time, with jitter."""
    backoff_max_s: float = 300.0
    """The longest pause."""
    together: int = 1
    """More than 1: the handler takes lists of so many items and contexts."""
    is_async: bool = True
    """Found out from the handler: a plain `def` runs in a thread."""

    def __post_init__(self) -> None:
        check_action("name", self.name)
        check_whole("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        check_number("timeout_s", self.timeout_s, 0.001, DAY_S)
        check_number("backoff_s", self.backoff_s, 0, DAY_S)
        check_number("backoff_max_s", self.backoff_max_s, 0, DAY_S)
        check_whole("together", self.together, 1, TOGETHER_MAX)
        if not callable(self.handler):
            raise InvalidSetting(f"handler must be a function, not {shown(self.handler)}")
        if _is_any(self.handler, isgeneratorfunction, isasyncgenfunction):
            raise InvalidSetting(
                f"the handler of {self.name!r} is a generator, which would never run: "
                "return instead of yield"
            )


def _is_any(handler: Callable[..., Any], *tests: Callable[[object], bool]) -> bool:
    """Also of an object that is called like a function."""
    return any(test(handler) or test(type(handler).__call__) for test in tests)


def check_action(field_name: str, value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidSetting(
            f"{field_name} must be 1 to 100 of A-Z a-z 0-9 _ . - and begin with a letter or digit, "
            f"not {shown(value)}"
        )
    return value


@dataclass
class Actions:
    """The table of an application's actions. `webhooks` are the URL prefixes that may be called."""

    webhooks: Sequence[str] = ()
    _actions: dict[str, Action] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_prefixes("webhooks", self.webhooks)

    def action(self, name: str, **options: Any) -> Callable[[Any], Any]:
        """Decorator: `@actions.action("tag", max_attempts=5)`; options are the fields of `Action`.

        A plain `def` runs in a thread, so that it may block; an awaitable that it returns is
        awaited on the event loop.
        """

        def register(handler: Any) -> Any:
            if name in self._actions:
                raise InvalidSetting(f"action {name!r} is there already: choose another name")
            is_async = _is_any(handler, iscoroutinefunction)
            try:
                self._actions[name] = Action(name, handler, is_async=is_async, **options)
            except TypeError as error:
                takes = "max_attempts, timeout_s, backoff_s, backoff_max_s, together"
                raise InvalidSetting(f"action() takes {takes}: {error}") from None
            return handler

        return register

    def get(self, name: str) -> Action | None:
        """The action of that name, if there is one."""
        return self._actions.get(name)

    def and_also(self, action: Action) -> Actions:
        """A table with one action more."""
        return Actions(self.webhooks, {**self._actions, action.name: action})

    def wrapped(self, wrap: Callable[[Action], Action]) -> Actions:
        """A table of the same actions, each as `wrap` returns it."""
        return Actions(self.webhooks, {name: wrap(each) for name, each in self._actions.items()})

    def __iter__(self) -> Iterator[str]:
        return iter(self._actions)

    def __len__(self) -> int:
        return len(self._actions)
