"""Which tables of users may be spread: notes in the registry about their adoption.

While programs without Heatsink write to a table, an item could be in two places if its key had
several buckets. Then conditions and updates would go wrong. So the leader spreads a key of a user's
own table only if a note in the registry allows it. Either the table's **adoption** is complete,
that is, no other program writes to it, or the table is declared append-only.

A note is the pin of a reserved subject to one bucket, so it reaches every process as all decisions
do. The coordinator ignores these pins.
"""

from __future__ import annotations

from collections.abc import Iterable

from heatsink.primitives.subjects import Kind, Subject

from .decisions import PIN, Decision, View

APPEND_ONLY = "append-only"


def completion(table: str, since_ms: int) -> Decision:
    """Return the note that a table's adoption is complete for items from `since_ms` on."""
    note = Subject(Kind.ADOPTED, f"{table}/{since_ms}")
    return Decision(note, PIN, 1, "adoption is complete")


def append_only(table: str) -> Decision:
    """Return the note that a table is declared append-only."""
    note = Subject(Kind.ADOPTED, f"{table}/{APPEND_ONLY}")
    return Decision(note, PIN, 1, "declared append-only")


def completed_ms(view: View, table: str) -> float:
    """Return since when a table's adoption is complete; infinite if it is not."""
    times = (int(note) for name, note in _notes(view) if name == table and note != APPEND_ONLY)
    return min(times, default=float("inf"))


def _notes(view: View) -> Iterable[tuple[str, str]]:
    for pin in list(view.pins.values()):
        if pin.subject.kind is Kind.ADOPTED:
            name, _, note = pin.subject.name.rpartition("/")
            yield name, note


class Adoptions:
    """The tables whose keys may have several buckets; cached until the view changes."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._seen: tuple[int, frozenset[str]] = (-1, frozenset())

    def allow(self, subject: Subject) -> bool:
        """Return whether a subject may have several buckets. Only users' tables need a note."""
        if subject.kind is not Kind.TABLE:
            return True
        version = self._view.version
        if self._seen[0] != version:
            self._seen = (version, frozenset(name for name, _ in _notes(self._view)))
        return subject.name.partition("/")[0] in self._seen[1]
