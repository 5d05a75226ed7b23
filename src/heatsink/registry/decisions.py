"""Decisions, the registry (an append-only log of decisions), and a process's view of it.

The registry holds the decisions on layouts and pins. The data store keeps it (`RegistryStore`).
Every process applies the log to its `View`, and the hot path reads only that view.

Soft decisions (worker counts, keys to cache near) are not in the log: losing one costs time, never
data. If two soft decisions concern the same subject and setting, the decision of the higher term
wins. Within a term the later decision wins. So a deposed leader cannot override its successor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import msgspec

from heatsink.primitives.subjects import Kind, Subject, has_rows, subject_of
from heatsink.primitives.words import counted

from .layouts import COLD, Layout

BUCKETS = "buckets"
PIN = "pin"
PINNED = "pinned: "  # begins the reason of a decision that carries out a pin
COUNTED = {BUCKETS: "bucket", "workers": "worker"}
WORDED = {"near": "kept in near caches for {:,} ms", "moved": "moved"}
RECORDED = {  # what the pin of such a subject tells all processes
    Kind.ADOPTED: "adoption recorded",
    Kind.DECLARED: "declaration recorded",
    Kind.SPREAD: "progress recorded",
    Kind.SWEPT: "result recorded",
}
FORMAT = 1


class Decision(msgspec.Struct, frozen=True):
    """The target value of one setting of one subject, and the reason for it.

    The value is absolute, never an increment. A value of None withdraws an earlier decision.
    """

    subject: Subject
    setting: str
    value: int | None
    reason: str
    text: str = ""
    """The value of a deployment's setting, which may be of any type: see `registry.settings`."""

    @property
    def key(self) -> str:
        """The text of the subject. Views and stores use this text as their key."""
        return self.subject.text

    @property
    def words(self) -> str:
        """The decision in words, for people: "5 buckets", "pinned to 4 buckets", "unpinned"."""
        if self.setting == PIN or self.subject.kind is Kind.AUTHOR:
            return _pinned(self.subject.kind, self.value, self.text)
        if self.subject.kind is Kind.REDIS:
            return "needs no other server" if self.value is None else "should share its partitions"
        if self.value is None:
            return f"{self.setting} withdrawn"
        if self.setting in COUNTED:
            return counted(self.value, COUNTED[self.setting])
        return WORDED.get(self.setting, f"{self.setting} {{:,}}").format(self.value)


def _pinned(kind: Kind, value: int | None, text: str) -> str:
    """Say in words what a pin to `value` means, for a subject of this kind."""
    if kind is Kind.AUTHOR:
        return "pulled" if value == 2 else "pushed"
    if kind is Kind.SETTING:
        return "unset" if value is None else f"set to {_setting_of(text)}"
    if kind in RECORDED:
        return RECORDED[kind]
    if kind in (Kind.SCHEDULE, Kind.STARTED):
        return "removed" if value is None else "set" if kind is Kind.SCHEDULE else "start decided"
    unit = "worker" if kind is Kind.WORKERS else "bucket"
    return "unpinned" if value is None else f"pinned to {counted(value, unit)}"


def _setting_of(text: str) -> str:
    note = msgspec.json.decode(text) if text else {}
    return msgspec.json.encode(note.get("value")).decode()


def for_key(key: str, setting: str, value: int | None, reason: str) -> Decision:
    """Return a new decision about `key`: a user's key, or the text of another subject."""
    return Decision(subject_of(key), setting, value, reason)


class LogEntry(msgspec.Struct, frozen=True):
    """One version of the registry.

    Its decisions on buckets apply to ids whose time is `start_ms` or later.
    """

    version: int
    decided_ms: int
    start_ms: int
    decisions: tuple[Decision, ...]

    def __str__(self) -> str:
        told = "; ".join(f"{d.subject.words}: {d.words} ({d.reason})" for d in self.decisions)
        return f"version {self.version}: {told}"

    @property
    def bucket_decisions(self) -> list[Decision]:
        return [decision for decision in self.decisions if decision.setting == BUCKETS]

    @property
    def pin_decisions(self) -> list[Decision]:
        return [decision for decision in self.decisions if decision.setting == PIN]


class Evidence(msgspec.Struct, frozen=True):
    """One reading of a machine's boot clock, and the wall-clock time at that moment.

    When the clock of the boot with the id `boot` showed `boot_ms`, the wall clock showed `time_ms`.
    """

    boot: str
    boot_ms: int
    time_ms: int


class Verdict(msgspec.Struct, frozen=True):
    """The time that a process derived from the evidence in META.

    `testimony` is new evidence that this process may write to META. `is_due` says whether the
    process should write the testimony now. `doubt` says why the clock of this machine is not
    accepted; it is empty if the clock is accepted.
    """

    time_ms: int
    testimony: Evidence | None = None
    is_due: bool = False
    doubt: str = ""


class Meta(msgspec.Struct, frozen=True):
    """The registry's central record, on which every change is conditional: see `closed_time`.

    `servers` is the number of servers that report heat, as counted by the leader. `secret` is the
    key for signing news (see `news`). Only processes that can read the store may know the secret,
    so `repr` and all commands leave it out. `evidence` gives the time in a store that has no clock:
    see `closed_time`. `lease_ms` is the end of the leader's lease in the store's time, for display
    only. The leader increments `beat` while it leads. Standby coordinators watch `beat` and not
    `lease_ms`, so they compare no clocks.
    """

    closed_ms: int
    version: int
    term: int
    beat: int
    leader: str
    incarnation: str
    seed: bytes
    id_scheme: str
    servers: int = 1
    lease_ms: int = 0
    format: int = FORMAT
    min_reader: int = FORMAT
    secret: bytes = b""
    evidence: Evidence | None = None

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = (name for name in self.__struct_fields__ if name != "secret")
        return [(name, getattr(self, name)) for name in shown]

    def __repr__(self) -> str:
        return f"Meta({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class Reading(msgspec.Struct, frozen=True):
    """META, and the store's time when META was read.

    In a store without a clock, `verdict` says how the store's time was derived from the evidence.
    """

    meta: Meta
    store_ms: int
    verdict: Verdict | None = None
    asked_s: float = float("-inf")
    """When META was asked for, on this process's monotonic clock."""


class Reasons(MutableMapping[str, Decision]):
    """The newest decision on the buckets of each key, as a mapping.

    A process may read 200,000 decisions when it starts, but callers ask for few of them. So the
    process keeps them in their stored form, and decodes a decision when a caller asks for it.
    """

    def __init__(
        self,
        stored: Mapping[str, Any] | None = None,
        decode: Callable[[Any], Decision] | None = None,
    ) -> None:
        """`decode` makes a decision of a value in `stored`; None if they are decisions."""
        self._stored = stored or {}
        self._decode = decode
        self._known: dict[str, Decision | None] = {}

    def __getitem__(self, key: str) -> Decision:
        if key not in self._known and key in self._stored:
            value = self._stored[key]
            self._known[key] = self._decode(value) if self._decode else value
        found = self._known[key]
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, decision: Decision) -> None:
        self._known[key] = decision

    def __delitem__(self, key: str) -> None:
        self._known[key] = None

    def __iter__(self) -> Iterator[str]:
        for key in self._stored:
            if self._known.get(key, self) is not None:
                yield key
        for key, decision in self._known.items():
            if decision is not None and key not in self._stored:
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Snapshot(msgspec.Struct, frozen=True):
    """The registry's state after all log entries up to `version` were applied."""

    version: int
    layouts: dict[str, Layout]
    pins: dict[str, Decision]
    reasons: Mapping[str, Decision]


class SoftDecision(msgspec.Struct, frozen=True):
    term: int
    decision: Decision


class SoftStore(Protocol):
    """A log of soft decisions: decisions that may be lost, such as worker counts.

    The log may lose entries. Leaders regularly publish again all decisions that are in force.
    """

    async def publish(self, decisions: Sequence[Decision], term: int) -> None: ...

    async def read(self) -> list[SoftDecision]:
        """Return the decisions published since this reader's last call, in order."""


class Targets:
    """The latest soft decision for each subject and setting.

    A soft decision takes effect when it arrives, without an epoch. After a decision of a later term
    has arrived, decisions of earlier terms are ignored.
    """

    def __init__(self) -> None:
        self.term = 0
        self._targets: dict[tuple[Subject, str], Decision] = {}

    def apply(self, news: Iterable[SoftDecision]) -> None:
        for soft in news:
            if soft.term >= self.term:
                self.term = soft.term
                self._take(soft.decision)

    def _take(self, decision: Decision) -> None:
        what = (decision.subject, decision.setting)
        if decision.value is None:
            self._targets.pop(what, None)
        else:
            self._targets[what] = decision

    def forget(self, subject: Subject, setting: str) -> None:
        """Drop a decision that leaders no longer publish, so that memory stays bounded."""
        self._targets.pop((subject, setting), None)

    def get(self, subject: Subject, setting: str) -> Decision | None:
        return self._targets.get((subject, setting))


class RegistryStore(Protocol):
    """The registry in the data store: consistent reads, and one transaction per change."""

    async def found(self, meta: Meta) -> Reading:
        """Write META if the store has none. Returns the META that the store then holds."""

    async def meta(self) -> Reading: ...

    async def advance(self, closed_ms: int) -> Reading:
        """Raise the closed time to `closed_ms`, if it is lower. Returns META after the change."""

    async def append(self, entry: LogEntry, term: int | None) -> None:
        """Write one version to the log, if `closed_time.check_append` allows it.

        Raises the errors of `check_append`.
        """

    async def log(self, after: int, upto: int) -> list[LogEntry]:
        """Return the entries of versions `after + 1` to `upto` that `trim` has not deleted."""

    async def layout(self, key: str) -> Layout: ...

    async def snapshot(self) -> Snapshot: ...

    async def trim(self, below: int) -> None:
        """Delete log entries of versions below `below`.

        Snapshots keep the effect of the entries.
        """


class LeaseStore(Protocol):
    async def meta(self) -> Reading: ...

    async def lead(self, seen: Meta, leader: str, lease_ms: int) -> Meta:
        """Start the next term with `leader` as the leader, and return the new META.

        Raises `Outdated` if the term or the beat in META differs from that in `seen`.
        """

    async def beat(self, term: int, servers: int, lease_ms: int) -> None:
        """Increment the beat in META, and write the number of servers and the end of the lease.

        Raises `Deposed` if META has another term.
        """


class SpreadKeys:
    """The keys with rows that have more than one bucket now.

    `extra` is the number of buckets that they have together beyond their first. A registry may have
    200,000 layouts, so both are kept up to date with each change, and never counted again.
    """

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        self.keys: dict[str, None] = {}
        self.extra = 0
        self.add(layouts.items())

    def add(self, layouts: Iterable[tuple[str, Layout]]) -> None:
        """Count keys that were not counted before."""
        for key, layout in layouts:
            buckets = layout.epochs[-1].buckets
            if buckets > 1 and has_rows(key):
                self.keys[key] = None
                self.extra += buckets - 1

    def note(self, key: str, before: Layout, now: Layout) -> None:
        """Take in that the key's layout has changed."""
        if has_rows(key):
            self.extra += now.buckets - before.buckets
            if now.buckets > 1:
                self.keys[key] = None
            else:
                self.keys.pop(key, None)


class View:
    """A process's copy of the registry: the log up to a version, and the horizon.

    For times below the horizon the layouts are final. A key without a layout has one bucket. For
    speed, `Router` reads `layouts` directly, without calling a method of the view.
    """

    def __init__(self) -> None:
        self.version = 0
        self.horizon_ms = 0
        self.layouts: dict[str, Layout] = {}
        self.spread = SpreadKeys(self.layouts)
        self.pins: dict[str, Decision] = {}
        self.reasons = Reasons()
        self.settings_version = 0
        """The latest version that changed a setting of the deployment."""

    def layout(self, key: str) -> Layout:
        return self.layouts.get(key, COLD)

    def knows(self, key: str, time_ms: int) -> bool:
        """Return whether this view holds every epoch of the key that starts at or before `time_ms`.

        This process may place ids of that time only if the result is True.
        """
        return time_ms < self.horizon_ms or time_ms < self.layout(key).epochs[-1].start_ms

    def apply(self, entry: LogEntry) -> bool:
        """Apply an entry, or skip an entry that the view has already applied.

        Returns False if an earlier entry is missing. The view is then unchanged.
        """
        if entry.version <= self.version:
            return True
        if entry.version != self.version + 1:
            return False
        for decision in entry.bucket_decisions:
            assert decision.value is not None
            layout = self.layout(decision.key)
            if layout.epochs[-1].start_ms < entry.start_ms:  # else the snapshot had this epoch
                longer = layout.then(entry.start_ms, decision.value)
                self.layouts[decision.key] = longer
                self.spread.note(decision.key, layout, longer)
                self.reasons[decision.key] = decision
        for decision in entry.pin_decisions:
            apply_pin(self.pins, decision)
            if decision.subject.kind is Kind.SETTING:
                self.settings_version = entry.version
        self.version = entry.version
        return True

    def load(self, snapshot: Snapshot, spread: SpreadKeys | None = None) -> None:
        """Replace the whole view by a snapshot, if the snapshot is newer.

        `spread` is what `SpreadKeys` finds in the snapshot's layouts, if the caller knows it.
        """
        if snapshot.version <= self.version:
            return
        self.layouts = dict(snapshot.layouts)
        self.spread = spread or SpreadKeys(self.layouts)
        self.pins = dict(snapshot.pins)
        self.reasons = Reasons(snapshot.reasons)
        self.version = self.settings_version = snapshot.version

    def adopt(self, closed_ms: int, version: int) -> None:
        """Raise the horizon to the closed time `closed_ms`, which was read together with `version`.

        Does nothing if the view has not applied that version.
        """
        if self.version >= version and closed_ms > self.horizon_ms:
            self.horizon_ms = closed_ms


def apply_pin(pins: dict[str, Decision], decision: Decision) -> None:
    if decision.value is None:
        pins.pop(decision.key, None)
    else:
        pins[decision.key] = decision
