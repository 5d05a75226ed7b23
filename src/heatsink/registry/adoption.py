"""Which tables of users may be spread: notes in the registry about their adoption.

Programs without Heatsink may write to a table. If a key of this table had several buckets, an item
could be in two places. Then conditions and updates would go wrong. So the leader spreads a key of a
user's own table only if a note in the registry allows it. There are two such notes. One says that
the table's **adoption** is complete: no program without Heatsink writes to the table. The other
declares the table append-only.

Without such a note, the leader still decides how it would spread the table's keys. It publishes
these decisions as a dry run (*trials*): under a subject of another kind, which places no rows.

A table that **leaves** Heatsink gets a note, too. From then on, all processes refuse calls on this
table. A note is stored as a pin: a reserved subject is pinned to one bucket. So a note reaches
every process as all decisions do. The coordinator ignores these pins.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from heatsink.primitives.subjects import Kind, Subject

from .decisions import BUCKETS, PIN, Decision, View
from .layouts import Layout
from .spread_indexes import TAGGING, note_on

APPEND_ONLY = "append-only"
LEAVING = "leaving"


def completion(table: str, since_ms: int) -> Decision:
    """Return the note that a table's adoption is complete for items from `since_ms` on."""
    note = Subject(Kind.ADOPTED, f"{table}/{since_ms}")
    return Decision(note, PIN, 1, "adoption is complete")


def append_only(table: str) -> Decision:
    """Return the note that a table is declared append-only."""
    note = Subject(Kind.ADOPTED, f"{table}/{APPEND_ONLY}")
    return Decision(note, PIN, 1, "declared append-only")


def departure(table: str) -> Decision:
    """Return the note that a table leaves Heatsink."""
    note = Subject(Kind.ADOPTED, f"{table}/{LEAVING}")
    return Decision(note, PIN, 1, "leaves Heatsink")


def completed_ms(view: View, table: str) -> float:
    """Return the time from which a table's adoption is complete; infinite if it is not complete."""
    times = (int(note) for name, note in _notes(view) if name == table and note.isdecimal())
    return min(times, default=float("inf"))


def is_leaving(view: View, table: str) -> bool:
    """Return whether a table is leaving Heatsink, or has left it."""
    return departure(table).key in view.pins


def has_notes(view: View, table: str) -> bool:
    """Return whether a note lets the leader spread a table's keys, or did before the table left."""
    return any(name == table for name, _ in _notes(view))


def trials(view: View, table: str) -> dict[str, Layout]:
    """Return the layouts that a dry run has found, by key: what the keys would have now."""
    start = Subject(Kind.TRIAL, f"{table}/").text
    return {
        label.removeprefix(start): layout
        for label, layout in view.layouts.items()
        if label.startswith(start)
    }


def trial_of(view: View, subject: Subject) -> Layout:
    """Return the layout that a dry run has found for a key of a table."""
    return view.layout(Subject(Kind.TRIAL, subject.name).text)


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
        """Return whether a subject may have several buckets.

        A key of a user's table needs a note on the adoption of the table. A value of an index needs
        a note that the index is being spread. Any other subject may.
        """
        if subject.kind is Kind.INDEX:
            table, index, _ = subject.name.split("/", 2)
            note = note_on(self._view, table, index)
            return note is not None and note.step in TAGGING
        if subject.kind is not Kind.TABLE:
            return True
        version = self._view.version
        if self._seen[0] != version:
            notes = list(_notes(self._view))
            leaving = {name for name, note in notes if note == LEAVING}
            self._seen = (version, frozenset(name for name, _ in notes) - leaving)
        return subject.name.partition("/")[0] in self._seen[1]

    def allowed(self, decisions: Iterable[Decision]) -> list[Decision]:
        """Replace each decision that `allow` forbids by one on a trial, and return all decisions.

        A trial keeps the highest number of buckets that a key would have had. It has no effect on
        rows.
        """
        found = []
        for decision in decisions:
            if self.allow(decision.subject):
                found.append(decision)
                continue
            if decision.subject.kind is Kind.INDEX:
                continue
            trial = replace(decision, subject=Subject(Kind.TRIAL, decision.subject.name))
            if decision.setting == BUCKETS and (
                (decision.value or 0) > self._view.layout(trial.key).buckets
            ):
                found.append(trial)
        return found
