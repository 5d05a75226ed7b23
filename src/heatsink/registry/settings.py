"""Settings of the whole deployment, as the registry stores them: one decision for each setting.

The decision holds the value as JSON, with who set it and when. The log of decisions is the history
of the settings. `client/deployment` defines what a setting means and which values it accepts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from heatsink.primitives.subjects import Kind, Subject

from .decisions import PIN, Decision, View


class StoredSetting(msgspec.Struct, frozen=True):
    """A setting in the registry: its value, who set it, when, and why."""

    name: str
    value: Any
    by: str
    changed_ms: int
    reason: str


class _Note(msgspec.Struct, frozen=True):
    """The part of a stored setting that the decision holds as JSON in its text."""

    value: Any
    by: str
    changed_ms: int


_notes = msgspec.json.Decoder(_Note)


def set_decision(setting: StoredSetting) -> Decision:
    note = _Note(setting.value, setting.by, setting.changed_ms)
    text = msgspec.json.encode(note).decode()
    return Decision(Subject(Kind.SETTING, setting.name), PIN, 1, setting.reason, text)


def unset_decision(name: str, reason: str) -> Decision:
    return Decision(Subject(Kind.SETTING, name), PIN, None, reason)


def stored_settings(view: View) -> dict[str, StoredSetting]:
    """Return the settings that the registry holds, by name."""
    found = {}
    for pin in list(view.pins.values()):
        if pin.subject.kind is Kind.SETTING:
            name, note = pin.subject.name, _notes.decode(pin.text)
            found[name] = StoredSetting(name, note.value, note.by, note.changed_ms, pin.reason)
    return found
