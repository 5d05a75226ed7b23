"""What clients asked for and what they were told: the only evidence the checks may use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID


class Violation(AssertionError):
    """An invariant of the design does not hold."""


class Outcome(Enum):
    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"  # for certain without effect
    UNKNOWN = "unknown"  # an error that leaves open whether it happened


@dataclass
class Append:
    key: str
    body: bytes
    id: UUID | None = None
    outcome: Outcome = Outcome.PENDING
    delete_asked: bool = False
    deleted: bool = False


@dataclass
class Adds:
    """Bounds of a counter: what is certainly in it, and what may be."""

    acknowledged: int = 0
    attempted: int = 0

    def acknowledge(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.acknowledged += 1


@dataclass
class History:
    appends: dict[bytes, Append] = field(default_factory=dict)
    adds: dict[str, Adds] = field(default_factory=dict)
    reads: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    layout_changes: int = 0
    store_changes: dict[str, int] = field(default_factory=dict)

    def new_append(self, key: str) -> Append:
        append = Append(key, b"message %d" % len(self.appends))
        self.appends[append.body] = append
        return append

    def must_see(self, key: str) -> set[bytes]:
        """Bodies that a full read which starts now must return."""
        return {
            append.body
            for append in self.appends.values()
            if append.key == key
            and append.outcome is Outcome.ACKNOWLEDGED
            and not append.delete_asked
        }

    def must_not_see(self, key: str) -> set[bytes]:
        return {a.body for a in self.appends.values() if a.key == key and a.deleted}

    def acknowledged(self) -> list[Append]:
        return [a for a in self.appends.values() if a.outcome is Outcome.ACKNOWLEDGED]

    def note_error(self, error: BaseException) -> None:
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1
