"""The registry inside one process: the reference that other stores are compared with."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import structs

from heatsink.clock import Clock, now_ms
from heatsink.errors import Deposed, NoRegistry, Outdated
from heatsink.registry.decision import LogEntry, Meta, Reading, Snapshot
from heatsink.registry.layout import Layout
from heatsink.registry.rules import check_append
from heatsink.registry.view import View


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
            raise Outdated(f"{meta.leader or 'nobody'} leads term {meta.term} already")
        return self._change(term=meta.term + 1, beat=0, leader=leader, lease_ms=lease_ms)

    async def beat(self, term: int, servers: int, lease_ms: int) -> None:
        meta = self._reading().meta
        if meta.term != term:
            raise Deposed(f"term {term} is over: {meta.leader or 'nobody'} leads term {meta.term}")
        self._change(beat=meta.beat + 1, servers=servers, lease_ms=lease_ms)
