"""A relay of news inside one process: the reference that Redis is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from heatsink.registry.decision import LogEntry, Meta
from heatsink.registry.news import News


class MemoryNews:
    def __init__(self) -> None:
        self.pair: News | None = None
        self.log: dict[str, dict[int, LogEntry]] = {}

    async def publish(self, meta: Meta, entries: Sequence[LogEntry]) -> None:
        log = self.log.setdefault(meta.incarnation, {})
        for entry in entries:
            if entry.version > max(log, default=0):
                log[entry.version] = entry
        self.pair = News(meta.closed_ms, meta.version, meta.incarnation)

    async def read(self, after: int) -> News | None:
        if self.pair is None:
            return None
        pair = self.pair
        log = self.log.get(pair.incarnation, {})
        versions = range(after + 1, pair.version + 1)
        entries = tuple(log[version] for version in versions if version in log)
        return News(pair.closed_ms, pair.version, pair.incarnation, entries)
