"""Merge an ordered page from many partitions, and read hardly more rows than the page holds.

`Gather` decides which queries to send, takes their results, and returns the page. It does no I/O.

Rows exist only where their epoch placed them. So querying too many partitions costs more, but gives
the same page. The first round queries the partitions of the epoch in which the page begins. Each
query asks for the partition's expected part of the page, and some more rows. If rows of the page
may be missing, there is a second round. If a partition has returned as many rows as its query's
limit, it may hold more rows of the page. The second round queries these partitions again. If there
are none, it queries the partitions of the next epoch. The third round queries all remaining epochs.
So most pages take one round, and no page takes more than three, however many epochs there are. If
the key's layout changes during the rounds, one more round is needed.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf

import msgspec

from heatsink.primitives.ids import IdScheme
from heatsink.registry.layouts import Epoch, Layout

from .store import Ask, Row

REFILL_CHANCE = 0.15
ROUNDS_MAX = 3


class Range(msgspec.Struct, frozen=True):
    """The ids of a page: all ids between two bounds. The bounds themselves are not included.

    The page starts at the newest or at the oldest of these ids.
    """

    above: bytes | None
    below: bytes | None
    newest_first: bool

    def precedes(self, one: bytes, other: bytes) -> bool:
        """Return whether an id comes before another on the page."""
        return one > other if self.newest_first else one < other


class Gather:
    """Collects `wanted` rows: one more than the page holds, to see whether another page follows.

    To *open* an epoch means to query its partitions for the first time.
    """

    def __init__(
        self, key: str, layout: Layout, span: Range, wanted: int, scheme: IdScheme
    ) -> None:
        self.rounds = 0
        self._key = key
        self._span = span
        self._wanted = wanted
        self._scheme = scheme
        self._rows: list[Row] = []
        self._frontiers: dict[str, bytes | None] = {}  # the last row seen of each open partition
        self._exhausted: set[str] = set()
        self._unopened: list[Epoch] = []
        self.learn(layout)
        self._open(self._unopened[:1])

    @property
    def rows(self) -> list[Row]:
        return self._rows[: self._wanted]

    def learn(self, layout: Layout) -> None:
        """Use a newer layout from now on. Rows that were fetched before stay valid."""
        from_ms = None if self._span.above is None else self._scheme.time_ms(self._span.above)
        to_ms = None if self._span.below is None else self._scheme.time_ms(self._span.below)
        epochs = list(layout.overlapping(from_ms, to_ms))
        if self._span.newest_first:
            epochs.reverse()
        self._ends: dict[Epoch, float] = {
            epoch: later.start_ms for epoch, later in zip(layout.epochs, layout.later, strict=False)
        }
        self._unopened = [epoch for epoch in epochs if not self._is_open(epoch)]

    def _is_open(self, epoch: Epoch) -> bool:
        return all(partition in self._frontiers for partition in epoch.partitions(self._key))

    def _open(self, epochs: list[Epoch]) -> None:
        for epoch in epochs:
            for partition in epoch.partitions(self._key):
                self._frontiers.setdefault(partition, None)
        self._unopened = [epoch for epoch in self._unopened if not self._is_open(epoch)]

    def asks(self) -> dict[str, Ask]:
        """Return the queries to send next, by partition; empty when the page is complete."""
        self._rows.sort(key=_raw, reverse=self._span.newest_first)
        dry = self._dry()
        opening = not dry and self._must_open()
        if opening:
            last = self.rounds >= ROUNDS_MAX - 1
            self._open(self._unopened if last else self._unopened[:1])
            dry = self._dry()
            if not dry:  # all of these partitions are read already
                return self.asks()
        if not dry:
            return {}
        self.rounds += 1
        missing = self._wanted - self._certain()
        sparing = self.rounds == 1 or (opening and self.rounds < ROUNDS_MAX)
        limit = fair_share(missing, len(dry)) if sparing else missing
        return {partition: self._ask(partition, limit) for partition in dry}

    def _must_open(self) -> bool:
        last = self._last_wanted()
        return bool(self._unopened) and (last is None or not self._is_safe(last))

    def _dry(self) -> list[str]:
        """The partitions to query next.

        They belong to opened epochs, and may hold rows of the page that were not fetched yet.
        """
        last = self._last_wanted()
        return [
            partition
            for partition, frontier in self._frontiers.items()
            if partition not in self._exhausted
            and (
                frontier is None
                or (
                    self._is_safe(frontier)
                    and (last is None or self._span.precedes(frontier, last))
                )
            )
        ]

    def _last_wanted(self) -> bytes | None:
        return self._rows[self._wanted - 1].raw if len(self._rows) >= self._wanted else None

    def _is_safe(self, raw: bytes) -> bool:
        """Return whether only opened epochs can have rows before this id, in the page's order."""
        time_ms = self._scheme.time_ms(raw)
        if self._span.newest_first:
            return all(time_ms >= self._ends.get(epoch, inf) for epoch in self._unopened)
        return all(time_ms < epoch.start_ms for epoch in self._unopened)

    def _certain(self) -> int:
        """Return how many of the first rows are certain: no row fetched later precedes them."""
        behind = [f for p, f in self._frontiers.items() if p not in self._exhausted]
        if None in behind:
            return 0
        count = 0
        for row in self._rows:
            unseen = any(frontier and self._span.precedes(frontier, row.raw) for frontier in behind)
            if unseen or not self._is_safe(row.raw):
                break
            count += 1
        return count

    def _ask(self, partition: str, limit: int) -> Ask:
        above, below = self._span.above, self._span.below
        frontier = self._frontiers[partition]
        if frontier is not None:
            above, below = (above, frontier) if self._span.newest_first else (frontier, below)
        return Ask(above, below, limit, self._span.newest_first)

    def feed(self, partition: str, ask: Ask, rows: list[Row]) -> None:
        """Take in the rows that the query `ask` of a partition returned."""
        self._rows += rows
        if len(rows) < ask.limit:
            self._exhausted.add(partition)
        if rows:
            self._frontiers[partition] = rows[-1].raw


@lru_cache(maxsize=4096)
def fair_share(rows: int, partitions: int) -> int:
    """Return the limit of each partition's query, so that one round probably returns all `rows`.

    A hash spreads the ids, so the number of rows in a partition is binomial. The result is the
    smallest limit with which, at a probability of at least 1 - `REFILL_CHANCE`, no partition must
    be queried a second time.
    """
    if partitions == 1:
        return rows
    odds = 1 / (partitions - 1)
    chance = (1 - 1 / partitions) ** rows
    within, limit = chance, 0
    while limit < rows and (1 - within) * partitions > REFILL_CHANCE:
        chance *= (rows - limit) / (limit + 1) * odds
        limit += 1
        within += chance
    return max(limit, 1)


def _raw(row: Row) -> bytes:
    return row.raw
