"""One partition: its range, its limits for reads and writes, its heat, and its age."""

from __future__ import annotations

from math import inf

import msgspec

from .limits import Side, SplitSettings
from .policy import HeatSketch, PartitionLook, is_calm, load


class PartitionState(msgspec.Struct, frozen=True):
    """The state of a partition, for reports and tests.

    Rates are averages over the last whole window, in units per second. `writes_s` and `reads_s` are
    the served units; `refused_writes_s` and `refused_reads_s` are the throttled units. `load` and
    the heat count both. `write_burst` and `read_burst` are the unused units that the partition has
    saved up, None without a table capacity. `hottest` is the hash of the hottest key. `stuck` is
    the reason why the table cannot relieve the partition further.
    """

    number: int
    start: int
    end: int
    writes_s: float
    reads_s: float
    refused_writes_s: float
    refused_reads_s: float
    load: float
    lent_s: float
    throttles_s: float
    throttles: int
    write_burst: float | None
    read_burst: float | None
    hottest: int | None
    hottest_share: float
    stuck: str | None


class Partition:
    __slots__ = (
        "_changed_s",
        "calm_since_s",
        "changing",
        "end",
        "heat",
        "hot_since_s",
        "is_lent_to",
        "lent_s",
        "number",
        "reads",
        "reads_s",
        "reads_taken_s",
        "start",
        "stuck",
        "throttles_s",
        "writes",
        "writes_s",
        "writes_taken_s",
    )

    def __init__(self, number: int, start: int, end: int, writes: Side, reads: Side) -> None:
        self.number = number
        self.start = start
        self.end = end
        self.writes = writes
        self.reads = reads
        self.heat = HeatSketch(start, end)
        self.writes_s = self.reads_s = self.lent_s = self.throttles_s = 0.0
        self.writes_taken_s = self.reads_taken_s = 0.0
        self.hot_since_s: float | None = None
        self.calm_since_s: float | None = None
        self.changing = self.is_lent_to = False
        self.stuck: str | None = None
        self._changed_s = -inf

    @property
    def is_one_key(self) -> bool:
        return self.end - self.start == 1

    def changed(self, now_s: float) -> None:
        self._changed_s = now_s

    def end_window(self, elapsed_s: float, now_s: float, settings: SplitSettings) -> None:
        writes, reads = self.writes, self.reads
        self.writes_s, self.reads_s = writes.demand / elapsed_s, reads.demand / elapsed_s
        self.writes_taken_s, self.reads_taken_s = writes.taken / elapsed_s, reads.taken / elapsed_s
        self.lent_s = (writes.lent + reads.lent) / elapsed_s
        self.throttles_s = (writes.throttles + reads.throttles) / elapsed_s
        full = load(self.writes_s, self.reads_s, settings)
        began_s = now_s - elapsed_s
        self.hot_since_s = _since(self.hot_since_s, full >= settings.hot_share, began_s)
        self.calm_since_s = _since(self.calm_since_s, is_calm(full, settings), began_s)
        if full <= 1:
            self.stuck = None
        writes.end_window(now_s)
        reads.end_window(now_s)
        self.heat.fade(elapsed_s)

    def look(self, now_s: float) -> PartitionLook:
        return PartitionLook(
            self.number,
            self.is_one_key,
            self.writes_s,
            self.reads_s,
            0.0 if self.hot_since_s is None else now_s - self.hot_since_s,
            0.0 if self.calm_since_s is None else now_s - self.calm_since_s,
            now_s - self._changed_s,
            self.heat,
        )

    def state(self, settings: SplitSettings) -> PartitionState:
        hottest = self.heat.hottest()
        return PartitionState(
            self.number,
            self.start,
            self.end,
            self.writes_taken_s,
            self.reads_taken_s,
            self.writes_s - self.writes_taken_s,
            self.reads_s - self.reads_taken_s,
            load(self.writes_s, self.reads_s, settings),
            self.lent_s,
            self.throttles_s,
            self.writes.throttles_so_far + self.reads.throttles_so_far,
            None if self.writes.share is None else max(self.writes.share.level, 0.0),
            None if self.reads.share is None else max(self.reads.share.level, 0.0),
            hottest.key if hottest else None,
            hottest.share if hottest else 0.0,
            self.stuck,
        )


def _since(before_s: float | None, holds: bool, began_s: float) -> float | None:
    if not holds:
        return None
    return began_s if before_s is None else before_s
