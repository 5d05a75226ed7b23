"""Which coordinator leads: a lease on META, with a fencing term.

The leader raises META's `beat`; a standby that sees the same term and beat for a whole lease, by
its own monotonic clock, takes the next term. No two machines compare clocks. A leader that was
stopped for a while may believe for a moment that it still leads; the term in every append's
condition is what makes that harmless.
"""

from __future__ import annotations

from typing import Protocol

from heatsink.checks import check_number
from heatsink.clock import Clock
from heatsink.errors import Deposed, Outdated, Retryable
from heatsink.registry.decision import Meta, Reading

LEASE_S = 3.0
BEATS_PER_LEASE = 4


class LeaseStore(Protocol):
    async def meta(self) -> Reading: ...

    async def lead(self, seen: Meta, leader: str) -> Meta:
        """Begin the next term if META's term and beat are still those seen, else `Outdated`."""

    async def beat(self, term: int, servers: int) -> None:
        """Raise the beat and note the size of the fleet if the term is still this one.

        Else `Deposed`.
        """


class Lease:
    def __init__(
        self, store: LeaseStore, holder: str, clock: Clock, lease_s: float = LEASE_S
    ) -> None:
        check_number("lease_s", lease_s, 0.1, 3600)
        self.term: int | None = None
        self.servers = 1
        self.holder = holder
        self._store = store
        self._clock = clock
        self._lease_s = lease_s
        self._beaten_s = 0.0
        self._seen: Meta | None = None
        self._seen_s = 0.0

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
            await self._store.beat(self.term, self.servers)
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
        try:
            self._start(await self._store.lead(meta, self.holder))
        except Outdated:
            self._seen = None

    def _start(self, meta: Meta) -> None:
        self.term, self._beaten_s, self._seen = meta.term, self._clock.monotonic_s(), None

    async def resign(self) -> None:
        """Let the standby lead at once. Best effort: a lost resignation only costs a lease."""
        if self.term is None:
            return
        term, self.term = self.term, None
        try:
            meta = (await self._store.meta()).meta
            if meta.term == term:
                await self._store.lead(meta, "")
        except (Retryable, Outdated):
            pass
