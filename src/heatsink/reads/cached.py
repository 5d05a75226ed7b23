"""`@heatsink.cached`: a decorator for functions that are defined before a client is open.

The decorated function uses the cache of the client that is open when the function is called. For an
`async def` this is a client of `connect`, for a plain function a client of `connect_sync`. The
clients of a process register their caches here when they open. This register is the only state that
the clients of a process share. It is needed because a decorator at import time has no other way to
find a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from inspect import iscoroutinefunction
from threading import Lock
from typing import Any, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

from heatsink.errors import Closed, InvalidSetting
from heatsink.primitives.checks import shown
from heatsink.primitives.words import counted, did_you_mean

from .blocking import BlockingCached, BlockingReads
from .near_cache import FRESH_S, STALE_S, Times
from .reads import Cached, Reads
from .templates import key_maker, tags_maker

P = ParamSpec("P")
T = TypeVar("T")
AnyReads = Reads | BlockingReads
_open: list[AnyReads] = []
_lock = Lock()


def opened(cache: AnyReads) -> None:
    """Make the cache of a client that was opened available to decorated functions."""
    with _lock:
        _open.append(cache)


def closed(cache: AnyReads) -> None:
    with _lock:
        if cache in _open:
            _open.remove(cache)


class Decorator:
    """What `cached(…)` returns: call it with the function."""

    def __init__(self, key: Any, tags: Sequence[str], times: Times) -> None:
        self._key = key
        self._tags = tags
        self._times = times

    @overload
    def __call__(self, function: Callable[P, Awaitable[T]]) -> Cached[P, T]: ...

    @overload
    def __call__(self, function: Callable[P, T]) -> BlockingCached[P, T]: ...

    def __call__(self, function: Callable[..., Any]) -> Any:
        if not callable(function):
            raise InvalidSetting(
                f"cached() decorates a function, not {shown(function)}", field="function"
            )
        kind = Reads if iscoroutinefunction(function) else BlockingReads
        key_of = key_maker(self._key, function)
        tags_maker(self._tags, function)  # raises for wrong tags
        bound: WeakKeyDictionary[AnyReads, Any] = WeakKeyDictionary()
        options: dict[str, Any] = {
            "fresh_for": self._times.fresh_for,
            "stale_for": self._times.stale_for,
            "errors_for": self._times.errors_for,
            "tags": self._tags,
        }

        def find() -> Any:
            cache = _current(kind, function)
            if cache not in bound:
                bound[cache] = cache.cached(self._key, **options)(function)
            return bound[cache]

        @wraps(function)
        async def call(*arguments: Any, **named: Any) -> Any:
            return await find()(*arguments, **named)

        @wraps(function)
        def call_blocking(*arguments: Any, **named: Any) -> Any:
            return find()(*arguments, **named)

        decorated: Any = call if kind is Reads else call_blocking
        decorated.key = key_of
        return decorated


@overload
def cached(key: Callable[P, Awaitable[T]], /) -> Cached[P, T]: ...


@overload
def cached(key: Callable[P, T], /) -> BlockingCached[P, T]: ...


@overload
def cached(
    key_template: str | None = None,
    /,
    *,
    key: str | Callable[..., str] | None = None,
    tags: Sequence[str] = (),
    fresh_for: float = FRESH_S,
    stale_for: float = STALE_S,
    errors_for: float = 0.0,
) -> Decorator: ...


def cached(
    first: Any = None,
    /,
    *,
    key: str | Callable[..., str] | None = None,
    tags: Sequence[str] = (),
    fresh_for: float = FRESH_S,
    stale_for: float = STALE_S,
    errors_for: float = 0.0,
    **unknown: Any,
) -> Any:
    """Decorator that caches a function's results in the client that is open when it is called.

    The key is a template that names parameters (`"product:{id}"`, `"{user.id}"`), or a function of
    the same parameters that returns the key. Without a template, the key is the name of the
    function with all its arguments. `tags` are templates too: `hs.reads.forget_tag("shop:7")`
    forgets all values with this tag. The other parameters are those of `hs.reads.get`. A call
    raises `Closed` if no client is open, and `InvalidSetting` if several are. The undecorated
    function is `__wrapped__`::

        @heatsink.cached("product:{id}", tags=["shop:{shop}"], fresh_for=1.0)
        async def product(id: int, shop: int) -> dict: ...
    """
    for name in unknown:
        cure = did_you_mean(name, ("key", "tags", "fresh_for", "stale_for", "errors_for"))
        raise InvalidSetting(f"cached has no parameter {name!r}: {cure}", field=name)
    times = Times(fresh_for, stale_for, errors_for)
    if callable(first):
        return Decorator(None, (), times)(first)
    if first is not None and key is not None:
        raise InvalidSetting("key is given twice: as the first argument, and by name", field="key")
    return Decorator(first if key is None else key, tags, times)


def _current(kind: type[AnyReads], function: Callable[..., Any]) -> AnyReads:
    """Return the cache of the one client that is open for this kind of function."""
    loop = asyncio.get_running_loop() if kind is Reads else None
    found = [
        cache
        for cache in _open
        if isinstance(cache, kind) and (loop is None or cache.belongs_to(loop))
    ]
    if len(found) == 1:
        return found[0]
    name = getattr(function, "__qualname__", "the function")
    if found:
        raise InvalidSetting(
            f"{counted(len(found), 'client')} are open, and {name} is not bound to one of them: "
            "decorate it with @hs.reads.cached(…) of one client"
        )
    opening = "connect" if kind is Reads else "connect_sync"
    raise Closed(
        f"no client is open that could cache {name}: call it inside `heatsink.{opening}(…)`, or "
        f"call {name}.__wrapped__ to run it without a cache"
    )
