"""Only keys of adopted or append-only tables may have several buckets."""

from __future__ import annotations

from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.adoption import Adoptions, append_only, completed_ms, completion
from heatsink.registry.decisions import Decision, LogEntry, View


def view_with(*notes: Decision) -> View:
    view = View()
    assert view.apply(LogEntry(1, 0, 0, notes))
    return view


def test_a_key_of_a_users_table_needs_a_note() -> None:
    adoptions = Adoptions(view_with(completion("a", 7), append_only("b")))
    assert adoptions.allow(Subject(Kind.TABLE, "a/room/1"))
    assert adoptions.allow(Subject(Kind.TABLE, "b/room"))
    assert not adoptions.allow(Subject(Kind.TABLE, "c/room"))
    assert adoptions.allow(Subject(Kind.KEY, "c/room"))


def test_an_append_only_table_is_not_complete() -> None:
    view = view_with(append_only("b"), completion("a", 7))
    assert completed_ms(view, "b") == float("inf")
    assert completed_ms(view, "a") == 7


def test_a_new_note_counts_at_once() -> None:
    view = View()
    adoptions = Adoptions(view)
    room = Subject(Kind.TABLE, "a/room")
    assert not adoptions.allow(room)
    view.apply(LogEntry(1, 0, 0, (completion("a", 7),)))
    assert adoptions.allow(room)
