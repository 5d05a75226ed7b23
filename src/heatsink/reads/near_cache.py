"""The bounded cache behind `Reads` and `BlockingReads`.

`NearCache` evicts by S3-FIFO. `Shelf` caches the value or the error of a load that has ended, both
for asyncio and for threads. `NearKeys` holds the leader's decisions on which keys to cache longer.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from inspect import signature
from math import inf
from random import Random
from types import TracebackType
from typing import Any, Protocol

import msgspec

from heatsink.errors import InvalidSetting, Unavailable
from heatsink.primitives.checks import CheckedStruct, check_number, check_whole, shown
from heatsink.primitives.clock import Clock
from heatsink.primitives.subjects import subject_of
from heatsink.registry.decisions import Decision, SoftDecision, Targets

from .policy import NEAR

CAPACITY = 10_000
SMALL_SHARE = 0.1
CREDIT_MAX = 3  # maximum hits that count at eviction, so that keys that cooled down are evicted
FRESH_S = 0.5
STALE_S = 5.0
BATCH = 64  # hits of an entry that are reported as one; a power of two
LAST_OF_BATCH = BATCH - 1
REST_S_MAX = 1.0
REPEAT_S = 30.0
FORGET_S = 4 * REPEAT_S
Weigh = Callable[[Any], int]


def waits_for_itself(key: str) -> InvalidSetting:
    """Return the error for a load that reads the key it loads. Without it, the load would hang."""
    text = f"the load of {key!r} reads {key!r} itself, directly or through another load: "
    return InvalidSetting(text + "read the value from your store there", field="load")


def why_not_loaded(load: object, kind: str) -> InvalidSetting | None:
    """Return the error for a `load` that is not a function or has parameters, otherwise None."""
    cure = "pass the function itself, not its result"
    if callable(load):
        try:
            signature(load).bind()
        except ValueError:  # a function in C may have no signature
            return None
        except TypeError:
            cure = "bind its arguments with functools.partial"
        else:
            return None
    return InvalidSetting(
        f"load must be {kind} without parameters, not {shown(load)}: {cure}", field="load"
    )


class ReadSettings(CheckedStruct, frozen=True):
    """The settings of a process's cache: its size, and how long readers wait for a load."""

    capacity: int = CAPACITY
    """Maximum number of entries, or maximum sum of what `weigh` returns."""
    weigh: Weigh | None = None
    """A function that returns a value's weight, such as its bytes. If None, each value weighs 1."""
    patience_s: float = 30.0
    """Timeout of a load, in seconds. After it, the readers of the load get `Unavailable`."""
    jitter: float = 0.1
    """Each entry expires early by a random time of up to `jitter` × `fresh_for`."""

    def __post_init__(self) -> None:
        check_whole("capacity", self.capacity, 1, 10**12)
        if self.weigh is not None and not callable(self.weigh):
            raise InvalidSetting(
                "weigh must be a function of a value that returns an int", field="weigh"
            )
        check_number("patience_s", self.patience_s, 0.001, 86_400)
        check_number("jitter", self.jitter, 0, 1)


class ReadStats(msgspec.Struct, frozen=True):
    """Counts since the start. `coalesced` counts reads that waited for another reader's load."""

    hits: int
    stale_hits: int
    loads: int
    coalesced: int
    failures: int
    evictions: int
    entries: int


class Times(msgspec.Struct, frozen=True):
    """For how many seconds a reader accepts a fresh value, a stale value and a cached error."""

    fresh_for: float = FRESH_S
    stale_for: float = STALE_S
    errors_for: float = 0.0

    def __post_init__(self) -> None:
        check_number("fresh_for", self.fresh_for, 0, unit="seconds")
        check_number("stale_for", self.stale_for, 0, unit="seconds")
        check_number("errors_for", self.errors_for, 0, unit="seconds")
        if self.fresh_for > self.stale_for:
            least = f"at least fresh_for ({self.fresh_for:g} s)"
            raise InvalidSetting(
                f"stale_for must be {least}, not {self.stale_for:g} s", field="stale_for"
            )


class ReadHeat(Protocol):
    """Counts reads, and returns the leader's decisions on which keys to cache longer."""

    def note(self, key: str, reads: int) -> None: ...

    def near_s(self, key: str) -> float:
        """Return for how many seconds processes cache the key's value; 0 if it is not read-hot."""


class NoHeat:
    """Stands in for the heat if `Reads` is used without a client: no key is read-hot."""

    def note(self, key: str, reads: int) -> None:
        pass

    def near_s(self, _key: str) -> float:
        return 0.0


class CacheEntry:
    """A key's value and its statistics. A new value always gets a new entry: threads rely on that.

    `aged_from_s` is the time from which the value's age counts. It is a random time shortly before
    the start of the load. So entries that were loaded together do not expire together. An entry
    without a value is infinitely old. After a failed refresh, the next refresh starts at
    `rests_until_s` at the earliest.
    """

    __slots__ = ("aged_from_s", "hits", "is_main", "rests_until_s", "spent", "value", "weight")

    def __init__(self, value: Any, aged_from_s: float, weight: int, is_main: bool) -> None:
        self.value = value
        self.aged_from_s = aged_from_s
        self.weight = weight
        self.is_main = is_main
        self.rests_until_s = -inf
        self.hits = 0
        self.spent = 0

    def credit(self) -> int:
        return min(self.hits - self.spent, CREDIT_MAX)

    def spend(self, left: int) -> None:
        self.spent = self.hits - left


class NearCache:
    """S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi 2023), by number of entries or by weight.

    A new key enters a small queue. If the key is read again before it reaches the end of that
    queue, it moves to the main queue. Otherwise the key is evicted, and the cache remembers only
    its name, the *ghost*, for a while. If a key with a ghost is loaded again, it goes directly to
    the main queue. So a scan passes through the small queue and evicts no key of the main queue. A
    hit only increments a counter; all other work is done at eviction.

    For speed, `get` of `Reads` and `BlockingReads` looks up a key in `entries` directly. A thread
    that does not hold the lock may only read `entries`.
    """

    def __init__(self, capacity: int = CAPACITY, weigh: Weigh | None = None) -> None:
        self.entries: dict[str, CacheEntry] = {}
        self.evictions = 0
        self.retired_hits = 0
        self._capacity = capacity
        self._weigh = weigh
        self._small: deque[str] = deque()
        self._main: deque[str] = deque()
        self._ghosts: OrderedDict[str, None] = OrderedDict()
        self._small_capacity = max(1, int(capacity * SMALL_SHARE))
        self._small_weight = 0
        self._weight = 0

    def put(self, key: str, value: Any, aged_from_s: float, is_hot: bool = False) -> None:
        """Cache a value, whose age counts from `aged_from_s`.

        A key that is in the cache keeps its place in its queue. A new key enters the small queue
        or, with `is_hot`, the main queue.
        """
        weight = 1 if self._weigh is None else max(int(self._weigh(value)), 1)
        if weight > self._capacity:
            self.forget(key)
            return
        seated = self.entries.get(key)
        if seated is None:
            self._seat(key, value, aged_from_s, weight, is_hot)
        else:
            seated.spent -= 1  # the reader that caused the load counts as a hit
            self._replace(key, seated, CacheEntry(value, aged_from_s, weight, seated.is_main))
        while self._weight > self._capacity:
            self._make_room()

    def _seat(self, key: str, value: Any, aged_from_s: float, weight: int, is_hot: bool) -> None:
        came_back = self._ghosts.pop(key, self) is None
        entry = CacheEntry(value, aged_from_s, weight, came_back or is_hot)
        (self._main if entry.is_main else self._small).append(key)
        self._weigh_in(entry, weight)
        self.entries[key] = entry

    def _replace(self, key: str, seated: CacheEntry, entry: CacheEntry) -> None:
        entry.hits, entry.spent = seated.hits, seated.spent
        self._weigh_in(seated, entry.weight - seated.weight)
        self.entries[key] = entry

    def _weigh_in(self, entry: CacheEntry, change: int) -> None:
        self._weight += change
        if not entry.is_main:
            self._small_weight += change

    def _make_room(self) -> None:
        if self._small and (self._small_weight > self._small_capacity or not self._main):
            self._leave_small(self._small.popleft())
        else:
            self._leave_main(self._main.popleft())

    def _leave_small(self, key: str) -> None:
        entry = self.entries[key]
        if entry.credit():
            self._small_weight -= entry.weight
            entry.is_main = True
            entry.spend(0)
            self._main.append(key)
            return
        self._evict(key, entry)
        self._ghosts[key] = None
        while len(self._ghosts) > max(len(self.entries), 1):
            self._ghosts.popitem(last=False)

    def _leave_main(self, key: str) -> None:
        entry = self.entries[key]
        credit = entry.credit()
        if credit:
            entry.spend(credit - 1)
            self._main.append(key)
        else:
            self._evict(key, entry)

    def _evict(self, key: str, entry: CacheEntry) -> None:
        del self.entries[key]
        self._weigh_in(entry, -entry.weight)
        self.evictions += 1
        self.retired_hits += entry.hits

    def credit(self, key: str, reads: int) -> None:
        """Count the `reads` readers that waited for the key's load as hits."""
        entry = self.entries.get(key)
        if entry is not None:
            entry.spent -= reads

    def forget(self, key: str) -> None:
        """Drop the value of a key, but leave the key where it is in its queue.

        The key was written, and is probably read as often as before. So its next value takes the
        same place in the queue.
        """
        seated = self.entries.get(key)
        if seated is not None:
            self._replace(key, seated, CacheEntry(None, -inf, 1, seated.is_main))

    def clear(self) -> None:
        for key in list(self.entries):
            self.forget(key)

    @property
    def hits(self) -> int:
        return self.retired_hits + sum(entry.hits for entry in list(self.entries.values()))


class Landing:
    """The state of a load: when it began and, after it has ended, its value or its error."""

    __slots__ = ("_trace", "began_s", "error", "readers", "value")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.readers = 0
        self.value: Any = None
        self.error: Exception | None = None
        self._trace: TracebackType | None = None

    def fail(self, key: str, error: BaseException) -> None:
        """Store the error of the load for its readers.

        An error that ends a task or a process, such as SystemExit, becomes `Unavailable`.
        """
        if not isinstance(error, Exception):
            ended = Unavailable(f"{type(error).__name__} ended the load of {key!r}: retry")
            ended.__cause__ = error
            error = ended
        self.error, self._trace = error, error.__traceback__

    def outcome(self) -> Any:
        """Return the value of the load, or raise its error.

        Each reader gets the error with the original traceback: a shared traceback would grow with
        each reader.
        """
        if self.error is not None:
            raise self.error.with_traceback(self._trace)
        return self.value


class Shelf:
    """The cache and its statistics: the part that `Reads` and `BlockingReads` share."""

    def __init__(
        self,
        settings: ReadSettings | None,
        now: Callable[[], float],
        rng: Random | None,
        heat: ReadHeat | None,
    ) -> None:
        self.settings = settings or ReadSettings()
        self.heat = heat or NoHeat()
        self.cache = NearCache(self.settings.capacity, self.settings.weigh)
        self.stale_hits = self.loads = self.coalesced = self.failures = 0
        self._now = now
        self._rng = rng or Random()

    def keep(self, key: str, landed: Landing, times: Times, is_refresh: bool = False) -> None:
        """Cache the value or the error of a load. The caller checks that the key was not forgotten.

        The value's age counts from the start of the load. If a refresh fails, the stale value stays
        in the cache, and the next refresh waits for a while.
        """
        if landed.error is None:
            aged_s = self.settings.jitter * times.fresh_for * self._rng.random()
            is_hot = self.heat.near_s(key) > 0
            self.cache.put(key, landed.value, landed.began_s - aged_s, is_hot)
            self.cache.credit(key, landed.readers - 1)
            return
        self.failures += 1
        seated = self.cache.entries.get(key)
        if is_refresh and seated is not None:
            rest_s = max(times.errors_for, min(times.fresh_for, REST_S_MAX))
            seated.rests_until_s = self._now() + rest_s
        elif times.errors_for and not is_refresh:
            self.cache.put(key, _Failure(landed.error, self._now() + times.errors_for), -inf)

    def is_due(self, key: str, entry: CacheEntry, age_s: float, now_s: float) -> bool:
        """Return whether to load a new value now, for an entry that is stale."""
        return now_s >= entry.rests_until_s and age_s >= self.heat.near_s(key)

    def raise_kept_error(self, value: Any, now_s: float) -> None:
        if isinstance(value, _Failure) and now_s < value.until_s:
            raise value.error.with_traceback(None)

    def stats(self) -> ReadStats:
        return ReadStats(
            hits=self.cache.hits - self.stale_hits,
            stale_hits=self.stale_hits,
            loads=self.loads,
            coalesced=self.coalesced,
            failures=self.failures,
            evictions=self.cache.evictions,
            entries=len(self.cache.entries),
        )


class _Failure:
    """A load's error, cached instead of a value."""

    __slots__ = ("error", "until_s")

    def __init__(self, error: Exception, until_s: float) -> None:
        self.error = error
        self.until_s = until_s


class NearKeys:
    """The leader's decisions on keys to cache near, as received by this process.

    Leaders repeat every decision that is in force. If a decision was not repeated for `FORGET_S`,
    this process treats it as withdrawn, since the message that withdrew it may be lost.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic_s
        self._targets = Targets()
        self._heard_s: dict[str, float] = {}

    def apply(self, news: Iterable[SoftDecision]) -> None:
        news = [soft for soft in news if soft.decision.setting == NEAR]
        self._targets.apply(news)
        now_s = self._now()
        for soft in news:
            if self.decision(soft.decision.key) == soft.decision:
                self._heard_s[soft.decision.key] = now_s
        for key, heard_s in list(self._heard_s.items()) if news else ():
            if now_s - heard_s > FORGET_S or self.decision(key) is None:
                del self._heard_s[key]
                self._targets.forget(subject_of(key), NEAR)

    def decision(self, key: str) -> Decision | None:
        return self._targets.get(subject_of(key), NEAR)

    def in_force(self) -> dict[str, Decision]:
        now_s = self._now()
        held = {k: self.decision(k) for k, s in self._heard_s.items() if now_s - s <= FORGET_S}
        return {key: decision for key, decision in held.items() if decision is not None}

    def near_s(self, key: str) -> float:
        heard_s = self._heard_s.get(key)
        if heard_s is None or self._now() - heard_s > FORGET_S:
            return 0.0
        decision = self.decision(key)
        return 0.0 if decision is None or decision.value is None else decision.value / 1_000
