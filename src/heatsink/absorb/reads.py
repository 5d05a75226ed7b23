"""Hot reads: one load for all who ask at the same time, and its value for those who come soon.

Ages are counted from the beginning of the load, on the monotonic clock. What `get` returns was
loaded no earlier than `stale_for` before the call, and after the last `forget` of its key here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from random import Random
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from heatsink.clock import Clock, SystemClock
from heatsink.errors import Closed
from heatsink.keys import check_key
from heatsink.owner import Owner

from .coalesce import Coalescer, Flight, Load
from .settings import ReadHeat, ReadSettings, ReadStats
from .shelf import BATCH, FRESH_S, LAST_OF_BATCH, STALE_S, Shelf, Times
from .templates import key_maker

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")


class Cached(Protocol[P, T_co]):
    """A function whose results are kept. `key` tells what to `forget`."""

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T_co]: ...

    def key(self, *arguments: P.args, **named: P.kwargs) -> str: ...


class Reads:
    """For one event loop at a time. Values are shared: treat them as read-only.

    `is_linked` says whether this process hears what others forget. While it does not, nothing is
    served beyond `fresh_for`.
    """

    def __init__(
        self,
        settings: ReadSettings | None = None,
        *,
        clock: Clock | None = None,
        rng: Random | None = None,
        heat: ReadHeat | None = None,
        owner: Owner | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._now = clock.monotonic_s
        self._shelf = Shelf(settings, self._now, rng, heat)
        self._note = self._shelf.heat.note
        self._find = self._shelf.cache.entries.get
        self._loading = Coalescer(clock, self._shelf.settings.patience_s)
        self._is_closed = False
        self._owner = owner
        if owner is not None:  # nobody tells the child what others forget
            owner.on_fork.append(self._shelf.cache.entries.clear)
        self.is_linked = True
        self.on_forget: Callable[[str], object] = lambda _key: None
        self.around_load: Callable[[str, Load], Load] = lambda _key, load: load

    async def get(
        self,
        key: str,
        load: Callable[[], Awaitable[T]],
        *,
        fresh_for: float = FRESH_S,
        stale_for: float = STALE_S,
        errors_for: float = 0.0,
    ) -> T:
        """The key's value: kept, or of a load under way, or loaded by `await load()`.

        For `fresh_for` it is served as it is; then, up to `stale_for`, it is served while it is
        loaded anew in the background. With `errors_for` a load's error is kept for so long, too.
        """
        entry = self._find(key)
        if entry is not None and self._now() - entry.aged_from_s < fresh_for <= stale_for:
            entry.hits = hits = entry.hits + 1
            if not hits & LAST_OF_BATCH:
                self._note(key, BATCH)
            value: T = entry.value
            return value
        times = Times(fresh_for, stale_for, errors_for)
        other: T = await self._get_otherwise(key, load, times)
        return other

    async def _get_otherwise(self, key: str, load: Load, times: Times) -> Any:
        """What is not fresh: stale, being loaded, or to be loaded."""
        key = check_key(key)
        self._check_open()
        if self._owner is not None:
            self._owner.check()
        self._note(key, 1)
        now_s, shelf = self._now(), self._shelf
        limit_s = times.stale_for if self.is_linked else times.fresh_for
        flight = self._loading.flying(key, now_s - limit_s)
        entry = self._find(key)
        if entry is not None:
            age_s = now_s - entry.aged_from_s
            if age_s < limit_s:
                shelf.stale_hits += 1
                entry.hits += 1
                if flight is None and shelf.is_due(key, entry, age_s, now_s):
                    self._start(key, load, times, is_refresh=True)
                return entry.value
            shelf.raise_kept_error(entry.value, now_s)
        if flight is None:
            flight = self._start(key, load, times, is_refresh=False)
        else:
            shelf.coalesced += 1
        return await self._loading.wait(key, flight)

    def _start(self, key: str, load: Load, times: Times, is_refresh: bool) -> Flight:
        self._shelf.loads += 1

        def keep(flight: Flight) -> None:
            self._shelf.keep(key, flight, times, is_refresh)

        around = self.around_load(key, load)
        return self._loading.start(key, around, keep, is_wanted=is_refresh)

    def forget(self, key: str) -> None:
        """After a write: no `get` from now on returns what was loaded before. Tells the others."""
        key = check_key(key)
        if self._owner is not None:
            self._owner.check_thread()
        self.drop(key)
        self.on_forget(key)

    def drop(self, key: str) -> None:
        """Forget here, and tell nobody."""
        self._loading.forget(key)
        self._shelf.cache.forget(key)

    def drop_all(self) -> None:
        """Forget everything here, and tell nobody."""
        self._loading.forget_all()
        self._shelf.cache.clear()

    def cached(
        self,
        key: str,
        *,
        fresh_for: float = FRESH_S,
        stale_for: float = STALE_S,
        errors_for: float = 0.0,
    ) -> Callable[[Callable[P, Awaitable[T]]], Cached[P, T]]:
        """`get` as a decorator. `key` names parameters, as in `"product:{id}"`."""
        times = Times(fresh_for, stale_for, errors_for)

        def decorate(function: Callable[P, Awaitable[T]]) -> Cached[P, T]:
            key_of, find, now, note = key_maker(key, function), self._find, self._now, self._note

            @wraps(function)
            async def call(*arguments: P.args, **named: P.kwargs) -> T:
                name = key_of(*arguments, **named)
                entry = find(name)  # `get`, written out: a second coroutine costs as much again
                if entry is not None and now() - entry.aged_from_s < fresh_for:
                    entry.hits = hits = entry.hits + 1
                    if not hits & LAST_OF_BATCH:
                        note(name, BATCH)
                    value: T = entry.value
                    return value
                load = partial(function, *arguments, **named)
                other: T = await self._get_otherwise(name, load, times)
                return other

            call.key = key_of  # type: ignore[attr-defined]
            return cast("Cached[P, T]", call)

        return decorate

    def stats(self) -> ReadStats:
        """What became of all reads so far."""
        return self._shelf.stats()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("these reads are closed: their client was closed")

    def close(self) -> None:
        """End what is being loaded; those who wait for it get `Closed`."""
        self._is_closed = True
        self._shelf.cache.clear()
        self._loading.close()
