"""The coordinator of a process with its parts, and what the process knows of the fleet.

Every process has a `Coordination`, even if the process never leads. The `Coordination` tells which
process leads and which keys are hot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from heatsink.errors import HeatsinkError
from heatsink.heat.fleet import FleetHeat
from heatsink.heat.heat import KeyHeat, PartitionHeat
from heatsink.heat.report import ReportSettings
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import NO_HOOKS, Hooks
from heatsink.primitives.subjects import subject_of
from heatsink.reads.policy import NearPolicy, NearRules
from heatsink.registry.decisions import BUCKETS, Decision
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff
from heatsink.spread.policy import BucketPolicy, BucketRules
from heatsink.stores.stores import Stores

from .keys import HeatShow, KeyWatch
from .lease import Leadership, Lease, TurnLog, leadership_of
from .loops import ControlLoop, Coordinator, Leader, Turn
from .reads import NearDecisions, NearWatch


class HotKey(msgspec.Struct, frozen=True):
    """A hot key. New rows of the key go to `buckets` buckets now."""

    key: str
    buckets: int
    heat: KeyHeat


class Hottest(msgspec.Struct, frozen=True):
    """The fleet's hottest keys in the last complete window.

    The leader receives all reports. If there is a Redis for news, the leader shows the hottest keys
    to the other processes. In a process that does not know the hottest keys, `start_s` is None. A
    key that is not listed had at most `unreported_s` write units a second. `unreported_s` is None
    if no such bound is known.
    """

    leads: bool
    leader: str
    window_s: float
    start_s: float | None = None
    unreported_s: float | None = None
    keys: tuple[HotKey, ...] = ()
    partitions: tuple[PartitionHeat, ...] = ()
    """The store's hottest partitions, hottest first, if the store reports them."""
    nobody_leads: str | None = None
    """How long there has been no leader, in words; None while there is one."""


@dataclass(frozen=True)
class CoordinationSettings:
    """The name of this process, and the rules that it applies while it leads."""

    name: str
    buckets: BucketRules
    near: NearRules
    report: ReportSettings
    lease_s: float
    dedicated: bool = False


class Coordination:
    """The coordinator of a process, and what the process knows of the fleet and of the leader."""

    def __init__(
        self,
        stores: Stores,
        registry: Registry,
        settings: CoordinationSettings,
        near: NearDecisions,
        make_loops: Callable[[Leader], Sequence[Turn]],
        clock: Clock,
        backoff: Backoff,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        """`make_loops` makes the control loops of the queue and of a watched cluster."""
        name = settings.name
        self.watch = KeyWatch(stores.bus, registry, name, settings.report)
        lease = Lease(
            stores.lease,
            name,
            clock,
            settings.lease_s,
            registry.fleet_now_s,
            count_servers=lambda: self.watch.servers,
        )
        self.leader = Leader(registry, lease, hooks)
        self.rules = settings.buckets
        self._policy, self._near_policy = BucketPolicy(self.rules), NearPolicy(settings.near)
        self._keys = ControlLoop(self.watch.observe, self._policy, self.leader.publish)
        reads = NearWatch(self.watch, self._near_policy, self.leader, near, clock)
        show = [] if stores.board is None else [HeatShow(self.watch, stores.board)]
        loops: list[Turn] = [self._keys, *show, reads, *make_loops(self.leader)]
        note = TurnLog(clock, hooks).note
        self.coordinator = Coordinator(registry, lease, clock, loops, note, settings.dedicated)
        self._registry = registry
        self._board = stores.board
        self._backoff = backoff

    def adopt(self, rules: BucketRules, near: NearRules, report: ReportSettings) -> None:
        """Decide by these rules, and count heat as servers report it, from now on."""
        self.rules = rules
        self._policy.adopt(rules)
        self._near_policy.adopt(near)
        self.watch.adopt(report)

    async def fleet_heat(self, deadline_s: float) -> FleetHeat | None:
        """Return the fleet's recent heat; None if this process does not know it.

        The leader itself adds up the reports. Other processes read the sums that the leader
        publishes.
        """
        known = self.watch.seen if self.leader.leads else await self._shown(deadline_s)
        return known if known and known.is_recent(self._registry.fleet_now_s()) else None

    async def _shown(self, deadline_s: float) -> FleetHeat | None:
        if self._board is None:
            return None
        with suppress(HeatsinkError), self._backoff.cut(deadline_s):
            return await self._board.look()
        return None

    async def hottest(self, limit: int) -> Hottest:
        deadline_s = self._backoff.deadline_s()
        leads, heat = self.leader.leads, await self.fleet_heat(deadline_s)
        if heat is None:
            found = await self.look_who_leads(deadline_s)
            window_s = self.watch.window_s
            return Hottest(leads, found.leader, window_s, nobody_leads=found.vacancy)
        hottest = heat.hottest(limit)
        window = hottest.window
        return Hottest(
            leads=leads,
            leader=heat.leader,
            nobody_leads=self.leadership().vacancy,
            window_s=heat.window_s,
            start_s=window.start_s,
            unreported_s=window.unreported_s,
            keys=tuple(HotKey(key, self._buckets(key), heat) for key, heat in window.keys.items()),
            partitions=hottest.partitions,
        )

    def wanted(self, key: str) -> Decision | None:
        """Return the last decision on a key's buckets, if it is not in the store yet.

        Only the leader knows such a decision. In other processes the result is None.
        """
        return self._keys.wanted(subject_of(key), BUCKETS) if self.leader.leads else None

    async def look_who_leads(self, deadline_s: float) -> Leadership:
        """Return which process leads.

        In a process that follows news, the copy of META may be old. Such a process reads META from
        the store first.
        """
        if self._registry.has_news and not self.leader.leads:
            with suppress(HeatsinkError), self._backoff.cut(deadline_s):
                await self._registry.renew()
        return self.leadership()

    def leadership(self) -> Leadership:
        """Return which process leads, as far as this process knows."""
        registry = self._registry
        now_ms = int(registry.fleet_now_s() * 1000)
        if self.leader.leads:
            return Leadership(self.watch.name, now_ms, now_ms)
        return leadership_of(registry.meta, now_ms, registry.led_until_ms())

    def _buckets(self, key: str) -> int:
        layout = self._registry.view.layout(key)
        return layout.epoch_at(self._registry.now_ms()).buckets
