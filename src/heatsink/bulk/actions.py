"""Actions: the application's handlers that workers run, and what surrounds each run.

An application describes its actions in one `Actions` object. Besides the handlers, this object may
hold a *lifespan* and *middleware*. The lifespan opens resources that all handlers of a worker
share. Middleware are context managers that surround every run of a handler.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from types import SimpleNamespace
from typing import Any, Protocol, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.primitives.allowed_urls import check_prefixes
from heatsink.primitives.checks import check_kind, check_names, check_number, check_whole, shown
from heatsink.primitives.processes import name_of

from .batch import Batch
from .limits import DeclaredLimits, Limit, check_equal, check_limits
from .objects import LOSSY

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
OPTIONS = (
    *("max_attempts", "timeout_s", "backoff_s", "backoff_max_s", "together", "item", "limits"),
    "process",
)
ANNOUNCED_S = 1.0  # how old a process's list of announced limits may be
ATTEMPTS_MAX = 1_000
TOGETHER_MAX = 1_000
DAY_S = 86_400.0
BINARY = (bytes, bytearray, memoryview)
TEXT_FOR_NUMBER = re.compile("Expected `[^`]*(int|float|bool)[^`]*`, got `str`")
BUILT_IN = "heatsink."  # prefix of the actions that every worker has
NEXT = f"{BUILT_IN}next"  # submits the batches that follow an ended batch
WEBHOOK = f"{BUILT_IN}webhook"  # posts a batch's outcome to a URL
Once = Callable[["Context", str, bytes, int], Awaitable[None]]
"""The function behind `context.once`. Its arguments are the context, the key, the body, and how
many times the current attempt has already appended to the key."""
Manager = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
Middleware = Callable[[Any], Manager]
"""Returns a context manager for one run of a handler. It gets what the handler gets as its second
parameter: a context, or a list of contexts if the action has `together`."""
Lifespan = Callable[[], Manager]
"""Returns a context manager that a worker enters before its first item and leaves after its last.
"""


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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.after_s, str(self))


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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.retry_after_s,)


class BadItem(Fail):
    """Raised for an item that does not fit its handler's declared type. It is not retried."""


async def no_store(*_: object) -> None:
    raise InvalidSetting(
        "context.once() needs a data store: heatsink worker --store URL", field="context"
    )


class Context:
    """What Heatsink tells a handler about the current item.

    `attempt` counts from 1. Services that remove duplicates need the `idempotency_key`. `state` is
    what the lifespan of the `Actions` yielded; None without a lifespan::

        @actions.action("charge")
        async def charge(item, context):
            await pay(item, idempotency_key=context.idempotency_key)
    """

    __slots__ = (
        *("_appended", "_once", "action", "attempt", "batch", "index", "state", "submitted_ms"),
        "tenant",
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
        state: Any = None,
    ) -> None:
        self.batch = batch
        self.tenant = tenant
        self.action = action
        self.submitted_ms = submitted_ms
        self.index = index
        self.attempt = attempt
        self.state = state
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
        """Append `body` to the log of `key`: once for this item, however often its handler runs.

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
    item: Any = None
    """The type of the items. Each stored item is converted to this type before the handler runs; an
    item that does not fit fails. The decorator takes a dataclass, a `msgspec.Struct`, a `TypedDict`
    or a pydantic model from the annotation of the handler's first parameter."""
    limits: tuple[Limit, ...] = ()
    """The limits at which every item of the action needs a place: see `Limit`."""
    process: bool = False
    """Whether the handler runs in a process of a pool, for work that needs a CPU for long. The
    handler must be a plain `def` at the top level of a module."""
    middleware: tuple[Middleware, ...] = ()
    """The context managers around each run. The decorator sets those of the `Actions`."""
    read: Callable[[Any], Any] | None = field(init=False, default=None)
    """Converts a stored item to the type `item`; None if items stay as they are."""

    def __post_init__(self) -> None:
        check_action("name", self.name)
        check_whole("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        check_number("timeout_s", self.timeout_s, 0.001, DAY_S)
        check_number("backoff_s", self.backoff_s, 0, DAY_S)
        check_number("backoff_max_s", self.backoff_max_s, 0, DAY_S)
        check_whole("together", self.together, 1, TOGETHER_MAX)
        check_kind("process", self.process, bool)
        object.__setattr__(self, "limits", check_limits(self.name, self.limits))
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
        if self.item is not None:
            object.__setattr__(self, "read", reader_of(self.name, self.item))

    def given(self, item: Any) -> Any:
        """Return a stored item as the handler gets it. Raises `BadItem` if it does not fit."""
        if self.read is not None:
            return self.read(item)
        if isinstance(item, LOSSY):
            raise BadItem(
                f"item{item.changed}, and {self.name!r} would get it as another type: annotate "
                "the handler's first parameter with the class of the items, or submit JSON values"
            )
        return item


@dataclass
class Actions:
    """An application's actions, by name.

    `webhooks` are the URL prefixes that workers may call when a batch is done. `lifespan` is a
    function without parameters that returns a context manager. Each worker enters this context
    manager before its first item. Handlers find the yielded value in `context.state`. `middleware`
    are functions that return a context manager around one run of a handler. `imports` are modules
    that a process for handlers (`process=True`) imports before the handlers' own::

        actions = Actions()
        @actions.action("tag", max_attempts=3)
        async def tag(item, context): ...
    """

    webhooks: Sequence[str] = ()
    _actions: dict[str, Action] = field(default_factory=dict, repr=False)
    lifespan: Lifespan | None = field(default=None, kw_only=True)
    middleware: Sequence[Middleware] = field(default=(), kw_only=True)
    imports: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        check_prefixes("webhooks", self.webhooks)
        if self.lifespan is not None:
            _check_call("lifespan", self.lifespan, 0, "no parameter")
        if not isinstance(self.middleware, list | tuple):
            raise InvalidSetting(
                f"middleware must be a list of functions, not {shown(self.middleware)}",
                field="middleware",
            )
        if not isinstance(self.imports, list | tuple):
            raise InvalidSetting(
                f"imports must be a list of modules, not {shown(self.imports)}", field="imports"
            )
        for number, each in enumerate(self.middleware):
            _check_call(f"middleware[{number}]", each, 1, "one parameter, the context")

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
            found = {"item": declared_type(handler, options.get("together", 1) != 1), **options}
            if options.get("process") is True:
                _check_process(name, handler, is_async)
            around = tuple(self.middleware)
            action = Action(name, handler, is_async=is_async, middleware=around, **found)
            for other in self._actions.values():
                for known in other.limits:
                    for limit in action.limits:
                        if limit.name == known.name:
                            check_equal(known, limit, f"for action {other.name!r}")
            self._actions[name] = action
            return handler

        return register

    def get(self, name: str) -> Action | None:
        """Return the action with this name, or None if there is none: `actions.get("tag")`"""
        return self._actions.get(name)

    def and_also(self, *more: Action) -> Actions:
        """Return a copy of these actions to which `more` are added."""
        return replace(self, _actions=self._actions | {action.name: action for action in more})

    def wrapped(self, wrap: Callable[[Action], Action]) -> Actions:
        """Return a copy of these actions in which `wrap(action)` replaces each action."""
        return replace(self, _actions={name: wrap(each) for name, each in self._actions.items()})

    @asynccontextmanager
    async def living(self) -> AsyncIterator[Any]:
        """Enter the lifespan, yield the state for `context.state`, and exit at the end."""
        if self.lifespan is None:
            yield None
            return
        manager = self.lifespan()
        if isinstance(manager, AbstractAsyncContextManager):
            async with manager as state:
                yield state
        elif isinstance(manager, AbstractContextManager):
            with manager as state:
                yield state
        else:
            raise InvalidSetting(
                f"lifespan must return a context manager, not {shown(manager)}: decorate it with "
                "@contextlib.asynccontextmanager",
                field="lifespan",
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._actions)

    def __len__(self) -> int:
        return len(self._actions)


def declared_limits(actions: Actions) -> DeclaredLimits:
    """Return the limits of these actions, as a worker announces them."""
    found = [action for name in actions if (action := actions.get(name))]
    return DeclaredLimits(
        {limit.name: limit for action in found for limit in action.limits},
        {action.name: tuple(limit.name for limit in action.limits) for action in found},
    )


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


def _check_process(name: str, handler: Any, is_async: bool) -> None:
    """Raise unless a process can find the handler by its name, and run it without an event loop."""
    if is_async:
        raise InvalidSetting(
            f"the handler of {name!r} runs in a process, so it must be a plain `def`: an "
            "`async def` runs on the worker's event loop",
            field="process",
        )
    name_of(f"the handler of {name!r}, which has process=True,", handler)


def _check_call(field_name: str, function: Any, count: int, takes: str) -> None:
    """Raise unless `function` can be called with `count` positional arguments."""
    if not callable(function):
        raise InvalidSetting(
            f"{field_name} must be a function, not {shown(function)}", field=field_name
        )
    try:
        signature(function).bind(*[None] * count)
    except ValueError:  # a function in C may have no signature
        return
    except TypeError:
        name = getattr(function, "__name__", shown(function))
        raise InvalidSetting(
            f"{field_name} {name} must be a function with {takes}", field=field_name
        ) from None


def check_action(field_name: str, value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidSetting(
            f"{field_name} must be 1 to 100 characters of A-Z a-z 0-9 _ . - and begin with a "
            f"letter or digit, not {shown(value)}"
        )
    return value


def _is_any(handler: Callable[..., Any], *tests: Callable[[object], bool]) -> bool:
    """Return whether a test holds for the handler, or for the `__call__` of its class.

    A handler may be an object with such a method.
    """
    return any(test(handler) or test(type(handler).__call__) for test in tests)


# -- items with a type -------------------------------------------------------------------------


def declared_type(handler: Callable[..., Any], together: bool) -> Any:
    """Return the type in the annotation of a handler's first parameter, if the type has fields.

    If the handler takes lists of items (`together`), the annotation is `list[Type]`. Returns None
    for any other annotation: then items stay as they are.
    """
    try:
        first = next(iter(signature(handler).parameters.values()))
    except (ValueError, TypeError, StopIteration):
        return None
    hint = _resolved(first.annotation, handler)
    if together:
        hint = get_args(hint)[0] if get_origin(hint) is list and get_args(hint) else None
    return hint if _declares_fields(hint) else None


def _resolved(annotation: Any, handler: Any) -> Any:
    """Return the type that an annotation means.

    Returns None if the annotation uses a name that the handler's module does not define. This can
    happen if the annotation is a string.
    """
    function = getattr(handler, "func", handler)  # of a functools.partial
    function = getattr(function, "__wrapped__", function)
    names = getattr(function, "__globals__", {})
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"item": annotation}), names)["item"]
    except (NameError, TypeError, AttributeError, SyntaxError):
        return None


def _declares_fields(hint: Any) -> bool:
    if not isinstance(hint, type):
        return False
    is_struct = issubclass(hint, msgspec.Struct) or hasattr(hint, "model_validate")
    return is_struct or is_dataclass(hint) or is_typeddict(hint)


def _cure(error: ValueError) -> str:
    """Return a cure if an item has text where its type wants a number; otherwise an empty text.

    All values of a CSV file are text, so items from such a file often have this error.
    """
    if not TEXT_FOR_NUMBER.search(str(error)):
        return ""
    return ". All values of a .csv file are text: to submit numbers, use a .jsonl file"


def reader_of(action: str, kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts a stored item to the type `kind`.

    Raises `InvalidSetting` if there is no such conversion. The function raises `BadItem` if an item
    does not fit.
    """
    name = getattr(kind, "__name__", str(kind))
    if hasattr(kind, "model_validate"):
        validate = kind.model_validate
    else:
        try:
            msgspec.msgpack.Decoder(kind)
        except TypeError as error:
            raise InvalidSetting(
                f"item of action {action!r} must be a type that JSON values can be converted to, "
                f"not {shown(kind)}: {error}",
                field="item",
            ) from None

        def validate(item: Any) -> Any:
            return msgspec.convert(item, kind, builtin_types=BINARY)

    def read(item: Any) -> Any:
        try:
            return validate(item)
        except ValueError as error:  # as msgspec and pydantic raise it
            raise BadItem(f"the item is not a valid {name}: {error}{_cure(error)}") from None

    return read


class SteadyClock(Protocol):
    """The clock that `Announcements` goes by."""

    def monotonic_s(self) -> float: ...


class Announcements:
    """The limits that workers have announced, remembered for a second."""

    def __init__(self, read: Callable[[], Awaitable[DeclaredLimits]], clock: SteadyClock) -> None:
        self._read = read
        self._clock = clock
        self._known, self._known_s = DeclaredLimits(), float("-inf")
        self._reading = asyncio.Lock()

    async def added(self, batch: Batch) -> Batch:
        """Return the record of a new batch, with a copy of the limits of its action."""
        if batch.limits:
            return batch
        if self._is_old:
            async with self._reading:  # of many callers, one reads
                await self._refresh()
        if batch.action not in self._known.actions:
            return batch
        counting = tuple(limit.counting for limit in self._known.of(batch.action))
        return msgspec.structs.replace(batch, limits=counting)

    @property
    def _is_old(self) -> bool:
        return self._clock.monotonic_s() - self._known_s > ANNOUNCED_S

    async def _refresh(self) -> None:
        if self._is_old:
            now_s = self._clock.monotonic_s()
            self._known = await self._read()
            self._known_s = now_s
