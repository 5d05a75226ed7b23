"""Which id a new row gets and which partition it goes to: from the view, without I/O.

Where the view does not reach, `PastHorizon` says so, and whoever awaits has it renewed first. The
hot path tries `fresh` and awaits `fresh_later` only then.
"""

from __future__ import annotations

from functools import lru_cache, partial
from random import Random

from heatsink.clock import Clock
from heatsink.hashing import seeded_hash, seeded_state
from heatsink.ids import IdScheme, Uuid7, minter_of
from heatsink.keys import escape, partition_of
from heatsink.registry.layout import FIRST_EPOCH, Epoch
from heatsink.registry.registry import Registry

from .backoff import Backoff

Placed = tuple[bytes, int, str, Epoch]  # an id, its time, its partition and the epoch that chose it

name_of = lru_cache(maxsize=16_384)(partition_of)  # spread keys are hot keys: their names recur


class PastHorizon(Exception):
    """The view does not yet know every epoch that could hold this time: renew it first."""


class Router:
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
        """A new id below the horizon, and its place. The hot path of every append."""
        view = self._view
        now_ms = int(self._now_s() * 1000) + self._time.correction_ms
        if not 0 < view.horizon_ms - now_ms <= self._registry.behind_ms_max:
            now_ms = self._near_horizon(now_ms)
        raw, time_ms = self._mint(now_ms, view.horizon_ms)
        layout = view.layouts.get(key)
        if layout is None:
            name = escape(key) if "#" in key or "%" in key else key
            return raw, time_ms, name, FIRST_EPOCH
        epoch = layout.epochs[-1]
        if time_ms < epoch.start_ms:
            epoch = layout.epoch_at(time_ms)
        if epoch.buckets == 1:
            return raw, time_ms, escape(key), epoch
        state = self._begin_hash()  # as in `place`, without a call
        state.update(raw)
        bucket = int.from_bytes(state.digest(), "big") % epoch.buckets
        return raw, time_ms, name_of(key, bucket), epoch

    async def fresh_later(self, key: str, deadline_s: float) -> Placed:
        """After a renewal, a clock that is still past the horizon runs fast and is clamped."""
        await self._backoff.call(self._registry.renew_shared, "", deadline_s)
        raw, time_ms = self._mint(self._registry.now_ms(), self._view.horizon_ms)
        return raw, time_ms, *self.place(key, raw, time_ms)

    async def token(self, deadline_s: float) -> tuple[bytes, int]:
        """An id of our own, for adds: of one kind, whatever ids the deployment's logs have."""
        try:
            now_ms = self._near_horizon(self._registry.now_ms())
        except PastHorizon:
            await self._backoff.call(self._registry.renew_shared, "", deadline_s)
            now_ms = self._registry.now_ms()
        return self._mint_token(now_ms, self._view.horizon_ms)

    def _near_horizon(self, now_ms: int) -> int:
        """Now, but not far behind the horizon; past it only if it has just been renewed."""
        horizon_ms = self._view.horizon_ms
        if now_ms >= horizon_ms and not self._registry.is_fresh():
            raise PastHorizon
        return max(now_ms, horizon_ms - self._registry.behind_ms_max)

    def place(self, key: str, raw: bytes, time_ms: int) -> tuple[str, Epoch]:
        """The partition of an id, and the epoch that put it there."""
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
        """As `place`, when the horizon has passed the id; or refuse it."""
        try:
            return self.place(key, raw, time_ms)
        except PastHorizon:
            reach = partial(self._registry.reach, time_ms, deadline_s)
            await self._backoff.call(reach, key, deadline_s)
        return self.place(key, raw, time_ms)

    def id_from(self, value: object) -> tuple[bytes, int]:
        """A caller's own id and its time."""
        raw = self.scheme.raw(value)
        return raw, self.scheme.time_ms(raw)
