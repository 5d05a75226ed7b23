"""Actions: the application's handlers that workers run, and the webhooks they may call."""

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
DECODED_MAX = 5  # a URL that is encoded more often than this is refused
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
ATTEMPTS_MAX = 1_000
TOGETHER_MAX = 1_000
DAY_S = 86_400.0
BUILT_IN = "heatsink."  # prefix of the actions that every worker has
WEBHOOK = f"{BUILT_IN}webhook"  # posts a batch's outcome to a URL
Once = Callable[["Context", str, bytes, int], Awaitable[None]]
"""Arguments: context, key, body, and how often this attempt has appended to the key before."""


class Retry(Exception):
    """Raise it in a handler to retry the item; this attempt counts.

    `raise Retry(after=2.5)` waits 2.5 seconds, `raise Retry()` as long as the action's backoff.
    """

    def __init__(self, after: float | None = None, reason: str = "asked for a retry") -> None:
        super().__init__(reason)
        self.after_s = after


class Fail(Exception):
    """Raise it in a handler if the item can never succeed: it fails without a retry.

    `raise Fail("no such conversation")`
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class RateLimited(Exception):
    """Raise it in a handler when a downstream service says "too many requests".

    The item is retried, and the attempt does not count. All items of this tenant and action slow
    down to a rate that the service accepts: `raise RateLimited(retry_after=1.0)`
    """

    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("rate-limited downstream")
        self.retry_after_s = retry_after


async def no_store(*_: object) -> None:
    raise InvalidSetting(
        "context.once() needs a data store: heatsink worker --store URL", field="context"
    )


class Context:
    """What a handler knows about its item.

    `attempt` counts from 1. Services that remove duplicates need the `idempotency_key`::

        @actions.action("charge")
        async def charge(item, context):
            await pay(item, idempotency_key=context.idempotency_key)
    """

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
        """The same in every attempt at this item, for services that remove duplicates.

        Example::

            await pay(item, idempotency_key=context.idempotency_key)
        """
        return f"{self.batch}:{self.index}"

    async def once(self, key: str, body: bytes) -> None:
        """Append `body` to the log of `key`, once for this item however often its handler runs.

        The row itself is the record that the append happened, so no crash can separate the two. If
        an earlier attempt appended another body, that stays. Several appends to one key are
        distinguished by their order, which must be the same in every attempt. Raises
        `InvalidSetting` if the worker has no data store: `await context.once("conv_42", b"tagged")`
        """
        self._appended = self._appended or {}
        before = self._appended.get(key, 0)
        self._appended[key] = before + 1
        await self._once(self, key, body, before)


@dataclass(frozen=True)
class Action:
    """A handler and how workers run it."""

    name: str
    handler: Callable[..., Any]
    max_attempts: int = 5
    """How often an item is tried before it fails permanently."""
    timeout_s: float = 60.0
    """A handler that takes longer is cancelled, and the attempt counts."""
    backoff_s: float = 1.0
    """The pause before the second attempt; it doubles each time, with jitter."""
    backoff_max_s: float = 300.0
    """The longest pause between two attempts."""
    together: int = 1
    """If more than 1, the handler takes lists of up to this many items and contexts."""
    is_async: bool = True
    """Detected from the handler: a plain `def` runs in a thread."""

    def __post_init__(self) -> None:
        check_action("name", self.name)
        check_whole("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        check_number("timeout_s", self.timeout_s, 0.001, DAY_S)
        check_number("backoff_s", self.backoff_s, 0, DAY_S)
        check_number("backoff_max_s", self.backoff_max_s, 0, DAY_S)
        check_whole("together", self.together, 1, TOGETHER_MAX)
        if not callable(self.handler):
            raise InvalidSetting(
                f"handler must be a function, not {shown(self.handler)}", field="handler"
            )
        if _is_any(self.handler, isgeneratorfunction, isasyncgenfunction):
            raise InvalidSetting(
                f"the handler of {self.name!r} is a generator, which would never run: "
                "return instead of yield"
            )


@dataclass
class Actions:
    """An application's actions, by name.

    `webhooks` are the URL prefixes that workers may call when a batch is done::

        actions = Actions()
        @actions.action("tag", max_attempts=3)
        async def tag(item, context): ...
    """

    webhooks: Sequence[str] = ()
    _actions: dict[str, Action] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_prefixes("webhooks", self.webhooks)

    def action(self, name: str, **options: Any) -> Callable[[Any], Any]:
        """Decorator that registers a handler; `options` are the fields of `Action`.

        A plain `def` runs in a thread, so it may block; if it returns an awaitable, that is awaited
        on the event loop. Raises `InvalidSetting` for a name that is taken or a bad option::

            @actions.action("tag", max_attempts=3, timeout_s=10)
            async def tag(item, context): ...
        """

        def register(handler: Any) -> Any:
            if name in self._actions:
                raise InvalidSetting(
                    f"action {name!r} is registered already: choose another name", field="action"
                )
            is_async = _is_any(handler, iscoroutinefunction)
            try:
                self._actions[name] = Action(name, handler, is_async=is_async, **options)
            except TypeError as error:
                takes = "max_attempts, timeout_s, backoff_s, backoff_max_s, together"
                raise InvalidSetting(f"action() takes {takes}: {error}") from None
            return handler

        return register

    def get(self, name: str) -> Action | None:
        """The action of that name, or None: `actions.get("tag")`"""
        return self._actions.get(name)

    def and_also(self, action: Action) -> Actions:
        """A copy with one more action."""
        return Actions(self.webhooks, {**self._actions, action.name: action})

    def wrapped(self, wrap: Callable[[Action], Action]) -> Actions:
        """A copy in which each action is what `wrap` returns for it."""
        return Actions(self.webhooks, {name: wrap(each) for name, each in self._actions.items()})

    def __iter__(self) -> Iterator[str]:
        return iter(self._actions)

    def __len__(self) -> int:
        return len(self._actions)


def check_action(field_name: str, value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidSetting(
            f"{field_name} must be 1 to 100 of A-Z a-z 0-9 _ . - and begin with a letter or digit, "
            f"not {shown(value)}"
        )
    return value


def _is_any(handler: Callable[..., Any], *tests: Callable[[object], bool]) -> bool:
    """Whether a test holds for the handler, or for its `__call__` if it is an object."""
    return any(test(handler) or test(type(handler).__call__) for test in tests)


class Webhook(NamedTuple):
    """A webhook's URL, parsed; `segments` are those of its path, without dot segments.

    A URL is allowed below a prefix that is compared part by part, never as text: or else
    `https://hooks.example.com` would allow `https://hooks.example.com.evil.org`. Scheme, host and
    port must be equal. The path must begin with all segments of the prefix, after dot segments,
    also encoded ones, are removed. A URL that servers may read in different ways is refused, and
    the worker calls the URL in the form that was checked.
    """

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
    """Parse the prefixes that an operator set; `InvalidSetting` names the one that is no URL."""
    if isinstance(prefixes, str) or not isinstance(prefixes, Iterable):
        raise InvalidSetting(f"{field} must be a list of URLs, not {shown(prefixes)}", field=field)
    found = []
    for number, prefix in enumerate(prefixes):
        parsed = _parse(prefix)
        if parsed is None or "?" in prefix or "#" in prefix:
            text = shown_url(prefix) if isinstance(prefix, str) else prefix
            raise InvalidSetting(
                f"{field}[{number}] must be a URL like https://host[:port]/path, without a user, "
                f"a query or anything unusual in it, not {shown(text)}",
                field=field,
            )
        if ".." in map(_decoded, urlsplit(prefix).path.split("/")):
            raise InvalidSetting(
                f"{field}[{number}] must not have '..' in its path, not {shown(prefix)}: "
                f"write the path that it stands for, /{'/'.join(parsed.segments)}",
                field=field,
            )
        found.append(parsed)
    return tuple(found)


def check_allowed(field: str, url: str, prefixes: Iterable[Webhook]) -> str:
    """Check a URL at submission; the worker checks it again, against its own prefixes."""
    if allowed_url(url, prefixes) is None:
        raise InvalidSetting(
            f"{field} {shown(shown_url(url))} is not an allowed webhook: "
            "add its prefix to webhooks=",
            field=field,
        )
    return url


def allowed_url(url: object, prefixes: Iterable[Webhook]) -> str | None:
    """The URL to call, normalised, if one of the prefixes allows it; otherwise None."""
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
    """The segments without dot segments (RFC 3986, 5.2.4); None if one of them is ambiguous."""
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
    """Percent-decode until nothing changes, since some servers decode more than once."""
    for _ in range(DECODED_MAX):
        segment = unquote(segment, errors="replace")
    return segment
