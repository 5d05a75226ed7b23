"""Hot reads for threads: the cache of `reads.py` without asyncio.

A load runs in the thread of the reader that needs it. Other readers wait for that load or, if there
is a stale value, get the stale value. A fresh hit takes no lock, since a new value is always a new
entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial, wraps
from inspect import iscoroutine
from math import inf
from random import Random
from threading import Event, RLock, get_ident
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from msgspec import structs

from heatsink.errors import Closed, InvalidSetting, Unavailable
from heatsink.primitives.checks import shown
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.hooks import NO_HOOKS, Call, Hooks
from heatsink.primitives.keys import check_key
from heatsink.primitives.owner import CLOSED, Owner
from heatsink.primitives.subjects import AnyKey

from .near_cache import (
    BATCH,
    FRESH_S,
    LAST_OF_BATCH,
    STALE_S,
    Landing,
    ReadHeat,
    ReadSettings,
    ReadStats,
    Shelf,
    Times,
    waits_for_itself,
    why_not_loaded,
)
from .tags import TagIndex, check_tags, tag_in, tag_message
from .templates import Key, check_template, key_maker, tags_maker

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
Load = Callable[[], Any]


class BlockingCached(Protocol[P, T_co]):
    """A function with cached results. `key(...)` returns the cache key of a call, for `forget`."""

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> T_co: ...

    def key(self, *arguments: P.args, **named: P.kwargs) -> str: ...


class _Flight(Landing):
    """A load that is running in a reader's thread."""

    __slots__ = ("landed", "thread")

    def __init__(self, began_s: float) -> None:
        super().__init__(began_s)
        self.landed = Event()
        self.thread = get_ident()


class BlockingReads:
    """`hs.reads` of the blocking client: the cache of `Reads`, for threads.

    All readers share the cached values, so treat a value as read-only. A reader that waits too long
    for another reader's load gets `Unavailable`. After the client is closed, calls raise `Closed`::

        product = hs.reads.get("product:42", load_product)
        hs.reads.forget("product:42")  # after a write
    """

    def __init__(
        self,
        settings: ReadSettings | None = None,
        *,
        clock: Clock | None = None,
        rng: Random | None = None,
        heat: ReadHeat | None = None,
        owner: Owner | None = None,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._now = (clock or SystemClock()).monotonic_s
        self._shelf = Shelf(settings, self._now, rng, heat)
        self._note = self._shelf.heat.note
        self._find = self._shelf.cache.entries.get
        self._flights: dict[str, _Flight] = {}
        self._waiting: dict[int, _Flight] = {}  # by the threads that wait for another's load
        self._tags = TagIndex(self._is_alive, self._shelf.settings.capacity)
        self._lock = RLock()  # reentrant: a user's `weigh` may call `get`
        self._owner = owner
        if owner is not None:  # a forked child gets no invalidations
            owner.on_fork.append(self._shelf.cache.entries.clear)
        self._is_closed = False
        self.is_linked = True
        self.on_forget: Callable[[str], object] = lambda _key: None
        self._hooks = hooks

    def get(
        self,
        key: str,
        load: Callable[[], T],
        *,
        fresh_for: float = FRESH_S,
        stale_for: float = STALE_S,
        errors_for: float = 0.0,
        tags: Sequence[str] = (),
    ) -> T:
        """Return the key's value: cached, from a running load, or from `load()`.

        Times are in seconds. A cached value of up to the age `fresh_for` is returned as it is. If
        the value is older, but not older than `stale_for`, one reader loads a new value and the
        other readers get the old value. A load's error is raised to all readers that wait for the
        load. The error is cached for `errors_for`. `forget_tag` forgets all values with a tag;
        every reader of a key must name the same `tags`. A reader that waits longer than
        `patience_s` for another reader's load gets `Unavailable`::

            product = hs.reads.get("product:42", load_product, fresh_for=1.0)
        """
        entry = self._find(key)
        try:
            if entry is not None and self._now() - entry.aged_from_s < fresh_for <= stale_for:
                entry.hits = hits = entry.hits + 1
                if not hits & LAST_OF_BATCH:
                    self._note(key, BATCH)
                value: T = entry.value
                return value
        except TypeError:
            Times(fresh_for, stale_for, errors_for)  # names the time that is no number
            raise
        times = Times(fresh_for, stale_for, errors_for)
        other: T = self._get_otherwise(key, load, times, tags)
        return other

    def _get_otherwise(self, key: str, load: Load, times: Times, tags: Sequence[str] = ()) -> Any:
        """Return the value of a key that has no fresh value in the cache. `get` calls this."""
        key = check_key(key)
        self._check_open()
        if tags:
            check_tags(tags)
            with self._lock:
                self._tags.note(key, tags)
        self._note(key, 1)
        now_s, shelf = self._now(), self._shelf
        limit_s = times.stale_for if self.is_linked else times.fresh_for
        with self._lock:
            flight = self._flying(key, now_s - limit_s)
            entry = self._find(key)
            age_s = inf if entry is None else now_s - entry.aged_from_s
            stale = entry if age_s < limit_s else None
            if stale and (flight is not None or not shelf.is_due(key, stale, age_s, now_s)):
                shelf.stale_hits += 1
                stale.hits += 1
                return stale.value
            if entry is not None and stale is None:
                shelf.raise_kept_error(entry.value, now_s)
            joined = flight is not None
            if flight is not None:
                self._check_ends(key, flight)
            flight = flight or self._start(key, now_s)
            flight.readers += 1
            shelf.coalesced += joined
        if joined:
            return self._wait(key, flight)
        self._load(key, flight, load, times, is_refresh=stale is not None)
        return stale.value if stale and flight.error else flight.outcome()

    def _flying(self, key: str, since_s: float) -> _Flight | None:
        flight = self._flights.get(key)
        return None if flight is None or flight.began_s < since_s else flight

    def _start(self, key: str, now_s: float) -> _Flight:
        self._shelf.loads += 1
        flight = self._flights[key] = _Flight(now_s)
        return flight

    def _check_ends(self, key: str, flight: _Flight) -> None:
        """Raise if this thread would wait for a load that itself waits for this thread.

        `flight` is the load to wait for.
        """
        own, each = get_ident(), cast("_Flight | None", flight)
        while each is not None:
            if each.thread == own:
                raise waits_for_itself(key)
            each = self._waiting.get(each.thread)
        self._waiting[own] = flight

    def _wait(self, key: str, flight: _Flight) -> Any:
        patience_s = self._shelf.settings.patience_s
        try:
            has_landed = flight.landed.wait(patience_s)
        finally:
            self._waiting.pop(get_ident(), None)
        if not has_landed:
            raise Unavailable(f"the load of {key!r} took longer than {patience_s:g} s: retry later")
        return flight.outcome()

    def _load(self, key: str, flight: _Flight, load: Load, times: Times, is_refresh: bool) -> None:
        try:
            with self._hooks.around(Call("reads.load", key)):
                flight.value = _called(load)
        except Exception as error:
            flight.fail(key, error)
        except BaseException as error:
            flight.fail(key, error)
            raise
        finally:
            self._land(key, flight, times, is_refresh)

    def _land(self, key: str, flight: _Flight, times: Times, is_refresh: bool) -> None:
        try:
            with self._lock:
                if self._flights.get(key) is flight:
                    del self._flights[key]
                    self._shelf.keep(key, flight, times, is_refresh)
        finally:  # wake the readers even if the user's `weigh` raises
            flight.landed.set()

    def forget(self, key: AnyKey) -> None:
        """Drop a key's value: later calls of `get` in this process return only newly loaded values.

        Call `forget` after a write. If the client has `news`, other processes drop the value
        shortly afterwards. Raises `InvalidKey` for a bad key.

        Example::

            hs.reads.forget("product:42")
        """
        key = check_key(key)
        self._check_open()
        self.drop(key)
        self.on_forget(key)

    def forget_tag(self, tag: str) -> None:
        """Drop all values that were loaded with a tag, as `forget` drops the value of one key.

        Raises `InvalidKey` for a bad tag::

            hs.reads.forget_tag("shop:7")
        """
        message = tag_message(tag)
        self._check_open()
        self.drop(message)
        self.on_forget(message)

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:  # noqa: ARG002
        """Return True: any thread may use these reads, whatever event loop runs in it."""
        return True

    def _is_alive(self, key: str) -> bool:
        return self._find(key) is not None or key in self._flights

    def _check_open(self) -> None:
        if self._owner is not None:
            self._owner.check_process()
        if self._is_closed:
            raise Closed(CLOSED)

    def close(self) -> None:
        """Drop all values; later calls raise `Closed`.

        The client closes `hs.reads` itself. Call `close` only on a `BlockingReads` that you made::

            reads = BlockingReads()
            reads.close()
        """
        self._is_closed = True
        self.drop_all()

    def drop(self, key: str) -> None:
        """Forget a key, or the values of a tag, in this process only."""
        tag = tag_in(key)
        with self._lock:
            for each in [key] if tag is None else self._tags.take(tag):
                self._flights.pop(each, None)
                self._shelf.cache.forget(each)

    def drop_all(self) -> None:
        """Forget every key in this process only."""
        with self._lock:
            self._flights.clear()
            self._shelf.cache.clear()
            self._tags.clear()

    def cached(
        self,
        key: Key,
        *,
        fresh_for: float = FRESH_S,
        stale_for: float = STALE_S,
        errors_for: float = 0.0,
        tags: Sequence[str] = (),
    ) -> Callable[[Callable[P, T]], BlockingCached[P, T]]:
        """Decorator that caches a function's results as `get` does.

        `key` is a template that names parameters of the function, or a function of the same
        parameters that returns the key; None means the function's name and all its arguments.
        `tags` are templates too. Raises `InvalidSetting` if the function has no such parameter::

            @hs.reads.cached("product:{id}", fresh_for=1.0)
            def product(id): ...
        """
        check_template(key)
        times = structs.asdict(Times(fresh_for, stale_for, errors_for))

        def decorate(function: Callable[P, T]) -> BlockingCached[P, T]:
            key_of, get = key_maker(key, function), self.get
            tags_of = tags_maker(tags, function)

            @wraps(function)
            def call(*arguments: P.args, **named: P.kwargs) -> T:
                load = partial(function, *arguments, **named)
                marks = tags_of(*arguments, **named) if tags_of else ()
                return get(key_of(*arguments, **named), load, **times, tags=marks)

            call.key = key_of  # type: ignore[attr-defined]
            return cast("BlockingCached[P, T]", call)

        return decorate

    def stats(self) -> ReadStats:
        """Return counts of hits, loads and failures so far: `hs.reads.stats().loads`"""
        with self._lock:
            return self._shelf.stats()


def _called(load: Load) -> Any:
    try:
        value = load()
    except TypeError:
        if wrong := why_not_loaded(load, "a function"):
            raise wrong from None
        raise
    if iscoroutine(value):
        value.close()
        raise InvalidSetting(
            f"load must be a plain function, not {shown(load)}: this client runs no `async def`",
            field="load",
        )
    return value
