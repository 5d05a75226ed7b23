"""A process's in-memory copy of the registry: all that the hot path ever reads."""

from __future__ import annotations

from .decisions import Decision, LogEntry, Snapshot
from .layouts import COLD, Layout


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
