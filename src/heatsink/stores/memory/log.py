"""Rows in dicts and sorted lists: the reference that other stores are compared with."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Callable, Iterator
from heapq import heappop, heappush
from itertools import islice

from heatsink.clock import Clock, now_ms
from heatsink.registry.layout import Layout
from heatsink.spread.store import Answer, Ask, Row


class _Partition:
    def __init__(self) -> None:
        self.rows: dict[bytes, Row] = {}
        self.order: list[bytes] = []

    def put(self, row: Row) -> None:
        if row.raw not in self.rows:
            insort(self.order, row.raw)
        self.rows[row.raw] = row

    def remove(self, raw: bytes) -> None:
        del self.rows[raw]
        del self.order[bisect_left(self.order, raw)]

    def between(self, ask: Ask) -> Iterator[Row]:
        low = 0 if ask.above is None else bisect_right(self.order, ask.above)
        high = len(self.order) if ask.below is None else bisect_left(self.order, ask.below)
        places = range(high - 1, low - 1, -1) if ask.newest_first else range(low, high)
        return (self.rows[self.order[place]] for place in places)


class MemoryLog:
    def __init__(
        self,
        clock: Clock,
        layout_of: Callable[[str], Layout],
        erase_counters: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._layout_of = layout_of
        self._erase_counters = erase_counters
        self._partitions: dict[str, _Partition] = {}
        self._expiring: list[tuple[int, str, bytes]] = []

    def _is_live(self, row: Row) -> bool:
        return not row.deleted and not self._has_expired(row)

    def _has_expired(self, row: Row) -> bool:
        return row.expires_ms is not None and row.expires_ms <= now_ms(self._clock)

    async def put(self, partition: str, row: Row) -> Row | None:
        rows = self._partitions.get(partition)
        if rows is None:
            rows = self._partitions[partition] = _Partition()
        taken_by = rows.rows.get(row.raw)
        if taken_by is None:
            rows.put(row)
            if row.expires_ms is not None:
                heappush(self._expiring, (row.expires_ms, partition, row.raw))
                self._let_expired_go()
        return taken_by

    def _let_expired_go(self) -> None:
        while self._expiring and self._expiring[0][0] <= now_ms(self._clock):
            _, partition, raw = heappop(self._expiring)
            rows = self._partitions.get(partition)
            if rows is not None and raw in rows.rows and self._has_expired(rows.rows[raw]):
                rows.remove(raw)

    async def get(self, partition: str, raw: bytes) -> Row | None:
        rows = self._partitions.get(partition)
        row = rows.rows.get(raw) if rows else None
        return row if row and self._is_live(row) else None

    async def query(self, partition: str, ask: Ask) -> Answer:
        rows = self._partitions.get(partition) or _Partition()
        live = (row for row in rows.between(ask) if self._is_live(row))
        layout = None if ask.layout_of is None else self._layout_of(ask.layout_of)
        return Answer(list(islice(live, ask.limit)), layout)

    async def delete(self, partition: str, tombstone: Row) -> bool:
        rows = self._partitions.setdefault(partition, _Partition())
        before = rows.rows.get(tombstone.raw)
        rows.put(tombstone)
        return before is not None and self._is_live(before)

    async def erase(self, partition: str) -> int:
        self._erase_counters(partition)
        rows = self._partitions.pop(partition, None)
        return len(rows.rows) if rows else 0

    async def scan(self) -> AsyncIterator[tuple[str, Row]]:
        for partition, rows in list(self._partitions.items()):
            for row in list(rows.rows.values()):
                yield partition, row
