"""Decisions, the log of them that is the registry, and a process's view of it.

The registry's log is the truth about layouts and pins, and a data store keeps it (`RegistryStore`).
Every process applies the log to its `View`, which is all that the hot path reads. Soft decisions
(worker counts, keys kept near) are not in the log: losing one costs time, never data. Of two soft
decisions about one subject the one of the later term holds, and within a term the later one. So a
deposed leader changes nothing.
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
    """What shall be, and why: always a target, never a step. A value of None takes it back."""

    subject: Subject
    setting: str
    value: int | None
    reason: str

    @property
    def key(self) -> str:
        """The text of the subject, under which views and stores hold it."""
        return self.subject.text


def for_key(key: str, setting: str, value: int | None, reason: str) -> Decision:
    """A decision about the subject that a text spells: mostly a user's key."""
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
    """When the clock of the boot `boot` was at `boot_ms`, it was `time_ms`."""

    boot: str
    boot_ms: int
    time_ms: int


class Verdict(msgspec.Struct, frozen=True):
    """What time it is by the evidence in META.

    `testimony` is evidence that this process may put in its place; `is_due` if it should do so now.
    `doubt` says why the clock of this process does not count; empty if it does.
    """

    time_ms: int
    testimony: Evidence | None = None
    is_due: bool = False
    doubt: str = ""


class Meta(msgspec.Struct, frozen=True):
    """The one record that orders everything: see `rules`.

    `servers` is how many report heat, as the leader counts them: their floors depend on it.
    `secret` signs the news (see `news`): whoever reads the store knows it, nobody else may. So it
    is left out wherever META is shown.
    `evidence` is of the time, in a store that has no clock of its own: see `timekeeper`.
    `lease_ms` is until when the leader leads, by the store's clock as the leader knows it: for
    people. Whoever wants to lead watches `beat` instead, and compares no clocks.
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
    """META as the store had it, and the store's own time then, to tell how wrong our clock is.

    `verdict` is where that time comes from in a store without a clock of its own.
    """

    meta: Meta
    store_ms: int
    verdict: Verdict | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """All that the log up to `version` adds up to."""

    version: int
    layouts: dict[str, Layout]
    pins: dict[str, Decision]
    reasons: dict[str, Decision]


class SoftDecision(msgspec.Struct, frozen=True):
    term: int
    decision: Decision


class SoftStore(Protocol):
    """A log that may forget old entries, or all: leaders say everything again now and then."""

    async def publish(self, decisions: Sequence[Decision], term: int) -> None: ...

    async def read(self) -> list[SoftDecision]:
        """All that came since this reader last asked, in order."""


class Targets:
    """What soft decisions add up to. Terms only grow: what a lower one says is refused."""

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
        """Drop a target that nobody repeats any more, so that memory stays bounded."""
        self._targets.pop((subject, setting), None)

    def get(self, subject: Subject, setting: str) -> Decision | None:
        return self._targets.get((subject, setting))


class RegistryStore(Protocol):
    """The truth. Every read is strongly consistent and every change one transaction."""

    async def found(self, meta: Meta) -> Reading:
        """Write META unless there is one; either way, what is there."""

    async def meta(self) -> Reading: ...

    async def advance(self, closed_ms: int) -> Reading:
        """Raise the closed time, if it is lower. Returns META after that."""

    async def append(self, entry: LogEntry, term: int | None) -> None:
        """Commit one version under `rules.check_append`, or raise what that raises."""

    async def log(self, after: int, upto: int) -> list[LogEntry]:
        """The versions from `after + 1` to `upto`, without those already trimmed away."""

    async def layout(self, key: str) -> Layout: ...

    async def snapshot(self) -> Snapshot: ...

    async def trim(self, below: int) -> None:
        """Forget log entries below a version; snapshots still hold what they said."""


class LeaseStore(Protocol):
    async def meta(self) -> Reading: ...

    async def lead(self, seen: Meta, leader: str, lease_ms: int) -> Meta:
        """Begin the next term if META's term and beat are still those seen, else `Outdated`."""

    async def beat(self, term: int, servers: int, lease_ms: int) -> None:
        """Raise the beat, note the size of the fleet and the end of the lease, if the term is ours.

        Else `Deposed`.
        """


class View:
    """A gap-free prefix of the log, and the horizon below which it is final.

    A key without a record simply has one bucket. `layouts` is read directly on the hot path.
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
        """Whether no epoch that could hold this time is unknown here: ids of it may be placed."""
        return time_ms < self.horizon_ms or time_ms < self.layout(key).epochs[-1].start_ms

    def apply(self, entry: LogEntry) -> bool:
        """Take the next version in, or pass over an old one. False if one before it is missing."""
        if entry.version <= self.version:
            return True
        if entry.version != self.version + 1:
            return False
        for decision in entry.bucket_decisions:
            assert decision.value is not None
            layout = self.layout(decision.key)
            if layout.epochs[-1].start_ms < entry.start_ms:  # else a snapshot had it early
                self.layouts[decision.key] = layout.then(entry.start_ms, decision.value)
                self.reasons[decision.key] = decision
        for decision in entry.pin_decisions:
            apply_pin(self.pins, decision)
        self.version = entry.version
        return True

    def load(self, snapshot: Snapshot) -> None:
        """Replace everything by a newer snapshot."""
        if snapshot.version <= self.version:
            return
        self.layouts = dict(snapshot.layouts)
        self.pins = dict(snapshot.pins)
        self.reasons = dict(snapshot.reasons)
        self.version = snapshot.version

    def adopt(self, closed_ms: int, version: int) -> None:
        """Move the horizon to a closed time that was read together with `version`, once applied."""
        if self.version >= version and closed_ms > self.horizon_ms:
            self.horizon_ms = closed_ms


def apply_pin(pins: dict[str, Decision], decision: Decision) -> None:
    if decision.value is None:
        pins.pop(decision.key, None)
    else:
        pins[decision.key] = decision
