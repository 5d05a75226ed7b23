"""Carries out on a table's rows what its capacity model decides, a little at a time.

A split, an isolation or a merge is decided first; then the rows move while requests go on; and when
they are there, the new partitions get limits of their own.
"""

from __future__ import annotations

from collections import deque
from decimal import Decimal
from typing import Any

import msgspec

from heatsink.clock import Clock
from heatsink.split.partition import PartitionState
from heatsink.split.policy import Change, Isolate, Merge, Split
from heatsink.split.table import AdaptiveTable, edges_after

from .rows.rows import Move, Rows

MOVED_AT_ONCE = 500
EVENTS_KEPT = 200


class Event(msgspec.Struct, frozen=True):
    """Something that was decided about partitions, or the end of it (`done`)."""

    at_s: float
    what: str
    partition: int
    reason: str
    done: bool = False


class PartitionReport(msgspec.Struct, frozen=True):
    """One partition for people and tests. `moved` is how many rows have left it so far."""

    state: PartitionState
    rows: int
    bytes: int
    hottest: str | None
    moved: int | None


class TableReport(msgspec.Struct, frozen=True):
    """All partitions of a table, in the order of their hashes."""

    table: str
    version: int
    throttles: dict[str, int]
    partitions: list[PartitionReport]
    events: list[Event]


class Job:
    """Moves the rows for one change, cut by cut."""

    def __init__(self, change: Split | Isolate | Merge, cuts: list[int], rows: Rows) -> None:
        self.change = change
        self._cuts = cuts
        self._rows = rows
        self._move = self._begin()

    def _begin(self) -> Move:
        at = self._cuts[0]
        is_merge = isinstance(self.change, Merge)
        return self._rows.begin_merge(at) if is_merge else self._rows.begin_split(at)

    def step(self) -> bool:
        """True when everything is where it belongs."""
        if not self._move.step(MOVED_AT_ONCE):
            return False
        at = self._cuts.pop(0)
        if isinstance(self.change, Merge):
            self._rows.end_merge(at)
        else:
            self._rows.end_split(at)
        if self._cuts:
            self._move = self._begin()
        return not self._cuts


class Adaptation:
    """Of one table. `tend` is called every few hundredths of a second."""

    def __init__(self, adaptive: AdaptiveTable, rows: Rows, clock: Clock) -> None:
        self._adaptive = adaptive
        self._rows = rows
        self._clock = clock
        self._jobs: list[Job] = []
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)

    def tend(self) -> None:
        """Move some rows, and look once a second whether something should change."""
        now_s = self._clock.monotonic_s()
        for job in [job for job in self._jobs if job.step()]:
            self._jobs.remove(job)
            self._adaptive.apply(job.change, now_s)
            self._tell(job.change, done=True)
        for change in self._adaptive.decide(now_s):
            self.begin(change)

    def begin(self, change: Change) -> None:
        """Start to move rows, if the change needs it."""
        self._tell(change)
        if isinstance(change, Split | Isolate | Merge):
            self._jobs.append(Job(change, self._cuts(change), self._rows))

    def _cuts(self, change: Split | Isolate | Merge) -> list[int]:
        old = self._adaptive.partition(change.partition)
        if isinstance(change, Merge):
            return [old.end]
        return edges_after(change, old.start, old.end)[1:-1]

    def _tell(self, change: Change, done: bool = False) -> None:
        what = type(change).__name__
        self._events.append(Event(self._clock.now_s(), what, change.partition, change.reason, done))

    def report(self, name: str) -> TableReport:
        return TableReport(
            name,
            self._adaptive.map.version,
            {str(limit): count for limit, count in self._adaptive.throttles.items()},
            [self._report(state) for state in self._adaptive.partitions()],
            list(self._events),
        )

    def _report(self, state: PartitionState) -> PartitionReport:
        key = None if state.hottest is None else self._rows.key_at(state.hottest)
        move = self._rows.map.find(state.start).move
        rows, bytes_ = self._rows.size(state.start, state.end)
        moved = None if move is None else move.moved
        return PartitionReport(state, rows, bytes_, None if key is None else _text(key), moved)


def _text(key: Any) -> str:
    return str(key) if isinstance(key, str | Decimal) else key.hex()
