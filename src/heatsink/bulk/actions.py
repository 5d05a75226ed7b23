"""Actions: the application's handlers that workers run, and the webhooks they may call."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import check_names, check_number, check_whole, shown, shown_url

LENGTH_MAX = 2_000
PORTS = {"http": 80, "https": 443}
TEXT = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")  # no user before it
AMBIGUOUS = re.compile(r"[/\\\x00-\x1f\x7f]|\A\.\.?;")  # in a segment once it is decoded
DECODED_MAX = 5  # a URL that is encoded more often than this is refused
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
OPTIONS = ("max_attempts", "timeout_s", "backoff_s", "backoff_max_s", "together")
ATTEMPTS_MAX = 1_000
TOGETHER_MAX = 1_000
DAY_S = 86_400.0
BUILT_IN = "heatsink."  # prefix of the actions that every worker has
WEBHOOK = f"{BUILT_IN}webhook"  # posts a batch's outcome to a URL
Once = Callable[["Context", str, bytes, int], Awaitable[None]]
"""The function behind `context.once`. Its arguments are the context, the key, the body, and how
many times the current attempt has already appended to the key."""


class Retry(Exception):
    """A handler raises this exception to retry the item. The attempt counts for `max_attempts`.

    `raise Retry(after=2.5)` retries the item after 2.5 seconds. `raise Retry()` retries it after
    the action's backoff. A number below 0 counts as 0.
    """

    def __init__(
        self, after: float | None = None, reason: str = "the handler asked for a retry"
    ) -> None:
        super().__init__(reason)
        self.after_s = after


class Fail(Exception):
    """A handler raises this exception if the item can never succeed. The item is not retried.

    `raise Fail("no such conversation")`
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class RateLimited(Exception):
    """A handler raises this exception when a downstream service says "too many requests".

    The item is retried, and the attempt does not count for `max_attempts`. All items of this tenant
    and action slow down to a rate that the service accepts: `raise RateLimited(retry_after=1.0)`
    """

    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("rate-limited downstream")
        self.retry_after_s = retry_after


async def no_store(*_: object) -> None:
    raise InvalidSetting(
        "context.once() needs a data store: heatsink worker --store URL", field="context"
    )


class Context:
    """What Heatsink tells a handler about the current item.

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
        """A key for services that remove duplicates: the same in every attempt at this item.

        Example::

            await pay(item, idempotency_key=context.idempotency_key)
        """
        return f"{self.batch}:{self.index}"

    async def once(self, key: str, body: bytes) -> None:
        """Append `body` to the log of `key`, once for this item however often its handler runs.

        The row itself records that the append happened, so a crash cannot separate the append from
        its record. If an earlier attempt appended another body, the earlier body stays. A handler
        that appends to one key several times must do so in the same order in every attempt. Raises
        `InvalidSetting` if the worker has no data store.

        Example::

            await context.once("conv_42", b"tagged")
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
    """Time limit of a handler. A handler that takes longer is cancelled, and the attempt counts."""
    backoff_s: float = 1.0
    """The pause before the second attempt. It doubles with each further attempt, with jitter."""
    backoff_max_s: float = 300.0
    """The longest pause between two attempts."""
    together: int = 1
    """If more than 1, the handler takes lists of up to this many items and contexts."""
    is_async: bool = True
    """Whether the handler is an `async def`. If not, it runs in a thread. The decorator
    `actions.action` detects this."""

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
        _check_parameters(self.name, self.handler)
        if _is_any(self.handler, isgeneratorfunction, isasyncgenfunction):
            raise InvalidSetting(
                f"the handler of {self.name!r} is a generator, whose code would never run: "
                "use return, not yield"
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

        A plain `def` runs in a thread, so it may block. If the `def` returns an awaitable, the
        event loop awaits it. Raises `InvalidSetting` for a name that is taken or a bad option::

            @actions.action("tag", max_attempts=3, timeout_s=10)
            async def tag(item, context): ...
        """
        if callable(name):
            raise InvalidSetting(
                'action() needs a name before the handler: write @actions.action("tag")',
                field="name",
            )
        check_action("name", name)
        check_names("action()", options, OPTIONS)

        def register(handler: Any) -> Any:
            if name in self._actions:
                raise InvalidSetting(
                    f"action {name!r} is registered already: choose another name", field="action"
                )
            is_async = _is_any(handler, iscoroutinefunction)
            self._actions[name] = Action(name, handler, is_async=is_async, **options)
            return handler

        return register

    def get(self, name: str) -> Action | None:
        """Return the action with this name, or None if there is none: `actions.get("tag")`"""
        return self._actions.get(name)

    def and_also(self, action: Action) -> Actions:
        """Return a copy of these actions to which `action` is added."""
        return Actions(self.webhooks, {**self._actions, action.name: action})

    def wrapped(self, wrap: Callable[[Action], Action]) -> Actions:
        """Return a copy of these actions in which `wrap(action)` replaces each action."""
        return Actions(self.webhooks, {name: wrap(each) for name, each in self._actions.items()})

    def __iter__(self) -> Iterator[str]:
        return iter(self._actions)

    def __len__(self) -> int:
        return len(self._actions)


def _check_parameters(name: str, handler: Callable[..., Any]) -> None:
    """Raise unless the handler can be called with an item and a context."""
    try:
        signature(handler).bind(None, None)
    except ValueError:  # a function in C may have no signature
        return
    except TypeError:
        raise InvalidSetting(
            f"the handler of {name!r} must take an item and a context: "
            f"write `async def {getattr(handler, '__name__', 'handler')}(item, context)`",
            field="handler",
        ) from None


def check_action(field_name: str, value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidSetting(
            f"{field_name} must be 1 to 100 characters of A-Z a-z 0-9 _ . - and begin with a "
            f"letter or digit, not {shown(value)}"
        )
    return value


def _is_any(handler: Callable[..., Any], *tests: Callable[[object], bool]) -> bool:
    """Whether any of the tests is true for the handler, or for the `__call__` of its class."""
    return any(test(handler) or test(type(handler).__call__) for test in tests)


class Webhook(NamedTuple):
    """A webhook's URL, parsed; `segments` are the segments of its path, without dot segments.

    Workers may call a URL only if one of the operator's prefixes allows it. Dot segments (`.` and
    `..`), even percent-encoded ones, are resolved first. Then the URL must have the scheme, host
    and port of the prefix, and its path must begin with all segments of the prefix's path.
    Comparing the texts would not be safe: the prefix `https://hooks.example.com` would allow
    `https://hooks.example.com.evil.org`. A URL that servers may read in different ways is refused.
    The worker calls the URL in exactly the form that was checked.
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
    """Parse the prefixes that an operator set. Raises `InvalidSetting` if a prefix is not a URL.

    `field` is the name of the setting, for the error's message.
    """
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
                f"{field}[{number}], {shown(prefix)}, has '..' in its path: "
                f"write the path as /{'/'.join(parsed.segments)}",
                field=field,
            )
        found.append(parsed)
    return tuple(found)


def check_allowed(field: str, url: str, prefixes: Iterable[Webhook]) -> str:
    """Return the URL. Raises `InvalidSetting` if none of the prefixes allows it.

    This is the check when a batch is submitted. The worker that later calls the URL checks it
    against the prefixes in its own `Actions`.
    """
    if allowed_url(url, prefixes) is None:
        raise InvalidSetting(
            f"{field} {shown(shown_url(url))} is not an allowed webhook: "
            "add its prefix to webhooks=",
            field=field,
        )
    return url


def allowed_url(url: object, prefixes: Iterable[Webhook]) -> str | None:
    """Return the normalised URL to call if one of the prefixes allows it, otherwise None."""
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
    """Return the segments of a path, with dot segments resolved (RFC 3986, 5.2.4).

    Returns None if servers may read a segment in different ways.
    """
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
    """Percent-decode the segment `DECODED_MAX` times, since some servers decode more than once."""
    for _ in range(DECODED_MAX):
        segment = unquote(segment, errors="replace")
    return segment
