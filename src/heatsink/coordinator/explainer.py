"""Explains in words why a key has its layout."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import ceil

import msgspec

from heatsink.heat.count import Tracker
from heatsink.heat.fleet import FleetHeat
from heatsink.heat.heat import KeyHeat, PartitionHeat
from heatsink.primitives.subjects import Kind, subject_of
from heatsink.primitives.words import counted
from heatsink.reads.near_cache import NearKeys
from heatsink.registry.adoption import Adoptions, trial_of
from heatsink.registry.closed_time import FAR_AHEAD_MS
from heatsink.registry.decisions import PINNED, Decision
from heatsink.registry.layouts import Epoch, Layout
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff
from heatsink.spread.policy import BucketRules, Culprit, suffers_from

from .coordination import Coordination
from .lease import CURE

DECISIONS_SEARCHED = 100


class Explanation(msgspec.Struct, frozen=True):
    """Why a key has its number of buckets, and how many queries a read takes. `print` shows it all.

    Servers report only keys that are hot enough, so only the heat of these keys is known. The
    leader knows the heat of all reported keys. Other processes know it only with a Redis for news.
    """

    key: str
    layout: Layout
    """The key's epochs."""
    now_ms: int
    """The time of this explanation."""
    decision: Decision | None
    """The policy's last decision about the key."""
    pin: Decision | None
    """The operator's pin of the key, if there is one."""
    heat: KeyHeat | None
    """The key's load now; None if it is too low to be reported, or unknown to this process."""
    unreported_s: float | None = None
    """Upper bound on the write units a second of a key that is not reported, with a confidence of
    99.9 %; None if unknown."""
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
    """Whether the store itself can relieve throttled writes, or only more buckets can; in words."""
    near: Decision | None = None
    """The decision that every process caches the key, if it is read-hot."""
    bucket_units: tuple[int, ...] = ()
    """Write units that this process has written to each bucket of the current layout."""
    cool_down_s: float | None = None
    """How long the load must stay low before the key gets fewer buckets; None if it never does."""
    is_held: bool = False
    """Whether the key stays in one bucket because its table's adoption is not complete."""
    in_trial: int = 1
    """How many buckets the key would have had, if it is held."""
    unspread: str | None = None
    """A warning if many recent items of the table have no usable time, so that they are not spread;
    None otherwise."""
    completing: str = "heatsink adopt with --complete"
    """The command that completes the adoption of the key's table."""
    unpinned_ms: int | None = None
    """When the last pin was withdrawn; None if the key is pinned, or the registry's log no longer
    has it."""

    @property
    def buckets(self) -> int:
        """The number of buckets to which new rows go now."""
        return self.layout.epoch_at(self.now_ms).buckets

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """Every epoch of the key, oldest first."""
        return self.layout.epochs

    @property
    def queries_per_page(self) -> int:
        """Minimum number of queries for the newest page: one per bucket of the newest epoch."""
        return self.layout.buckets

    @property
    def partitions(self) -> int:
        """How many partition keys a read of all rows queries.

        These are the bare key and all buckets that the key ever had.
        """
        return len(self.layout.partitions(self.key))

    @property
    def hot_by(self) -> str:
        """Why the key is spread or cached by every process.

        The text has one or more of "pinned", "unpinned", "write-hot" and "read-hot", separated by
        commas. It is empty for a cold key. An "unpinned" key still has the buckets of a pin that
        was withdrawn.
        """
        spread = ""
        if self.pin is not None and self.pin.value == self.buckets:
            spread = "pinned"
        elif self.buckets > 1:
            spread = "unpinned" if self.was_pinned else "write-hot"
        return ", ".join(filter(None, (spread, "read-hot" if self.near else "")))

    @property
    def was_pinned(self) -> bool:
        """Whether the number of buckets comes from a pin that an operator has removed since."""
        decision = self.decision
        return self.pin is None and decision is not None and decision.reason.startswith(PINNED)

    @property
    def reason(self) -> str:
        """Why the key has its current number of buckets."""
        if self.pin is not None:
            text = f"pinned to {self.pin.value}: {self.pin.reason}"
            if self.buckets != self.pin.value:
                text += "; not in force yet" + (": there is no leader" if self.nobody_leads else "")
            return text
        if self.decision is not None:
            return self._unpinned_words() if self.was_pinned else self.decision.reason
        if self.is_held and self.in_trial > 1:
            return f"a dry run: it would have had {self.in_trial} buckets"
        return "never write-hot: one bucket" if self.near else "never hot: one bucket"

    def _unpinned_words(self) -> str:
        assert self.decision is not None
        was = f"was pinned ({self.decision.reason.removeprefix(PINNED)}), then unpinned"
        if self.unpinned_ms is not None:
            was += f" at {_date(self.unpinned_ms)}"
        if self.buckets == 1:
            return f"{was}: its load decides"
        if self.cool_down_s is None:
            return f"{was}: it keeps its buckets, since rules.shrink is off"
        return f"{was}: gets fewer buckets after {self.cool_down_s:,.0f} s of low load"

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """The explanation in words; `heatsink explain` prints the same lines."""
        page = counted(self.queries_per_page, "query", "queries")
        hot = f" ({self.hot_by})" if self.hot_by else ""
        lines = [
            f"{subject_of(self.key).words}: {counted(self.buckets, 'bucket')} now{hot}",
            f"  why     {self.reason}",
            f"  heat    {self._heat_words()}",
            f"  reads   newest page {page}, everything {counted(self.partitions, 'partition')}",
            *_epoch_lines(self.epochs),
        ]
        if self.near is not None:
            lines.insert(
                2, f"  near    app servers keep reads for {self.near.value} ms, {self.near.reason}"
            )
        if self.store is not None:
            lines.insert(3, f"  store   {self.store}")
        if self.wanted is not None:
            wanted = f"{self.wanted.words} ({self.wanted.reason})"
            lines.insert(2, f"  wanted  {wanted}; the store has refused to write this so far")
        if self.epochs[-1].start_ms > self.now_ms + FAR_AHEAD_MS:
            since = _date(self.epochs[-1].start_ms)
            lines.insert(2, f"  but     a clock was far ahead: no new layout before {since}")
        if self.table_refusal:
            lines.append(f"  but     more buckets do not help here: {self.table_refusal}")
        lines += self._table_lines()
        if self.nobody_leads:
            lines.append(f"  leader  {self.nobody_leads}: {CURE}")
        return lines

    def _table_lines(self) -> list[str]:
        """What buckets cannot do for a key of a user's own table."""
        if subject_of(self.key).kind is not Kind.TABLE:
            return []
        lines = [] if self.unspread is None else [f"  but     {self.unspread}"]
        if self.is_held:
            done = f"once no other program writes to the table, run {self.completing}"
            held = f"  but     no second bucket before the table's adoption is complete: {done}"
            return [held, *lines]
        if self.buckets == 1:
            return lines
        stay = "nor do items from before the key was spread: they stay where they are"
        return [f"  but     one item that everybody updates gets no relief, {stay}", *lines]

    def _heat_words(self) -> str:
        """The key's heat in words.

        If there are no figures, the words say that the key is cold or that its heat is not known.
        """
        heat = self.heat
        if heat is not None:
            return (
                f"{heat.writes_s:,.0f} writes/s ({_interval_words(heat)}), "
                f"{heat.reads_s:,.0f} reads/s, {heat.throttles_s:,.0f} throttled/s"
            )
        if self.unreported_s is not None:
            most = counted(max(ceil(self.unreported_s), 1), "unit")
            return f"too cold to be reported: at most {most}/s with 99.9 % confidence"
        return not_known(self.leads, self.leader, self.nobody_leads)


def _interval_words(heat: KeyHeat) -> str:
    """How accurate the rate of writes is."""
    if heat.bound_s is None:
        return "or more: reports are missing"
    if heat.below_s < 1 and heat.bound_s < 1:
        return "exact"
    least, most = heat.write_units_s - heat.below_s, heat.write_units_s + heat.bound_s
    return f"{least:,.0f} to {most:,.0f} units/s with 99.9 % confidence"


def not_known(leads: bool, leader: str, nobody_leads: str | None) -> str:
    """Return why a process does not know the heat of the fleet, and which process knows it."""
    if nobody_leads:
        return "not known: there is no leader"
    if leads:
        first = "the first report of heat comes a second or two after the start"
        return f"not known yet: {first}, or is late"
    if leader:
        return f"not known here: ask the leader, {leader}"
    return "not known: no leader is known"


@dataclass(frozen=True)
class Explainer:
    """Explains keys from what the registry and the coordinator of this process know."""

    registry: Registry
    backoff: Backoff
    coordination: Coordination
    tracker: Tracker
    near_keys: NearKeys

    async def explain(self, key: str) -> Explanation:
        deadline_s = self.backoff.deadline_s()
        layout = await self.backoff.call(partial(self.registry.layout, key), key, deadline_s)
        fleet = await self.coordination.fleet_heat(deadline_s)
        heat = fleet.window.keys.get(key) if fleet else None
        found = await self.coordination.look_who_leads(deadline_s)
        view, rules = self.registry.view, self.coordination.rules
        found_out = Explanation(
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
            is_held=not Adoptions(view).allow(subject_of(key)),
            in_trial=trial_of(view, subject_of(key)).max_buckets,
            near=self.near_keys.in_force().get(key),
            cool_down_s=rules.cool_down_after(len(layout.epochs)) if rules.shrink else None,
        )
        if not found_out.was_pinned:
            return found_out
        return msgspec.structs.replace(
            found_out, unpinned_ms=await self._unpinned_ms(key, deadline_s)
        )

    async def _unpinned_ms(self, key: str, deadline_s: float) -> int | None:
        """Return when the key's last pin was withdrawn, if it is among the newest decisions."""
        ask = partial(self.registry.history, DECISIONS_SEARCHED, None)
        for entry in await self.backoff.call(ask, key, deadline_s):
            if any(each.key == key and each.value is None for each in entry.pin_decisions):
                return entry.decided_ms
        return None

    def _store_can(self, layout: Layout, heat: KeyHeat, fleet: FleetHeat) -> str | None:
        culprit = suffers_from(heat, self.coordination.rules, layout.buckets)
        crowded = self._crowded(fleet) if culprit == "partition" else 0
        place = fleet.partition(heat.partition) if layout.buckets == 1 else None
        in_all_s = heat.partition_units_s
        takes_less = (
            None if in_all_s is None else in_all_s < self.coordination.rules.bucket_units_s / 2
        )
        return what_the_store_can_do(
            culprit, crowded, layout.buckets, place, self.coordination.rules, takes_less
        )

    def _crowded(self, fleet: FleetHeat) -> int:
        layout_of = self.registry.view.layout
        return sum(
            suffers_from(heat, self.coordination.rules, layout_of(key).buckets) == "partition"
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
    """Say in words who can end the throttling of writes: the store itself, or only more buckets.

    `culprit` says whose load throttles the writes: "key", "partition" (other keys), or None.
    `crowded` is the number of keys that are throttled because of other keys in their partition.
    `takes_less` says whether a partition accepts less load than the rules assume; it is None if
    that is not known.
    """
    if culprit is None:
        return None
    where = f" ({_partition(place)})" if place else ""
    less = f"a partition accepts less than bucket_units_s={rules.bucket_units_s}"
    lower = "lower bucket_units_s to 80 % of what a partition accepts"
    if culprit == "key":
        hint = f"; {less}: {lower}" if takes_less else ""
        return f"one hot key{where}: the store cannot split it, more buckets can{hint}"
    others = f" (also throttled: {counted(crowded - 1, 'other key')})" if crowded > 1 else ""
    hint = f". Or {less}: then {lower}" if takes_less is None else ""
    return (
        f"hot partition{where}, no single hot {'key' if buckets == 1 else 'bucket'}: throttled "
        f"because of other keys in the partition{others}; a store with adaptive capacity splits "
        f"the partition, more buckets do not help{hint}"
    )


def _partition(place: PartitionHeat) -> str:
    return f"{place.partition}, {place.write_units_s:,.0f} write units/s in all"


def _epoch_lines(epochs: tuple[Epoch, ...]) -> list[str]:
    newest, *older = map(_epoch, reversed(epochs))
    return [f"  epochs  {newest}", *(f"          {each}" for each in older)]


def _epoch(epoch: Epoch) -> str:
    if epoch.start_ms == 0:
        return f"{counted(epoch.buckets, 'bucket')} from the beginning"
    return f"{counted(epoch.buckets, 'bucket')} from {_date(epoch.start_ms)}"


def _date(time_ms: int) -> str:
    date = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{date.isoformat(' ', 'milliseconds')[:-6]} UTC"
