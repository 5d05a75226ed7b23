"""Decisions, the registry (an append-only log of decisions), and a process's view of it.

The registry decides on layouts and pins. The data store keeps it (`RegistryStore`). Every process
applies the log to its `View`, and the hot path reads only that view.

Soft decisions (worker counts, keys to cache near) are not in the log: losing one costs time, never
data. If two soft decisions concern the same subject and setting, the one of the higher term wins,
and within a term the later one. So a deposed leader cannot override its successor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from heatsink.primitives.subjects import Subject, subject_of

from .layouts import COLD, Layout

BUCKETS = "buckets"
PIN = "pin"
FORMAT = 1


class Decision(msgspec.Struct, frozen=True):
    """The target value of one setting of one subject, and the reason for it.

    The value is absolute, never an increment. A value of None withdraws an earlier decision.
    """

    subject: Subject
    setting: str
    value: int | None
    reason: str

    @property
    def key(self) -> str:
        """The subject as text. Views and stores use it as their key."""
        return self.subject.text


def for_key(key: str, setting: str, value: int | None, reason: str) -> Decision:
    """A decision about the subject that the text `key` names: mostly a user's key."""
    return Decision(subject_of(key), setting, value, reason)


class LogEntry(msgspec.Struct, frozen=True):
    """One version of the registry. Its bucket decisions take effect for ids from `start_ms` on."""

    version: int
    decided_ms: int
    start_ms: int
    decisions: tuple[Decision, ...]

    @property
    def bucket_decisions(self) -> list[Decision]:
        return [decision for decision in self.decisions if decision.setting == BUCKETS]

    @property
    def pin_decisions(self) -> list[Decision]:
        return [decision for decision in self.decisions if decision.setting == PIN]


class Evidence(msgspec.Struct, frozen=True):
    """The time at one reading of a machine's boot clock.

    When the clock of the boot `boot` showed `boot_ms`, the wall-clock time was `time_ms`.
    """

    boot: str
    boot_ms: int
    time_ms: int


class Verdict(msgspec.Struct, frozen=True):
    """The time that a process derived from the evidence in META.

    `testimony` is new evidence that this process may write to META. `is_due` says whether it should
    do so now. `doubt` says why the clock of this machine is not accepted; empty if it is.
    """

    time_ms: int
    testimony: Evidence | None = None
    is_due: bool = False
    doubt: str = ""


class Meta(msgspec.Struct, frozen=True):
    """The registry's central record, on which every change is conditional: see `closed_time`.

    `servers` is the number of servers that report heat, as counted by the leader.
    `secret` is the key for signing news (see `news`). Only processes that can read the store may
    know it, so `repr` and every command leave it out.
    `evidence` is the store's time in a store that has no clock: see `closed_time`.
    `lease_ms` is the end of the leader's lease in the store's time, for display only. Standby
    coordinators watch `beat` instead and compare no clocks.
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
    """META together with the store's time at the moment of the read.

    In a store without a clock, `verdict` says how that time was derived from the evidence.
    """

    meta: Meta
    store_ms: int
    verdict: Verdict | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """The state after applying the log up to `version`."""

    version: int
    layouts: dict[str, Layout]
    pins: dict[str, Decision]
    reasons: dict[str, Decision]


class SoftDecision(msgspec.Struct, frozen=True):
    term: int
    decision: Decision


class SoftStore(Protocol):
    """A log of soft decisions. It may lose entries: leaders publish all of them again regularly."""

    async def publish(self, decisions: Sequence[Decision], term: int) -> None: ...

    async def read(self) -> list[SoftDecision]:
        """The decisions published since this reader's last call, in order."""


class Targets:
    """The current targets of soft decisions. Decisions of a lower term than seen are ignored."""

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
        """Drop a target that leaders no longer publish, so that memory stays bounded."""
        self._targets.pop((subject, setting), None)

    def get(self, subject: Subject, setting: str) -> Decision | None:
        return self._targets.get((subject, setting))


class RegistryStore(Protocol):
    """The registry in the data store: consistent reads, and one transaction per change."""

    async def found(self, meta: Meta) -> Reading:
        """Write META if the store has none. Returns the META that the store then holds."""

    async def meta(self) -> Reading: ...

    async def advance(self, closed_ms: int) -> Reading:
        """Raise the closed time to `closed_ms` if it is lower. Returns META after that."""

    async def append(self, entry: LogEntry, term: int | None) -> None:
        """Commit one version, conditional on `closed_time.check_append`. Raises its errors."""

    async def log(self, after: int, upto: int) -> list[LogEntry]:
        """The entries of versions `after + 1` to `upto`, except those already trimmed."""

    async def layout(self, key: str) -> Layout: ...

    async def snapshot(self) -> Snapshot: ...

    async def trim(self, below: int) -> None:
        """Delete log entries below a version. Snapshots still include their effect."""


class LeaseStore(Protocol):
    async def meta(self) -> Reading: ...

    async def lead(self, seen: Meta, leader: str, lease_ms: int) -> Meta:
        """Start the next term with this leader.

        Raises `Outdated` if META's term or beat is no longer the one in `seen`.
        """

    async def beat(self, term: int, servers: int, lease_ms: int) -> None:
        """Increment the beat, and write the size of the fleet and the end of the lease.

        Raises `Deposed` if META has another term.
        """


class View:
    """A process's copy of the registry: the log up to a version, and the horizon.

    For times below the horizon the layouts are final. A key without a layout has one bucket. The
    hot path reads `layouts` directly.
    """

    def __init__(self) -> None:
        self.version = 0
        self.horizon_ms = 0
        self.layouts: dict[str, Layout] = {}
        self.pins: dict[str, Decision] = {}
        self.reasons: dict[str, Decision] = {}

    def layout(self, key: str) -> Layout:
        return self.layouts.get(key, COLD)

    def knows(self, key: str, time_ms: int) -> bool:
        """Whether this view holds every epoch up to this time, so that such ids may be placed."""
        return time_ms < self.horizon_ms or time_ms < self.layout(key).epochs[-1].start_ms

    def apply(self, entry: LogEntry) -> bool:
        """Apply the next version, or skip an old one. False if a version before it is missing."""
        if entry.version <= self.version:
            return True
        if entry.version != self.version + 1:
            return False
        for decision in entry.bucket_decisions:
            assert decision.value is not None
            layout = self.layout(decision.key)
            if layout.epochs[-1].start_ms < entry.start_ms:  # else the snapshot had this epoch
                self.layouts[decision.key] = layout.then(entry.start_ms, decision.value)
                self.reasons[decision.key] = decision
        for decision in entry.pin_decisions:
            apply_pin(self.pins, decision)
        self.version = entry.version
        return True

    def load(self, snapshot: Snapshot) -> None:
        """Replace the whole view by a snapshot, if that is newer."""
        if snapshot.version <= self.version:
            return
        self.layouts = dict(snapshot.layouts)
        self.pins = dict(snapshot.pins)
        self.reasons = dict(snapshot.reasons)
        self.version = snapshot.version

    def adopt(self, closed_ms: int, version: int) -> None:
        """Raise the horizon to a closed time that was read together with `version`.

        Does nothing until the view has applied that version.
        """
        if self.version >= version and closed_ms > self.horizon_ms:
            self.horizon_ms = closed_ms


def apply_pin(pins: dict[str, Decision], decision: Decision) -> None:
    if decision.value is None:
        pins.pop(decision.key, None)
    else:
        pins[decision.key] = decision
