"""Which global indexes of users' tables are spread, and how far each migration is.

A hot value of a global secondary index throttles the writes of its table. So a spread index is
replaced by an index on a **shadow attribute**, which holds the value and a bucket. The change is a
migration in steps, and the registry keeps a note on the step. Every process follows the note.

    creating    the new index is created
    tagging     processes write the shadow attribute; existing items get it (backfill)
    filled      every item has its shadow attribute; both indexes are compared
    reading     processes query the new index
    deleting    no process queries the old index any more; it is deleted
    spread      done
    restoring   the way back: the old index is created again
    returning   processes query the old index
    clearing    no process writes the shadow attribute; it is removed from all items
    left        done: the table is as it was before

A value of a spread index has a layout of its own, as a key of a table has. When the number of
buckets has fallen, a sweep moves the items out of the buckets that are no longer used (the
*retired* ones). A second kind of note counts the sweeps that found a value's retired buckets empty.
An index lags behind its table, so an entry may appear in a bucket after these sweeps. Therefore
queries ask the bucket until one more sweep, at least a day later, has also found it empty.

The registry stores a note in the text of a pin, whose subject is reserved for notes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from heatsink.primitives.subjects import Kind, Subject

from .decisions import PIN, Decision, View

Step = Literal[
    "creating",
    "tagging",
    "filled",
    "reading",
    "deleting",
    "spread",
    "restoring",
    "returning",
    "clearing",
    "left",
]
TAGGING: frozenset[Step] = frozenset(
    ("tagging", "filled", "reading", "deleting", "spread", "restoring", "returning")
)
"""The steps in which every write adds or removes the shadow attribute."""
READING: frozenset[Step] = frozenset(("reading", "deleting", "spread", "restoring"))
"""The steps in which queries use the new index."""
WITHOUT_OLD: frozenset[Step] = frozenset(("deleting", "spread", "restoring"))
"""The steps in which the old index may not exist."""
DAY_MS = 86_400_000
SWEEPS = 2


class SpreadNote(msgspec.Struct, frozen=True):
    """How far the spreading of an index is, and how to create the old index again.

    `since_ms` is when the present step began. `position` is the key of the item at which an
    interrupted backfill continues.
    """

    step: Step
    attribute: str
    sort_keys: list[str]
    kinds: dict[str, str]
    projection: dict[str, Any]
    since_ms: int = 0
    throughput: dict[str, int] | None = None
    position: dict[str, Any] | None = None

    def at(self, step: Step, now_ms: int) -> SpreadNote:
        """Return a copy of this note that has advanced to `step`, a step that began at `now_ms`."""
        return msgspec.structs.replace(self, step=step, since_ms=now_ms, position=None)


class Swept(msgspec.Struct, frozen=True):
    """What sweeps have found in the retired buckets of a value.

    These are the buckets of its epochs from before `epoch_ms`. The last `empty` sweeps found no
    item in them; the latest of these sweeps was at `last_ms`. After `SWEEPS` empty sweeps in a row,
    the buckets are closed. If one more sweep, a day later, finds nothing either, queries no longer
    read these buckets.
    """

    epoch_ms: int
    empty: int
    last_ms: int

    @property
    def is_closed(self) -> bool:
        return self.empty >= SWEEPS

    @property
    def is_forgotten(self) -> bool:
        """Whether queries no longer need to read the retired buckets."""
        return self.empty > SWEEPS

    def rests(self, now_ms: int) -> bool:
        """Return whether the buckets are closed, and it is too early for the last sweep."""
        return self.is_closed and now_ms < self.last_ms + DAY_MS


_notes = msgspec.json.Decoder(SpreadNote)
_swept = msgspec.json.Decoder(Swept)


def note_of(table: str, index: str, note: SpreadNote) -> Decision:
    """Return the decision that records how far the spreading of an index is."""
    text = msgspec.json.encode(note, order="sorted").decode()
    return Decision(Subject(Kind.SPREAD, f"{table}/{index}"), PIN, 1, note.step, text)


def swept_note(table: str, index: str, value: str, swept: Swept) -> Decision:
    """Return the decision that records what sweeps of a value have found."""
    text = msgspec.json.encode(swept).decode()
    return Decision(Subject(Kind.SWEPT, f"{table}/{index}/{value}"), PIN, 1, "swept", text)


def note_on(view: View, table: str, index: str) -> SpreadNote | None:
    """Return how far the spreading of an index is; None if it never began."""
    pin = view.pins.get(Subject(Kind.SPREAD, f"{table}/{index}").text)
    return None if pin is None else _notes.decode(pin.text)


def notes_on(view: View, table: str) -> Iterator[tuple[str, SpreadNote]]:
    """Yield the names of a table's spread indexes, and their notes."""
    for pin in list(view.pins.values()):
        if pin.subject.kind is Kind.SPREAD:
            name, _, index = pin.subject.name.partition("/")
            if name == table:
                yield index, _notes.decode(pin.text)


def swept_on(view: View, table: str, index: str, value: str) -> Swept | None:
    """Return what sweeps of a value have found; None if there was no sweep."""
    pin = view.pins.get(Subject(Kind.SWEPT, f"{table}/{index}/{value}").text)
    return None if pin is None else _swept.decode(pin.text)


def value_subject(table: str, index: str, value: str) -> Subject:
    """Return the subject of a value of an index."""
    return Subject(Kind.INDEX, f"{table}/{index}/{value}")


def values_of(view: View, table: str, index: str) -> list[str]:
    """Return the values of an index that have, or had, several buckets."""
    start = Subject(Kind.INDEX, f"{table}/{index}/").text
    found = (label for label, layout in list(view.layouts.items()) if layout.max_buckets > 1)
    return sorted(label.removeprefix(start) for label in found if label.startswith(start))
