"""Which coordinator leads: a lease on META with a fencing term, and what operators see of it.

The leader regularly increments `beat` in META. A standby coordinator measures with its own
monotonic clock how long term and beat stay the same. If both stay the same for a whole lease, the
standby starts the next term. No two machines compare clocks. A leader that was stopped for a while
may believe for a moment that it still leads. This is harmless, since every append is conditional on
the term. META names the last leader even after this leader has died. So `Leadership` compares the
end of the lease with the store's time.
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
from heatsink.primitives.words import counted
from heatsink.registry.decisions import LeaseStore, Meta

LEASE_S = 3.0
BEATS_PER_LEASE = 4
CURE = (
    "start `heatsink coordinator` or `heatsink serve`; until one leads, layouts do not change and "
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
        """`fleet_now_s` returns the store's time, from which the end of the lease is computed.

        `count_servers` returns how many servers report heat. The leader writes this number to META.
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
        """Stop leading, because the store has refused a write under this term."""
        self._term = None

    def _until_ms(self, lasts_s: float) -> int:
        return int((self._fleet_now_s() + lasts_s) * 1000)

    async def hold(self) -> bool:
        """Renew the lease, or try to get it. Returns whether this coordinator leads."""
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
        """Give up the lease, so that a standby coordinator can lead immediately.

        If the store does not answer, a standby has to wait until the lease expires. If a call of
        `hold` was cancelled, call `resign` even if this coordinator does not lead: the cancelled
        call may have got the lease.
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
    """Which coordinator leads at `now_ms`, which is in the store's time."""

    last: str
    """The last leader; empty if that process gave up its lease, or if there never was a leader."""
    until_ms: int
    """The end of the last lease; 0 if there never was a lease."""
    now_ms: int

    @property
    def leader(self) -> str:
        """The leader; empty if there is none."""
        return self.last if self.now_ms <= self.until_ms else ""

    @property
    def leaderless_s(self) -> float:
        """The number of seconds for which there has been no leader.

        The value is 0 while there is a leader, and infinite if there never was one.
        """
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
    """Return which coordinator leads at `now_ms`, according to META.

    If this process knows that the lease lasts longer than META says, it passes the later end as
    `led_until_ms`.
    """
    return Leadership(meta.leader, max(meta.lease_ms, led_until_ms), now_ms)


class TurnLog:
    """Sends events to hooks when this coordinator gains or loses leadership, or when turns fail.

    The first failure is sent immediately. While turns go on failing, the number of further failures
    is sent every ten seconds. When a turn succeeds, an event says that the failures are over.
    Intermittent failures are reported no more often than persistent ones.
    """

    def __init__(self, clock: Clock, hooks: Hooks = NO_HOOKS) -> None:
        self._clock = clock
        self._event = hooks.event
        self._told_s = float("-inf")
        self._untold = 0
        self._is_told = False
        self._term: int | None = None

    def note(self, error: HeatsinkError | None, term: int | None) -> None:
        """Send an event if leadership changed, if a turn failed, or if turns succeed again.

        `error` is the error of the last turn, or None. `term` is the current term, or None if this
        coordinator does not lead.
        """
        if term != self._term:
            self._note_reign(term)
        if error is not None:
            self._note_failure(error)
        elif self._is_told:
            after = f", after {counted(self._untold, 'more failure')}" if self._untold else ""
            message = f"the coordinator's turns succeed again{after}"
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
