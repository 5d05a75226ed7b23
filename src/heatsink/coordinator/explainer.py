"""Why a key is laid out as it is, in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import msgspec

from heatsink.heat.count import Tracker
from heatsink.heat.fleet import FleetHeat
from heatsink.heat.heat import KeyHeat, PartitionHeat
from heatsink.reads.near_cache import NearKeys
from heatsink.registry.closed_time import FAR_AHEAD_MS
from heatsink.registry.decisions import Decision
from heatsink.registry.layouts import Epoch, Layout
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff
from heatsink.spread.policy import BucketRules, Culprit, suffers_from

from .coordination import Coordination
from .lease import CURE


class Explanation(msgspec.Struct, frozen=True):
    """Why a key has its buckets, and what it costs; `print` it.

    Heat is known only for keys that are hot enough to be reported. The leader always knows it.
    Other processes know it if there is a Redis for news.
    """

    key: str
    layout: Layout
    """Its epochs."""
    now_ms: int
    """The time of this explanation."""
    decision: Decision | None
    """What the policy decided last."""
    pin: Decision | None
    """What an operator decided, if anything."""
    heat: KeyHeat | None
    """What it costs now, where that is known."""
    unreported_s: float | None = None
    """The most that an unreported key costs a second; None if that is not known."""
    leads: bool = False
    """Whether the process that explains is the leader."""
    leader: str = ""
    """The leader; empty if there is none."""
    nobody_leads: str | None = None
    """How long there has been no leader, in words; None while there is one."""
    wanted: Decision | None = None
    """A decision that the store has refused to write so far; only the leader knows it."""
    table_refusal: str | None = None
    """The last throttling by a limit of the whole table, which more buckets do not cure."""
    store: str | None = None
    """What the store itself can do about throttled writes, and what only more buckets can."""
    near: Decision | None = None
    """The decision that every process caches the key, if it is read-hot."""
    bucket_units: tuple[int, ...] = ()
    """Write units that this process has written to each bucket of the current layout."""

    @property
    def buckets(self) -> int:
        """Number of buckets that rows written now go to."""
        return self.layout.epoch_at(self.now_ms).buckets

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """Every epoch of the key, oldest first."""
        return self.layout.epochs

    @property
    def queries_per_page(self) -> int:
        """Queries for the newest page, at least: one for each bucket of the newest epoch."""
        return self.layout.buckets

    @property
    def partitions(self) -> int:
        """Partitions that a read of everything queries: the bare key and every bucket ever used."""
        return len(self.layout.partitions(self.key))

    @property
    def hot_by(self) -> str:
        """Why it is spread or cached everywhere: pinned, write-hot, read-hot."""
        is_pinned = self.pin is not None and self.pin.value == self.buckets
        spread = "pinned" if is_pinned else "write-hot" if self.buckets > 1 else ""
        return ", ".join(filter(None, (spread, "read-hot" if self.near else "")))

    @property
    def reason(self) -> str:
        """Why it has as many buckets as it has."""
        if self.pin is not None:
            text = f"pinned to {self.pin.value}: {self.pin.reason}"
            if self.buckets != self.pin.value:
                text += "; not in force yet" + (": there is no leader" if self.nobody_leads else "")
            return text
        if self.decision is not None:
            return self.decision.reason
        return "never write-hot: one bucket" if self.near else "never hot: one bucket"

    def __str__(self) -> str:
        page = _count(self.queries_per_page, "query", "queries")
        hot = f" ({self.hot_by})" if self.hot_by else ""
        lines = [
            f"{self.key}: {_count(self.buckets, 'bucket')} now{hot}",
            f"  why     {self.reason}",
            f"  heat    {self._heat_words()}",
            f"  reads   newest page {page}, everything {_count(self.partitions, 'partition')}",
            "  epochs  " + "\n          ".join(map(_epoch, reversed(self.epochs))),
        ]
        if self.near is not None:
            lines.insert(2, f"  near    kept {self.near.value} ms, {self.near.reason}")
        if self.store is not None:
            lines.insert(3, f"  store   {self.store}")
        if self.wanted is not None:
            lines.insert(2, f"  wanted  {wanted_words(self.wanted.value, self.wanted.reason)}")
        if self.epochs[-1].start_ms > self.now_ms + FAR_AHEAD_MS:
            since = _date(self.epochs[-1].start_ms)
            lines.insert(2, f"  but     a clock was far ahead: no new layout before {since}")
        if self.table_refusal:
            lines.append(f"  but     more buckets do not help here: {self.table_refusal}")
        if self.nobody_leads:
            lines.append(f"  leader  {self.nobody_leads}: {CURE}")
        return "\n".join(lines)

    def _heat_words(self) -> str:
        return heat_words(self.heat, self.unreported_s, self.leads, self.leader, self.nobody_leads)


def heat_words(
    heat: KeyHeat | None,
    unreported_s: float | None,
    leads: bool,
    leader: str,
    nobody_leads: str | None,
) -> str:
    """A key's heat in words; without a figure, whether it is cold or not known here."""
    if heat is not None:
        more = "an unknown number" if heat.bound_s is None else f"at most {heat.bound_s:,.0f}"
        return (
            f"{heat.writes_s:,.0f} writes/s (+ {more}), "
            f"{heat.reads_s:,.0f} reads/s, {heat.throttles_s:,.0f} throttled/s"
        )
    if unreported_s is not None:
        return f"too cold to be reported: at most {unreported_s:,.0f} units/s"
    return not_known(leads, leader, nobody_leads)


def wanted_words(value: int | None, reason: str) -> str:
    return f"{value} buckets ({reason}); the store has refused to write this so far"


def not_known(leads: bool, leader: str, nobody_leads: str | None) -> str:
    """Why a process does not know the heat of the fleet, and who does."""
    if nobody_leads:
        return "not known: there is no leader"
    if leads:
        return "not known: reports of heat are missing or late"
    if leader:
        return f"not known here: ask the leader, {leader}"
    return "not known: no leader is known"


@dataclass(frozen=True)
class Explainer:
    """Explains keys, from the registry and the coordinator of this process."""

    registry: Registry
    backoff: Backoff
    coordination: Coordination
    tracker: Tracker
    near_keys: NearKeys
    rules: BucketRules

    async def explain(self, key: str) -> Explanation:
        deadline_s = self.backoff.deadline_s()
        layout = await self.backoff.call(partial(self.registry.layout, key), key, deadline_s)
        fleet = await self.coordination.fleet_heat(deadline_s)
        heat = fleet.window.keys.get(key) if fleet else None
        found = await self.coordination.look_who_leads(deadline_s)
        view = self.registry.view
        return Explanation(
            key=key,
            layout=layout,
            now_ms=self.registry.now_ms(),
            decision=view.reasons.get(key),
            pin=view.pins.get(key),
            heat=heat,
            unreported_s=fleet.window.unreported_s if fleet else None,
            wanted=self.coordination.wanted(key),
            leads=self.coordination.leader.leads,
            leader=found.leader,
            nobody_leads=found.vacancy,
            store=self._store_can(layout, heat, fleet) if heat and fleet else None,
            table_refusal=self.backoff.table_refusal,
            bucket_units=self._bucket_units(key, layout),
            near=self.near_keys.in_force().get(key),
        )

    def _store_can(self, layout: Layout, heat: KeyHeat, fleet: FleetHeat) -> str | None:
        culprit = suffers_from(heat, self.rules, layout.buckets)
        crowded = self._crowded(fleet) if culprit == "partition" else 0
        place = fleet.partition(heat.partition) if layout.buckets == 1 else None
        in_all_s = heat.partition_units_s
        takes_less = None if in_all_s is None else in_all_s < self.rules.bucket_units_s / 2
        return what_the_store_can_do(
            culprit, crowded, layout.buckets, place, self.rules, takes_less
        )

    def _crowded(self, fleet: FleetHeat) -> int:
        layout_of = self.registry.view.layout
        return sum(
            suffers_from(heat, self.rules, layout_of(key).buckets) == "partition"
            for key, heat in fleet.window.keys.items()
        )

    def _bucket_units(self, key: str, layout: Layout) -> tuple[int, ...]:
        epoch = layout.epoch_at(self.registry.now_ms())
        counts = self.tracker.bucket_units
        return tuple(counts.get(name, 0) for name in epoch.partitions(key) if epoch.buckets > 1)


def what_the_store_can_do(
    culprit: Culprit | None,
    crowded: int,
    buckets: int,
    place: PartitionHeat | None,
    rules: BucketRules,
    takes_less: bool | None,
) -> str | None:
    """What the store can do about throttled writes, in words.

    `crowded` is the number of keys that are throttled because of other keys in their partition.
    `takes_less` is whether a partition takes less than the rules assume; None if not known.
    """
    if culprit is None:
        return None
    where = f" ({_partition(place)})" if place else ""
    less = f"a partition takes less than bucket_units_s={rules.bucket_units_s}"
    lower = "lower that to 80 % of what it takes"
    if culprit == "key":
        hint = f"; {less}: {lower}" if takes_less else ""
        return f"one hot key{where}: the store cannot split it, more buckets can{hint}"
    others = f", as are {_count(crowded - 1, 'other')}" if crowded > 1 else ""
    hint = f". Or {less}: then {lower}" if takes_less is None else ""
    return (
        f"hot partition{where}, no single hot {'key' if buckets == 1 else 'bucket'}: throttled by "
        f"the heat of others{others}; a store with adaptive capacity splits the partition, more "
        f"buckets do not help{hint}"
    )


def _partition(place: PartitionHeat) -> str:
    return f"{place.partition}, {place.write_units_s:,.0f} write units/s in all"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _epoch(epoch: Epoch) -> str:
    if epoch.start_ms == 0:
        return f"{_count(epoch.buckets, 'bucket')} from the beginning"
    return f"{_count(epoch.buckets, 'bucket')} from {_date(epoch.start_ms)}"


def _date(time_ms: int) -> str:
    date = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{date.isoformat(' ', 'milliseconds')[:-6]} UTC"
