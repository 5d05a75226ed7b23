"""Actions: what is done to each item, by functions of the application that workers run."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

from heatsink.checks import check_number, check_whole, shown
from heatsink.errors import InvalidSetting

from .webhooks import check_prefixes

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
