"""Routing: mint a row's id and compute its partition from the view, without I/O.

If the view does not yet cover an id's time, the synchronous functions raise `PastHorizon`. The
asynchronous functions renew the view instead. So an append first calls `fresh`. The append awaits
`fresh_later` only if `fresh` has raised `PastHorizon`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from random import Random
from typing import Protocol, TypeVar

from heatsink.heat.count import Tracker
from heatsink.primitives.clock import Clock
from heatsink.primitives.ids import IdScheme, Uuid7, minter_of
from heatsink.primitives.keys import escape, partition_of, seeded_hash, seeded_state
from heatsink.primitives.owner import Owner
from heatsink.primitives.subjects import OWN
from heatsink.registry.layouts import FIRST_EPOCH, Epoch
from heatsink.registry.registry import Registry

from .backoff import Backoff

Placed = tuple[bytes, int, str, Epoch]  # an id, its time, its partition and the epoch that chose it

name_of = lru_cache(maxsize=16_384)(partition_of)  # spread keys are hot keys: their names recur
Page = TypeVar("Page")


class PastHorizon(Exception):
    """The view does not yet hold every epoch up to this time: renew the view first."""


class Router:
    """Mints ids and places them, for the logs and counters of one process."""

    def __init__(
        self, registry: Registry, scheme: IdScheme, backoff: Backoff, clock: Clock, rng: Random
    ) -> None:
        self.scheme = scheme
        self._registry = registry
        self._view = registry.view
        self._time = registry.time
        self._hash = seeded_hash(registry.meta.seed)
        self._begin_hash = seeded_state(registry.meta.seed)
        self._backoff = backoff
        self._now_s = clock.now_s
        self._mint = minter_of(scheme, rng).mint
        self._mint_token = minter_of(Uuid7(), rng).mint

    def fresh(self, key: str) -> Placed:
        """Mint an id below the horizon and place it. Every append calls this, so it must be fast.

        Raises `PastHorizon` if the view must be renewed first.
        """
        view = self._view
        now_ms = int(self._now_s() * 1000) + self._time.correction_ms
        if not 0 < view.horizon_ms - now_ms <= self._registry.behind_ms_max:
            now_ms = self._near_horizon(now_ms)
        raw, time_ms = self._mint(now_ms, view.horizon_ms)
        layout = view.layouts.get(key)
        if layout is None:
            name = escape(key) if "#" in key or "%" in key or key[0] == OWN else key
            return raw, time_ms, name, FIRST_EPOCH
        epoch = layout.epochs[-1]
        if time_ms < epoch.start_ms:
            epoch = layout.epoch_at(time_ms)
        if epoch.buckets == 1:
            return raw, time_ms, escape(key), epoch
        state = self._begin_hash()  # as `place` does, inlined for speed
        state.update(raw)
        bucket = int.from_bytes(state.digest(), "big") % epoch.buckets
        return raw, time_ms, name_of(key, bucket), epoch

    async def fresh_later(self, key: str, deadline_s: float) -> Placed:
        """Renew the view, then mint an id and place it, as `fresh` does.

        If the clock is past the horizon even after the renewal, the clock is fast. Then the id gets
        a time below the horizon.
        """
        await self._backoff.call(self._registry.renew_shared, "", deadline_s)
        raw, time_ms = self._mint(self._registry.now_ms(), self._view.horizon_ms)
        return raw, time_ms, *self.place(key, raw, time_ms)

    async def token(self, deadline_s: float) -> tuple[bytes, int]:
        """Mint a token for an add, and return it with its time.

        A token is a UUIDv7, whatever kind of ids the logs use.
        """
        try:
            now_ms = self._near_horizon(self._registry.now_ms())
        except PastHorizon:
            await self._backoff.call(self._registry.renew_shared, "", deadline_s)
            now_ms = self._registry.now_ms()
        return self._mint_token(now_ms, self._view.horizon_ms)

    def _near_horizon(self, now_ms: int) -> int:
        """Return the time for a new id: `now_ms`, or later if `now_ms` is far below the horizon.

        In that case, the result is `behind_ms_max` below the horizon. Raises `PastHorizon` if
        `now_ms` is past the horizon and the view is not fresh.
        """
        horizon_ms = self._view.horizon_ms
        if now_ms >= horizon_ms and not self._registry.is_fresh():
            raise PastHorizon
        return max(now_ms, horizon_ms - self._registry.behind_ms_max)

    def place(self, key: str, raw: bytes, time_ms: int) -> tuple[str, Epoch]:
        """Return the partition key of an id, and the epoch that places the id there.

        Raises `PastHorizon` if the view does not cover the id's time.
        """
        if not self._view.knows(key, time_ms):
            raise PastHorizon
        layout = self._view.layouts.get(key)
        if layout is None:
            return escape(key), FIRST_EPOCH
        epoch = layout.epoch_at(time_ms)
        return partition_of(key, epoch.bucket(self._hash(raw))), epoch

    async def place_soon(
        self, key: str, raw: bytes, time_ms: int, deadline_s: float
    ) -> tuple[str, Epoch]:
        """Wait until the view covers the id's time, then place the id as `place` does.

        Raises `InvalidId` if the id is from the future.
        """
        try:
            return self.place(key, raw, time_ms)
        except PastHorizon:
            reach = partial(self._registry.reach, time_ms, deadline_s)
            await self._backoff.call(reach, key, deadline_s)
        return self.place(key, raw, time_ms)

    def id_from(self, value: object) -> tuple[bytes, int]:
        """Return an id that the caller passed, as a pair of its bytes and its time."""
        raw = self.scheme.raw(value)
        return raw, self.scheme.time_ms(raw)


class PageCache(Protocol):
    """Caches pages for a short time. A write of this process to a key drops the key's pages.

    While `is_used` is False, the cache is empty. Then writes need not call `wrote`.
    """

    is_used: bool

    async def get(
        self,
        key: str,
        page: tuple[object, ...],
        load: Callable[[], Awaitable[Page]],
        fresh_for: float,
        stale_for: float,
    ) -> Page:
        """Return the cached page or, if there is none, the result of `load`.

        `page` holds the arguments of the read: another tuple means another page.
        """

    def wrote(self, key: str) -> None: ...


class NoPageCache:
    is_used = False

    async def get(
        self, _key: str, _page: object, load: Callable[[], Awaitable[Page]], *_: float
    ) -> Page:
        return await load()

    def wrote(self, key: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that the logs and counters of one process share.

    `answers_in_s` is the store's own timeout: the store ends every put within that time.
    """

    registry: Registry
    router: Router
    tracker: Tracker
    backoff: Backoff
    clock: Clock
    pages: PageCache = field(default_factory=NoPageCache)
    answers_in_s: float = math.inf
    owner: Owner = field(default_factory=Owner)

    def begin(self) -> float:
        """Check the caller and the registry as `check` does.

        Returns the deadline of a call that starts now.
        """
        self.check()
        return self.clock.monotonic_s() + self.backoff.patience_s

    def check(self) -> None:
        """Raise if the store was replaced, or for a call from another process or event loop."""
        self.owner.check()
        if self.registry.refusal:
            self.registry.check()

    async def confirm_absence(self, key: str, deadline_s: float) -> None:
        """Raise if the store was wiped. Call this after a read that found nothing.

        If the view is fresh, this process would have noticed a wipe. If the view is old, because
        the process slept or could not reach the registry, the call first renews the view. That
        costs one request.
        """
        if not self.registry.is_fresh():
            await self.backoff.call(self.registry.renew_shared, key, deadline_s)
        self.registry.check()
