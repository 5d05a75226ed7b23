"""Which coordinator leads: a lease on META, with a fencing term.

The leader raises META's `beat`; a standby that sees the same term and beat for a whole lease, by
its own monotonic clock, takes the next term. No two machines compare clocks. A leader that was
stopped for a while may believe for a moment that it still leads; the term in every append's
condition is what makes that harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from heatsink.checks import check_number
from heatsink.clock import Clock
from heatsink.errors import Deposed, Outdated, Retryable
from heatsink.registry.decision import Meta, Reading

LEASE_S = 3.0
BEATS_PER_LEASE = 4


class LeaseStore(Protocol):
    async def meta(self) -> Reading: ...

    async def lead(self, seen: Meta, leader: str, lease_ms: int) -> Meta:
        """Begin the next term if META's term and beat are still those seen, else `Outdated`."""

    async def beat(self, term: int, servers: int, lease_ms: int) -> None:
        """Raise the beat, note the size of the fleet and the end of the lease, if the term is ours.

        Else `Deposed`.
        """


class Lease:
    def __init__(
        self,
        store: LeaseStore,
        holder: str,
        clock: Clock,
        lease_s: float = LEASE_S,
        fleet_now_s: Callable[[], float] | None = None,
    ) -> None:
        """`fleet_now_s` is the time by the store's clock, for the end of the lease in META."""
        check_number("lease_s", lease_s, 0.1, 3600)
        self.term: int | None = None
        self.servers = 1
        self.holder = holder
        self._store = store
        self._clock = clock
        self._lease_s = lease_s
        self._fleet_now_s = fleet_now_s or clock.now_s
        self._beaten_s = 0.0
        self._is_asking = False
        self._seen: Meta | None = None
        self._seen_s = 0.0

    def _until_ms(self, lasts_s: float) -> int:
        return int((self._fleet_now_s() + lasts_s) * 1000)

    async def hold(self) -> bool:
        """Renew the lease or try to get it. True while this coordinator leads."""
        if self.term is None:
            await self._watch()
        elif self._clock.monotonic_s() - self._beaten_s >= self._lease_s / BEATS_PER_LEASE:
            await self._renew()
        return self.term is not None

    async def _renew(self) -> None:
        assert self.term is not None
        asked_s = self._clock.monotonic_s()
        try:
            await self._store.beat(self.term, self.servers, self._until_ms(self._lease_s))
            self._beaten_s = asked_s
        except Deposed:
            self.term = None
        except Retryable:
            if asked_s - self._beaten_s > self._lease_s:
                self.term = None

    async def _watch(self) -> None:
        asked_s = self._clock.monotonic_s()
        meta = (await self._store.meta()).meta
        if self._seen is None or (meta.term, meta.beat) != (self._seen.term, self._seen.beat):
            self._seen, self._seen_s = meta, asked_s
        if meta.leader == self.holder:
            self._start(meta)  # our own `lead`, whose answer was lost
        elif not meta.leader or asked_s - self._seen_s >= self._lease_s:
            await self._take(meta)

    async def _take(self, meta: Meta) -> None:
        self._is_asking = True
        try:
            until_ms = self._until_ms(self._lease_s)
            self._start(await self._store.lead(meta, self.holder, until_ms))
        except Outdated:
            self._seen, self._is_asking = None, False

    def _start(self, meta: Meta) -> None:
        self.term, self._beaten_s, self._seen = meta.term, self._clock.monotonic_s(), None
        self._is_asking = False

    async def resign(self) -> None:
        """Let the standby lead at once. Best effort: a lost resignation only costs a lease.

        Whoever was cancelled while it asked for the lead may have got it.
        """
        if self.term is None and not self._is_asking:
            return
        self.term = None
        try:
            meta = (await self._store.meta()).meta
            if meta.leader == self.holder:
                await self._store.lead(meta, "", self._until_ms(0))
        except (Retryable, Outdated):
            pass
