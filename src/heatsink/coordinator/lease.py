"""Which coordinator leads: a lease on META with a fencing term, and what operators see of it.

The leader raises META's `beat`. A standby that sees the same term and beat for a whole lease, by
its own monotonic clock, takes the next term. No two machines compare clocks. A leader that was
stopped for a while may believe for a moment that it still leads; every append is conditional on the
term, which makes that harmless. META names the last leader even after that process has died, so
`Leadership` also compares the end of the lease with the store's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from heatsink.errors import Deposed, HeatsinkError, Outdated, Retryable
from heatsink.primitives.checks import check_number
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import NO_HOOKS, Hooks
from heatsink.registry.decisions import LeaseStore, Meta

LEASE_S = 3.0
BEATS_PER_LEASE = 4
CURE = (
    "start `heatsink coordinator` or `heatsink serve`; until one leads, layouts stand still and "
    "new pins wait"
)
EVERY_S = 10.0


class Lease:
    def __init__(
        self,
        store: LeaseStore,
        holder: str,
        clock: Clock,
        lease_s: float = LEASE_S,
        fleet_now_s: Callable[[], float] | None = None,
        count_servers: Callable[[], int] = lambda: 1,
    ) -> None:
        """`fleet_now_s` is the time by the store's clock, for the end of the lease in META.

        `count_servers` returns how many servers report heat, which the leader writes to META.
        """
        check_number("lease_s", lease_s, 0.1, 3600)
        self.holder = holder
        self._term: int | None = None
        self._count_servers = count_servers
        self._store = store
        self._clock = clock
        self._lease_s = lease_s
        self._fleet_now_s = fleet_now_s or clock.now_s
        self._beaten_s = 0.0
        self._is_asking = False
        self._seen: Meta | None = None
        self._seen_s = 0.0

    @property
    def term(self) -> int | None:
        """The term in which this coordinator leads; None while it does not."""
        return self._term

    def lose(self) -> None:
        """Stop leading: the store has refused a write under this term."""
        self._term = None

    def _until_ms(self, lasts_s: float) -> int:
        return int((self._fleet_now_s() + lasts_s) * 1000)

    async def hold(self) -> bool:
        """Renew the lease or try to get it. True while this coordinator leads."""
        term = self._term
        if term is None:
            await self._watch()
        elif self._clock.monotonic_s() - self._beaten_s >= self._lease_s / BEATS_PER_LEASE:
            await self._renew(term)
        return self._term is not None

    async def _renew(self, term: int) -> None:
        asked_s = self._clock.monotonic_s()
        try:
            until_ms = self._until_ms(self._lease_s)
            await self._store.beat(term, self._count_servers(), until_ms)
            self._beaten_s = asked_s
        except Deposed:
            self._term = None
        except Retryable:
            if asked_s - self._beaten_s > self._lease_s:
                self._term = None

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
        self._term, self._beaten_s, self._seen = meta.term, self._clock.monotonic_s(), None
        self._is_asking = False

    async def resign(self) -> None:
        """Give up the lease, so that a standby leads at once.

        If this fails, the standby waits until the lease expires. A process that was cancelled
        while it tried to get the lease may have it, so it resigns too.
        """
        if self._term is None and not self._is_asking:
            return
        self._term = None
        try:
            meta = (await self._store.meta()).meta
            if meta.leader == self.holder:
                await self._store.lead(meta, "", self._until_ms(0))
        except (Retryable, Outdated):
            pass


class Leadership(msgspec.Struct, frozen=True):
    """Who leads at `now_ms`, by the store's clock."""

    last: str
    """The last leader; empty if it gave up its lease, or there never was one."""
    until_ms: int
    """The end of the last lease; 0 if there never was one."""
    now_ms: int

    @property
    def leader(self) -> str:
        """The leader; empty if there is none."""
        return self.last if self.now_ms <= self.until_ms else ""

    @property
    def leaderless_s(self) -> float:
        """How long there has been no leader: 0 with a leader, infinite if there never was one."""
        if self.leader:
            return 0.0
        return max(self.now_ms - self.until_ms, 0) / 1000 if self.until_ms else float("inf")

    @property
    def vacancy(self) -> str | None:
        """How long there has been no leader, and why, in words; None while there is one."""
        if self.leader:
            return None
        if not self.until_ms:
            return "there has been no leader yet"
        since = datetime.fromtimestamp(self.until_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        why = f"; the lease of {self.last} expired" if self.last else ""
        return f"no leader since {since} UTC ({self.leaderless_s:,.0f} s ago{why})"


def leadership_of(meta: Meta, now_ms: int, led_until_ms: int = 0) -> Leadership:
    """Who leads; `led_until_ms` is a later end of the lease than META's, if one is known."""
    return Leadership(meta.leader, max(meta.lease_ms, led_until_ms), now_ms)


class TurnLog:
    """Tells the hooks when this coordinator gains or loses leadership, and when its turns fail.

    Of failures it tells the first at once, then every ten seconds how many more there were, then
    that they are over. Intermittent failures are told no more often than persistent ones.
    """

    def __init__(self, clock: Clock, hooks: Hooks = NO_HOOKS) -> None:
        self._clock = clock
        self._event = hooks.event
        self._told_s = float("-inf")
        self._untold = 0
        self._is_told = False
        self._term: int | None = None

    def note(self, error: HeatsinkError | None, term: int | None) -> None:
        """Note the error of a turn, or None, and the term in which this coordinator leads."""
        if term != self._term:
            self._note_reign(term)
        if error is not None:
            self._note_failure(error)
        elif self._is_told:
            message = f"turns of the coordinator succeed again; {self._untold} more failed"
            self._event("coordinator.recovered", message, logging.WARNING)
            self._untold, self._is_told = 0, False

    def _note_reign(self, term: int | None) -> None:
        if term is None:
            lost = self._term or 0
            message = f"another coordinator may lead now: term {lost} is over"
            self._event("leadership.lost", message, fields={"term": lost})
        else:
            message = f"this coordinator leads now, in term {term}"
            self._event("leadership.gained", message, fields={"term": term})
        self._term = term

    def _note_failure(self, error: HeatsinkError) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._told_s < EVERY_S:
            self._untold += 1
            return
        many = f"{self._untold + 1} more turns" if self._untold else "a turn"
        message = f"{many} of the coordinator failed: {error}"
        self._event("coordinator.failed", message, logging.WARNING, fields={"error": str(error)})
        self._told_s, self._untold, self._is_told = now_s, 0, True
