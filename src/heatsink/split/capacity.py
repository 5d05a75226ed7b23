"""Token buckets: a partition's ceiling, its share of the table, and the table itself.

A request needs its partition's ceiling and the table's bucket, and passes if they hold what the
smallest request costs, whatever it costs itself: a bucket may owe, and lets nobody through until
that is paid. So a partition takes no more in the long run, and who needs much at once does not
starve beside those who need little (docs/concepts/adaptive-capacity.md says where this comes from).

The share says whose throughput it is: the partition's own, its savings (burst), or what others
leave unused (lent). Without lending the share is a limit as well.
"""

from __future__ import annotations

from typing import Literal

import msgspec

START_S = 1.0
LEAST_WRITE, LEAST_READ = 1.0, 0.5  # what the smallest request costs
Limit = Literal["partition", "key", "table"]
Source = Literal["own", "burst", "lent"]


class TableCapacity(msgspec.Struct, frozen=True):
    """Units a second of the whole table; `None` is on demand, without such a limit."""

    writes: float | None = None
    reads: float | None = None


class Verdict(msgspec.Struct, frozen=True):
    """Accepted, and from what; or throttled, and by which limit."""

    accepted: bool
    source: Source = "own"
    limit: Limit | None = None


OWN, BURST, LENT = Verdict(True), Verdict(True, "burst"), Verdict(True, "lent")
BY_TABLE, BY_PARTITION, BY_KEY = (
    Verdict(False, limit="table"),
    Verdict(False, limit="partition"),
    Verdict(False, limit="key"),
)


class Bucket:
    """Fills at a rate, up to what it holds; its level is below zero while it owes."""

    __slots__ = ("_least", "_since_s", "level", "most", "rate")

    def __init__(self, rate: float, holds_s: float, now_s: float, least: float) -> None:
        self._least = least
        self.rate = rate
        self.most = max(rate * holds_s, 1.0)
        self.level = min(max(rate * START_S, 1.0), self.most)
        self._since_s = now_s

    def filled(self, now_s: float) -> float:
        """The level now."""
        level = self.level + (now_s - self._since_s) * self.rate
        most = self.most
        self._since_s = now_s
        self.level = level = min(level, most)
        return level

    def lets_pass(self, now_s: float) -> bool:
        return self.filled(now_s) >= self._least

    def resize(self, rate: float, holds_s: float, now_s: float) -> None:
        """Go on at another rate with what is there."""
        self.filled(now_s)
        self.rate = rate
        self.most = max(rate * holds_s, 1.0)
        self.level = min(self.level, self.most)


class Side:
    """The reads or the writes of one partition: its buckets, and this window's counts."""

    __slots__ = ("ceiling", "demand", "lent", "share", "taken", "throttles", "throttles_ever")

    def __init__(self, ceiling: Bucket, share: Bucket | None) -> None:
        self.ceiling = ceiling
        self.share = share
        self.demand = self.taken = self.lent = 0.0
        self.throttles = self.throttles_ever = 0

    def judge(self, units: float, now_s: float, table: Bucket | None, lend: bool) -> Verdict:
        """Whether every limit allows it. Nothing is taken yet."""
        if table is not None and not table.lets_pass(now_s):
            return BY_TABLE
        if not self.ceiling.lets_pass(now_s):
            return BY_PARTITION
        share = self.share
        if share is None:
            return OWN
        if share.filled(now_s) >= units or (not lend and share.lets_pass(now_s)):
            return OWN if self.taken + units <= share.rate else BURST
        return LENT if lend else BY_PARTITION

    def record(self, units: float, table: Bucket | None, verdict: Verdict) -> None:
        """Take what was accepted, and count."""
        self.demand += units
        if verdict.accepted:
            self.give_back(-units, table, verdict)
        else:
            self.throttles += 1

    def give_back(self, units: float, table: Bucket | None, verdict: Verdict) -> None:
        self.ceiling.level += units
        self.taken -= units
        if table is not None:
            table.level += units
        if verdict is LENT:
            self.lent -= units
        elif self.share is not None:
            self.share.level += units

    @property
    def throttles_so_far(self) -> int:
        return self.throttles_ever + self.throttles

    def refill(self, now_s: float) -> None:
        self.ceiling.filled(now_s)
        if self.share is not None:
            self.share.filled(now_s)

    def inherit(self, old: list[Side], part: float) -> None:
        """Begin where the old ones were: no throughput is made by a change of partitions."""
        self.ceiling.level = min(*(one.ceiling.level for one in old), self.ceiling.most)
        if self.share is not None:
            saved = sum(one.share.level for one in old if one.share is not None)
            self.share.level = min(saved * part, self.share.most)

    def end_window(self, now_s: float) -> None:
        self.refill(now_s)
        self.throttles_ever += self.throttles
        self.demand = self.taken = self.lent = 0.0
        self.throttles = 0
