"""Which id a new row gets and which partition it goes to: from the view, without I/O.

`fresh_id` and `place` raise `PastHorizon` where the view does not reach; their `…_later` twins
renew it first. The hot path tries the former and awaits the latter only then.
"""

from __future__ import annotations

from functools import partial
from random import Random

from heatsink.clock import Clock
from heatsink.hashing import seeded_hash
from heatsink.ids import IdScheme, Minter, Uuid7
from heatsink.keys import escape
from heatsink.registry.layout import FIRST_EPOCH, Epoch
from heatsink.registry.registry import Registry

from .backoff import Backoff


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
        self._backoff = backoff
        self._now_s = clock.now_s
        self._mint = Minter(scheme, rng).mint
        self._mint_token = Minter(Uuid7(), rng).mint

    def fresh_id(self) -> tuple[bytes, int]:
        """A new id and its time, below the horizon."""
        return self._mint(self._mint_ms(), self._view.horizon_ms)

    def fresh_token(self) -> tuple[bytes, int]:
        """An id of our own, for adds: of one kind, whatever ids the deployment's logs have."""
        return self._mint_token(self._mint_ms(), self._view.horizon_ms)

    def _mint_ms(self) -> int:
        """Now, but not far behind the horizon; past it only if it has just been renewed."""
        now_ms = int(self._now_s() * 1000) + self._time.correction_ms
        horizon_ms = self._view.horizon_ms
        if now_ms >= horizon_ms:
            if not self._registry.is_fresh():
                raise PastHorizon
        elif now_ms < horizon_ms - self._registry.behind_ms_max:
            return horizon_ms - self._registry.behind_ms_max
        return now_ms

    async def fresh_id_later(self, deadline_s: float) -> tuple[bytes, int]:
        """After a renewal, a clock that is still past the horizon runs fast and is clamped."""
        await self._backoff.call(self._registry.renew_shared, "", deadline_s)
        return self._mint(self._registry.now_ms(), self._view.horizon_ms)

    async def fresh_token_later(self, deadline_s: float) -> tuple[bytes, int]:
        await self._backoff.call(self._registry.renew_shared, "", deadline_s)
        return self._mint_token(self._registry.now_ms(), self._view.horizon_ms)

    def place(self, key: str, raw: bytes, time_ms: int) -> tuple[str, Epoch]:
        """The partition of an id, and the epoch that put it there."""
        if time_ms >= self._view.horizon_ms:
            raise PastHorizon
        layout = self._view.layouts.get(key)
        if layout is None:
            return escape(key), FIRST_EPOCH
        epoch = layout.epoch_at(time_ms)
        buckets = epoch.buckets
        if buckets == 1:
            return escape(key), epoch
        return f"{escape(key)}#{self._hash(raw) % buckets}", epoch

    async def place_later(
        self, key: str, raw: bytes, time_ms: int, deadline_s: float
    ) -> tuple[str, Epoch]:
        """Wait until the horizon passes the id, or refuse it."""
        reach = partial(self._registry.reach, time_ms, deadline_s)
        await self._backoff.call(reach, key, deadline_s)
        return self.place(key, raw, time_ms)

    def id_from(self, value: object) -> tuple[bytes, int]:
        """A caller's own id and its time."""
        raw = self.scheme.raw(value)
        return raw, self.scheme.time_ms(raw)
