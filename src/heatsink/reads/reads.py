"""Hot reads with asyncio: concurrent reads of a key share one load, later reads use its value.

An entry's age counts from the start of its load, on the monotonic clock. The load of a value that
`get` returns began at most `stale_for` seconds before the call. It also began after the last
`forget` of the key in this process.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial, wraps
from hashlib import blake2b
from inspect import isawaitable
from random import Random
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from heatsink.errors import Closed, InvalidSetting, Unavailable
from heatsink.primitives.checks import shown
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.hooks import NO_HOOKS, Call, Hooks
from heatsink.primitives.keys import check_key
from heatsink.primitives.owner import CLOSED, Owner
from heatsink.primitives.subjects import AnyKey, Subject

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

Load = Callable[[], Awaitable[Any]]
Landed = Callable[["Flight"], None]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
COUNTERS = 4_096
REMEMBERED_MAX = 8_192


class Cached(Protocol[P, T_co]):
    """A function with cached results. `key(...)` returns the cache key of a call, for `forget`."""

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T_co]: ...

    def key(self, *arguments: P.args, **named: P.kwargs) -> str: ...


class Reads:
    """`hs.reads`: a cache in front of your loads, for one event loop at a time.

    Concurrent readers of a key share one load. All readers share the cached values, so treat a
    value as read-only. `is_linked` says whether invalidations of other processes arrive here. While
    they do not arrive, no value older than `fresh_for` is served. After the client is closed, calls
    raise `Closed`::

        product = await hs.reads.get("product:42", load_product)
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
        clock = clock or SystemClock()
        self._now = clock.monotonic_s
        self._shelf = Shelf(settings, self._now, rng, heat)
        self._note = self._shelf.heat.note
        self._find = self._shelf.cache.entries.get
        self._loading = Coalescer(clock, self._shelf.settings.patience_s)
        self._tags = TagIndex(self._is_alive, self._shelf.settings.capacity)
        self._is_closed = False
        self._owner = owner
        if owner is not None:  # a forked child gets no invalidations
            owner.on_fork.append(self._shelf.cache.entries.clear)
        self.is_linked = True
        self.on_forget: Callable[[str], object] = lambda _key: None
        self._hooks = hooks

    async def get(
        self,
        key: str,
        load: Callable[[], Awaitable[T]],
        *,
        fresh_for: float = FRESH_S,
        stale_for: float = STALE_S,
        errors_for: float = 0.0,
        tags: Sequence[str] = (),
    ) -> T:
        """Return the key's value: cached, from a running load, or from `await load()`.

        Times are in seconds. A cached value no older than `fresh_for` is returned as it is. If
        the value is older, but not older than `stale_for`, it is returned while a new value loads
        in the background. A load's error is raised to all readers that wait for the load. The error
        is cached for `errors_for`. `forget_tag` forgets all values with a tag; every reader of a
        key must name the same `tags`. Raises `Unavailable` if the load takes longer than
        `patience_s`::

            product = await hs.reads.get("product:42", load_product, fresh_for=1.0)
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
        other: T = await self._get_otherwise(key, load, times, tags)
        return other

    async def get_own(
        self, subject: Subject, load: Load, *, fresh_for: float, stale_for: float
    ) -> Any:
        """Return the cached or loaded value of a subject, as `get` does for a user's key."""
        key = check_key(subject)
        entry = self._find(key)
        if entry is not None and self._now() - entry.aged_from_s < fresh_for <= stale_for:
            entry.hits = hits = entry.hits + 1
            if not hits & LAST_OF_BATCH:
                self._note(key, BATCH)
            return entry.value
        return await self._load_or_join(key, load, Times(fresh_for, stale_for, 0.0))

    async def _get_otherwise(
        self, key: str, load: Load, times: Times, tags: Sequence[str] = ()
    ) -> Any:
        """Return the value of a key that has no fresh value in the cache. `get` calls this."""
        check_key(key)
        if tags:
            check_tags(tags)
            self._tags.note(key, tags)
        return await self._load_or_join(key, load, times)

    async def _load_or_join(self, key: str, load: Load, times: Times) -> Any:
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

        if self._hooks.observes_calls:
            load = partial(self._observed, key, load)
        return self._loading.start(key, load, keep, is_wanted=is_refresh)

    async def _observed(self, key: str, load: Load) -> Any:
        with self._hooks.around(Call("reads.load", key)):
            return await _called(load)

    def forget(self, key: AnyKey) -> None:
        """Drop a key's value: later calls of `get` in this process return only newly loaded values.

        Call `forget` after a write. If the client has `news`, other processes drop the value
        shortly afterwards. Raises `InvalidKey` for a bad key::

            await save(product)
            hs.reads.forget("product:42")
        """
        key = check_key(key)
        if self._owner is not None:
            self._owner.check_thread()
        self.drop(key)
        self.on_forget(key)

    def forget_tag(self, tag: str) -> None:
        """Drop all values that were loaded with a tag, as `forget` drops the value of one key.

        Raises `InvalidKey` for a bad tag::

            hs.reads.forget_tag("shop:7")
        """
        message = tag_message(tag)
        if self._owner is not None:
            self._owner.check_thread()
        self.drop(message)
        self.on_forget(message)

    def drop(self, key: str) -> None:
        """Forget a key, or the values of a tag, in this process only."""
        tag = tag_in(key)
        for each in [key] if tag is None else self._tags.take(tag):
            self._loading.forget(each)
            self._shelf.cache.forget(each)

    def drop_all(self) -> None:
        """Forget every key in this process only."""
        self._loading.forget_all()
        self._shelf.cache.clear()
        self._tags.clear()

    def _is_alive(self, key: str) -> bool:
        return self._find(key) is not None or self._loading.has(key)

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the client of these reads was opened in this event loop."""
        return self._owner is not None and self._owner.loop is loop

    def cached(
        self,
        key: Key,
        *,
        fresh_for: float = FRESH_S,
        stale_for: float = STALE_S,
        errors_for: float = 0.0,
        tags: Sequence[str] = (),
    ) -> Callable[[Callable[P, Awaitable[T]]], Cached[P, T]]:
        """Decorator that caches a function's results as `get` does.

        `key` is a template that names parameters of the function, or a function of the same
        parameters that returns the key; None means the function's name and all its arguments.
        `tags` are templates too. Raises `InvalidSetting` if the function has no such parameter::

            @hs.reads.cached("product:{id}", fresh_for=1.0)
            async def product(id): ...
        """
        check_template(key)
        times = Times(fresh_for, stale_for, errors_for)

        def decorate(function: Callable[P, Awaitable[T]]) -> Cached[P, T]:
            key_of, find, now, note = key_maker(key, function), self._find, self._now, self._note
            tags_of = tags_maker(tags, function)

            @wraps(function)
            async def call(*arguments: P.args, **named: P.kwargs) -> T:
                name = key_of(*arguments, **named)
                entry = find(name)  # `get` inlined: a second coroutine would double the cost
                if entry is not None and now() - entry.aged_from_s < fresh_for:
                    entry.hits = hits = entry.hits + 1
                    if not hits & LAST_OF_BATCH:
                        note(name, BATCH)
                    value: T = entry.value
                    return value
                load = partial(function, *arguments, **named)
                marks = tags_of(*arguments, **named) if tags_of else ()
                other: T = await self._get_otherwise(name, load, times, marks)
                return other

            call.key = key_of  # type: ignore[attr-defined]
            return cast("Cached[P, T]", call)

        return decorate

    def stats(self) -> ReadStats:
        """Return counts of hits, loads and failures so far: `hs.reads.stats().loads`"""
        return self._shelf.stats()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(CLOSED)

    def close(self) -> None:
        """Cancel all loads. Their readers get `Closed`, and later calls raise `Closed`.

        The client closes `hs.reads` itself. Call `close` only on a `Reads` that you made::

            reads = Reads()
            reads.close()
        """
        self._is_closed = True
        self._shelf.cache.clear()
        self._loading.close()


class NearPages:
    """Cached pages of hot logs. A write of this process to a key makes the key's pages invalid.

    Looking up the outdated pages at every write would cost too much. Instead Heatsink counts the
    writes to each key, and drops a page if the count has changed when the page is next read. Keys
    share a fixed number of counts. If two keys share a count, a write to one key causes an extra
    load of the other key's pages. For at most `remembered_max` pages, the cache remembers the count
    at the time of the read.
    """

    def __init__(self, reads: Reads, heat: ReadHeat, remembered_max: int = REMEMBERED_MAX) -> None:
        self._reads = reads
        self._heat = heat
        self._writes = [0] * COUNTERS
        self._asked: OrderedDict[str, int] = OrderedDict()  # pages, and the writes they have seen
        self._remembered_max = min(remembered_max, REMEMBERED_MAX)
        self.is_used = False

    async def get(
        self,
        key: str,
        page: tuple[object, ...],
        load: Callable[[], Awaitable[Any]],
        fresh_for: float,
        stale_for: float,
    ) -> Any:
        """Return the cached page or, if there is none, the result of `load`.

        `page` holds the arguments of the read: another tuple means another page.
        """
        Times(fresh_for, stale_for)
        self.is_used = True
        self._heat.note(key, 1)
        fresh_for = min(max(fresh_for, self._heat.near_s(key)), stale_for)
        name = blake2b(repr((key, *page)).encode("utf-8", "surrogatepass"), digest_size=16)
        self._drop_outdated(name.hexdigest(), self._writes[hash(key) % COUNTERS])
        return await self._reads.get(
            name.hexdigest(), load, fresh_for=fresh_for, stale_for=stale_for
        )

    def _drop_outdated(self, name: str, writes: int) -> None:
        """Drop a page if its key was written, or may have been written, since the page was read.

        `writes` is the current count of writes for the key.
        """
        if self._asked.get(name) == writes:
            return
        self._reads.drop(name)
        self._asked[name] = writes
        if len(self._asked) > self._remembered_max:
            self._asked.popitem(last=False)

    def wrote(self, key: str) -> None:
        self._writes[hash(key) % COUNTERS] += 1


class Coalescer:
    """Runs one load per key at a time, however many readers wait for it (singleflight).

    A load runs in its own task, so the cancellation of one reader does not end the load. When the
    last reader is cancelled, the load is cancelled. Each reader awaits a future of its own instead
    of the task. This future completes in every case: when the task returns, raises, times out, or
    is cancelled before its first step.

    Readers join only the newest load of a key, and only the value of that load is cached. After
    `forget`, readers that already wait for a load get its value. Later readers start another load.
    """

    def __init__(self, clock: Clock, patience_s: float) -> None:
        self._now = clock.monotonic_s
        self._patience_s = patience_s
        self._flights: dict[str, Flight] = {}
        self._tasks: dict[asyncio.Task[Any], Flight] = {}

    def flying(self, key: str, since_s: float) -> Flight | None:
        """Return the key's running load in this event loop, if it began at `since_s` or later."""
        flight = self._flights.get(key)
        if flight is None or flight.began_s < since_s:
            return None
        return flight if flight.loop is asyncio.get_running_loop() else None

    def start(self, key: str, load: Load, on_landing: Landed, is_wanted: bool = False) -> Flight:
        """Start a load. When the load ends, call `on_landing` if it is still the key's newest load.

        With `is_wanted`, the load continues even if all its readers are cancelled.
        """
        flight = Flight(self._now(), on_landing, is_wanted)
        flight.task = flight.loop.create_task(_called(load))
        flight.timer = flight.loop.call_later(self._patience_s, self._give_up, key, flight)
        self._flights[key] = flight
        self._tasks[flight.task] = flight
        flight.task.add_done_callback(lambda task: self._ended(key, flight, task))
        return flight

    async def wait(self, key: str, flight: Flight) -> Any:
        reader = asyncio.current_task()
        outer = self._tasks.get(reader) if reader else None  # a load that reads other keys
        if outer is not None:
            if outer in flight.chain():
                raise waits_for_itself(key)
            outer.waits_for = flight
        flight.readers += 1
        waiter = flight.loop.create_future()
        flight.waiting[waiter] = None
        try:
            await waiter
        finally:
            if outer is not None:
                outer.waits_for = None
            del flight.waiting[waiter]
            if not (flight.has_landed or flight.waiting or flight.is_wanted):
                self._abandon(key, flight)
        return flight.outcome()

    def _abandon(self, key: str, flight: Flight) -> None:
        """Cancel a load that has no readers left. No new reader can join it."""
        self._retire(key, flight)
        if flight.task is not None and not flight.loop.is_closed():
            flight.task.cancel()

    def _give_up(self, key: str, flight: Flight) -> None:
        text = f"the load of {key!r} took longer than {self._patience_s:g} s: retry later"
        self._land(key, flight, Unavailable(text))
        assert flight.task is not None
        flight.task.cancel()

    def _ended(self, key: str, flight: Flight, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            error: BaseException | None = Unavailable(f"the load of {key!r} was cancelled: retry")
        else:
            error = task.exception()
        if flight.has_landed:
            return
        if error is None:
            flight.value = task.result()
        self._land(key, flight, error)

    def _land(self, key: str, flight: Flight, error: BaseException | None) -> None:
        if error is not None:
            flight.fail(key, error)
        try:
            if self._retire(key, flight):
                flight.on_landing(flight)
        finally:  # wake the readers even if the user's `weigh` raises
            flight.land()

    def _retire(self, key: str, flight: Flight) -> bool:
        """Remove a load that has ended.

        Returns False if another load of the key has replaced it.
        """
        if self._flights.get(key) is not flight:
            return False
        del self._flights[key]
        return True

    def has(self, key: str) -> bool:
        """Return whether a load of the key is running whose value will be cached.

        A load that began before the last `forget` does not count.
        """
        return key in self._flights

    def forget(self, key: str) -> None:
        """Let later readers of the key start a new load, instead of joining a running one."""
        self._flights.pop(key, None)

    def forget_all(self) -> None:
        self._flights.clear()

    def close(self) -> None:
        """Cancel all loads; their readers get `Closed`."""
        for key, flight in list(self._flights.items()):
            flight.fail(key, Closed(f"the client was closed during the load of {key!r}"))
            flight.land()
        self._flights.clear()
        for task in self._tasks:
            task.cancel()


class Flight(Landing):
    """A running load.

    With `is_wanted`, the load continues without readers, for example as a background refresh.
    `waits_for` is another load that this load reads.
    """

    __slots__ = (
        *("has_landed", "is_wanted", "loop", "on_landing", "task", "timer", "waiting"),
        "waits_for",
    )

    def __init__(self, began_s: float, on_landing: Landed, is_wanted: bool) -> None:
        super().__init__(began_s)
        self.on_landing = on_landing
        self.is_wanted = is_wanted
        self.has_landed = False
        self.loop = asyncio.get_running_loop()
        self.task: asyncio.Task[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.waiting: dict[asyncio.Future[None], None] = {}  # woken in order
        self.waits_for: Flight | None = None

    def chain(self) -> Iterator[Flight]:
        """Return this load, the load for which it waits, the load for which that load waits, …"""
        flight: Flight | None = self
        while flight is not None:
            yield flight
            flight = flight.waits_for

    def land(self) -> None:
        self.has_landed = True
        if self.timer is not None:
            self.timer.cancel()
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)


async def _called(load: Load) -> Any:
    try:
        loading = load()
    except TypeError:
        if wrong := why_not_loaded(load, "an async function"):
            raise wrong from None
        raise
    if not isawaitable(loading):
        function = load.func if isinstance(load, partial) else load  # of `cached`: with arguments
        name = getattr(function, "__qualname__", shown(function))
        raise InvalidSetting(
            f"load must be an async function, not {name}, which returned "
            f"{shown(loading)}: define it with `async def`",
            field="load",
        )
    return await loading
