"""Decisions, and the log of them that is the registry."""

from __future__ import annotations

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


class Meta(msgspec.Struct, frozen=True):
    """The one record that orders everything: see `rules`.

    `servers` is how many report heat, as the leader counts them: their floors depend on it.
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


class Reading(msgspec.Struct, frozen=True):
    """META as the store had it, and the store's own time then, to tell how wrong our clock is."""

    meta: Meta
    store_ms: int


class Snapshot(msgspec.Struct, frozen=True):
    """All that the log up to `version` adds up to."""

    version: int
    layouts: dict[str, Layout]
    pins: dict[str, Decision]
    reasons: dict[str, Decision]
