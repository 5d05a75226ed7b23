"""Moves rows when the partitions of a table or an index change, and reports on the partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec

from heatsink.primitives.clock import Clock
from heatsink.primitives.words import counted

from .capacity.partition import PartitionState
from .capacity.policy import Change, Isolate, Merge, Split
from .capacity.table import AdaptiveTable, edges_after
from .rows import Rows, RowsMove

MOVED_AT_ONCE = 500
EVENTS_KEPT = 200


class PartitionEvent(msgspec.Struct, frozen=True):
    """An entry in a table's list of changes to its partitions.

    `what` is the kind of change, such as "Split". `partition` is the number of the changed
    partition. With `done=False` the entry says that the table decided on the change. With
    `done=True` it says that all rows have moved and the change is in force.
    """

    at_s: float
    what: str
    partition: int
    reason: str
    done: bool = False


class PartitionReport(msgspec.Struct, frozen=True):
    """A report on one partition, for people and tests.

    `hottest` is the partition key with the most heat. While rows move out of the partition, `moved`
    is the number of rows that have moved so far. At other times `moved` is None.
    """

    state: PartitionState
    rows: int
    bytes: int
    hottest: str | None
    moved: int | None


class TableReport(msgspec.Struct, frozen=True):
    """A report on all partitions of a table or index, in the order of their hash ranges.

    `index` is the name of a global index of the table, or None for the table itself. `version` is
    the version of the partition map. `throttles` counts throttled requests by limit.
    """

    table: str
    index: str | None
    version: int
    throttles: dict[str, int]
    partitions: list[PartitionReport]
    events: list[PartitionEvent]


class RowMove:
    """Moves the rows of one split, isolation or merge to their new partitions.

    `cuts` are the hashes at which partitions are divided or joined. They are handled one by one.
    """

    def __init__(self, change: Split | Isolate | Merge, cuts: list[int], rows: Rows) -> None:
        self.change = change
        self._cuts = cuts
        self._rows = rows
        self._move = self._begin()

    def _begin(self) -> RowsMove:
        at = self._cuts[0]
        is_merge = isinstance(self.change, Merge)
        return self._rows.begin_merge(at) if is_merge else self._rows.begin_split(at)

    def step(self) -> bool:
        """Move some rows. Return True when all rows are in their new partitions."""
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
    """Carries out the partition changes that a table's capacity model decides on.

    The model decides on a split, an isolation or a merge. Then the rows move, a few at a time,
    while the table serves requests. When all rows have moved, the new partitions get their own
    limits. The emulator calls `tend` every 20 ms.
    """

    def __init__(self, adaptive: AdaptiveTable, rows: Rows, clock: Clock) -> None:
        self._adaptive = adaptive
        self._rows = rows
        self._clock = clock
        self._jobs: list[RowMove] = []
        self._events: deque[PartitionEvent] = deque(maxlen=EVENTS_KEPT)
        self._wanted = 0

    def grow(self, partitions: int) -> None:
        """Split partitions until there are enough for a higher throughput."""
        self._wanted = partitions

    @property
    def is_growing(self) -> bool:
        return len(self._adaptive.map) < self._wanted

    def _growth(self) -> Iterator[Split]:
        """Yield splits of the widest partitions in the middle, whether they are hot or not."""
        partitions = self._adaptive.map
        missing = self._wanted - len(partitions) - sum(one.changing for one in partitions)
        able = [one for one in partitions if not one.changing and not one.is_one_key]
        for one in sorted(able, key=lambda one: one.start - one.end)[: max(missing, 0)]:
            one.changing = True
            reason = f"the throughput needs {counted(self._wanted, 'partition')}"
            yield Split(one.number, (one.start + one.end) // 2, reason)

    def tend(self) -> None:
        """Move some rows of each pending change. Once a second, decide on new changes."""
        now_s = self._clock.monotonic_s()
        for job in [job for job in self._jobs if job.step()]:
            self._jobs.remove(job)
            self._adaptive.apply(job.change, now_s)
            self._tell(job.change, done=True)
        for change in self._adaptive.decide(now_s):
            self.begin(change)
        if self.is_growing:
            for split in self._growth():
                self.begin(split)

    def begin(self, change: Change) -> None:
        """Add the change to the events. If the change moves rows, start to move them."""
        self._tell(change)
        if isinstance(change, Split | Isolate | Merge):
            self._jobs.append(RowMove(change, self._cuts(change), self._rows))

    def _cuts(self, change: Split | Isolate | Merge) -> list[int]:
        old = self._adaptive.partition(change.partition)
        if isinstance(change, Merge):
            return [old.end]
        return edges_after(change, old.start, old.end)[1:-1]

    def _tell(self, change: Change, done: bool = False) -> None:
        what = type(change).__name__
        self._events.append(
            PartitionEvent(self._clock.now_s(), what, change.partition, change.reason, done)
        )

    def report(self, table: str, index: str | None = None) -> TableReport:
        return TableReport(
            table,
            index,
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
    if isinstance(key, tuple):
        return " · ".join(map(_text, key))
    return str(key) if isinstance(key, str | Decimal) else key.hex()
