"""Logs, counters and the registry in the memory of one process.

The conformance tests compare the other stores with these classes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice

from msgspec import structs

from heatsink.errors import Deposed, NoRegistry, Outdated, TokenExpired
from heatsink.primitives.clock import Clock, now_ms
from heatsink.registry.closed_time import check_append
from heatsink.registry.decisions import LogEntry, Meta, Reading, Snapshot, View
from heatsink.registry.layouts import Layout
from heatsink.spread.store import Answer, Ask, Row, Running, Total, check_running, check_share


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


@dataclass
class _Token:
    time_ms: int
    amount: int


@dataclass
class _Writer:
    time_ms: int
    totals: Running = field(default_factory=Running)
    folded: bool = False


@dataclass
class _Share:
    value: int = 0
    sealed_ms: int = 0
    folded_ms: int = 0
    tokens: dict[bytes, _Token] = field(default_factory=dict)
    writers: dict[bytes, _Writer] = field(default_factory=dict)

    def check_open(self, time_ms: int) -> None:
        if time_ms < self.sealed_ms:
            raise TokenExpired.by("tokens are remembered")

    def seal(self, before_ms: int) -> None:
        self.sealed_ms = max(self.sealed_ms, before_ms)
        self.tokens = {t: r for t, r in self.tokens.items() if r.time_ms >= self.sealed_ms}
        self.writers = {w: r for w, r in self.writers.items() if not r.folded}
        for writer in self.writers.values():
            if writer.time_ms < self.sealed_ms:
                self.value += writer.totals.net
                writer.folded = True


class MemoryCounters:
    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}

    def _share(self, partition: str) -> _Share:
        return self._shares.setdefault(partition, _Share())

    async def add(self, partition: str, token: bytes, time_ms: int, amount: int) -> int | None:
        share = self._share(partition)
        before = share.tokens.get(token)
        if before is not None:
            return before.amount
        share.check_open(time_ms)
        check_share(share.value, amount)
        share.tokens[token] = _Token(time_ms, amount)
        share.value += amount
        return None

    async def raise_to(
        self, partition: str, writer: bytes, time_ms: int, to: Running
    ) -> Running | None:
        check_running(to)
        share = self._share(partition)
        known = share.writers.get(writer)
        if known is None:
            share.check_open(time_ms)
            known = share.writers[writer] = _Writer(time_ms)
        if known.folded:
            return known.totals
        raised = max(known.totals.raised, to.raised)
        lowered = max(known.totals.lowered, to.lowered)
        known.totals = Running(raised, lowered)
        return None

    async def totals(self, partitions: Sequence[str]) -> list[Total]:
        return [_total(self._shares.get(partition, _Share())) for partition in partitions]

    async def fold(self, sources: Sequence[str], target: str, before_ms: int) -> None:
        into = self._share(target)
        for source in sources:
            share = self._share(source)
            share.seal(before_ms)
            if source != target:
                into.value, share.value = into.value + share.value, 0
        into.folded_ms = max(into.folded_ms, before_ms)

    async def shares(self) -> AsyncIterator[str]:
        for partition, share in list(self._shares.items()):
            if share.value or share.writers:
                yield partition

    def erase(self, partition: str) -> None:
        self._shares.pop(partition, None)


def _total(share: _Share) -> Total:
    writers = sum(writer.totals.net for writer in share.writers.values() if not writer.folded)
    return Total(share.value, writers, share.sealed_ms, share.folded_ms)


class MemoryRegistry:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._meta: Meta | None = None
        self._log: dict[int, LogEntry] = {}
        self._truth = View()

    def _reading(self) -> Reading:
        if self._meta is None:
            raise NoRegistry
        return Reading(self._meta, now_ms(self._clock))

    def _change(self, **changes: int | str) -> Meta:
        self._meta = structs.replace(self._reading().meta, **changes)
        return self._meta

    async def found(self, meta: Meta) -> Reading:
        self._meta = self._meta or meta
        return self._reading()

    async def meta(self) -> Reading:
        return self._reading()

    async def advance(self, closed_ms: int) -> Reading:
        if closed_ms > self._reading().meta.closed_ms:
            self._change(closed_ms=closed_ms)
        return self._reading()

    async def append(self, entry: LogEntry, term: int | None) -> None:
        check_append(entry, term, self._reading().meta, self._truth.layouts)
        self._log[entry.version] = entry
        self._truth.apply(entry)
        self._change(version=entry.version)

    async def log(self, after: int, upto: int) -> list[LogEntry]:
        return [self._log[v] for v in range(after + 1, upto + 1) if v in self._log]

    async def layout(self, key: str) -> Layout:
        return self.layout_now(key)

    def layout_now(self, key: str) -> Layout:
        return self._truth.layout(key)

    async def snapshot(self) -> Snapshot:
        truth = self._truth
        return Snapshot(truth.version, dict(truth.layouts), dict(truth.pins), dict(truth.reasons))

    async def trim(self, below: int) -> None:
        self._log = {version: entry for version, entry in self._log.items() if version >= below}

    async def restore(self, meta: Meta, snapshot: Snapshot) -> None:
        self._meta = meta
        self._log = {}
        self._truth = View()
        self._truth.load(snapshot)

    async def layouts(self) -> AsyncIterator[tuple[str, Layout]]:
        for key, layout in list(self._truth.layouts.items()):
            yield key, layout

    async def lead(self, seen: Meta, leader: str, lease_ms: int) -> Meta:
        meta = self._reading().meta
        if (meta.term, meta.beat) != (seen.term, seen.beat):
            raise Outdated(f"{meta.leader or 'a coordinator'} renewed or took the lease meanwhile")
        return self._change(term=meta.term + 1, beat=0, leader=leader, lease_ms=lease_ms)

    async def beat(self, term: int, servers: int, lease_ms: int) -> None:
        meta = self._reading().meta
        if meta.term != term:
            raise Deposed(f"term {term} is over: {meta.leader or 'nobody'} leads term {meta.term}")
        self._change(beat=meta.beat + 1, servers=servers, lease_ms=lease_ms)
