"""What becomes of a load when it lands: the part that asyncio and threads have in common."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from types import TracebackType
from typing import Any

import msgspec

from heatsink.checks import check_number
from heatsink.errors import InvalidSetting, Unavailable

from .near_cache import Entry, NearCache
from .settings import NoHeat, ReadHeat, ReadSettings, ReadStats

FRESH_S = 0.5
STALE_S = 5.0
BATCH = 64  # hits of an entry that are reported as one; a power of two
LAST_OF_BATCH = BATCH - 1
REST_S_MAX = 1.0


class Times(msgspec.Struct, frozen=True):
    """How old a reader accepts what it gets."""

    fresh_for: float = FRESH_S
    stale_for: float = STALE_S
    errors_for: float = 0.0

    def __post_init__(self) -> None:
        check_number("fresh_for", self.fresh_for, 0)
        check_number("stale_for", self.stale_for, 0)
        check_number("errors_for", self.errors_for, 0)
        if self.fresh_for > self.stale_for:
            least = f"at least fresh_for ({self.fresh_for:g} s)"
            raise InvalidSetting(f"stale_for must be {least}, not {self.stale_for:g} s")


class Landing:
    """A load, and what it brought once it has landed: no older than `began_s`."""

    __slots__ = ("_trace", "began_s", "error", "readers", "value")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.readers = 0
        self.value: Any = None
        self.error: Exception | None = None
        self._trace: TracebackType | None = None

    def fail(self, key: str, error: BaseException) -> None:
        """What ends a thread, a task or the process is not the error of those who waited."""
        if not isinstance(error, Exception):
            ended = Unavailable(f"the load of {key!r} was ended by {type(error).__name__}: retry")
            ended.__cause__ = error
            error = ended
        self.error, self._trace = error, error.__traceback__

    def outcome(self) -> Any:
        """For each reader. A shared error must not collect the traces of all who raised it."""
        if self.error is not None:
            raise self.error.with_traceback(self._trace)
        return self.value


class _Failure:
    """An error that is kept instead of a value."""

    __slots__ = ("error", "until_s")

    def __init__(self, error: Exception, until_s: float) -> None:
        self.error = error
        self.until_s = until_s


class Shelf:
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
        """A load landed and nothing was forgotten meanwhile. The time it took counts as age.

        A refresh that fails leaves the stale value where it is, and the source in peace.
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

    def is_due(self, key: str, entry: Entry, age_s: float, now_s: float) -> bool:
        """Whether somebody should load a stale value anew."""
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
