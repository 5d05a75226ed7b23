"""Decisions, and the log of them that is the registry."""

from __future__ import annotations

from typing import Any

import msgspec

from .layout import Layout

BUCKETS = "buckets"
PIN = "pin"
SETTING = "~setting/"  # a pin of such a key is a number for the whole deployment, nobody's buckets
FORMAT = 1


class Decision(msgspec.Struct, frozen=True):
    """What shall be, and why: always a target, never a step. A value of None takes it back."""

    subject: str
    setting: str
    value: int | None
    reason: str

    @property
    def key(self) -> str:
        return self.subject.removeprefix("key:")


def for_key(key: str, setting: str, value: int | None, reason: str) -> Decision:
    return Decision(f"key:{key}", setting, value, reason)


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
