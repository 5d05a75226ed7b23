"""A relay of news inside one process: the reference that Redis is compared with."""

from __future__ import annotations

from collections.abc import Mapping


class MemoryNews:
    def __init__(self) -> None:
        self.newest: bytes | None = None
        self.log: dict[str, dict[int, bytes]] = {}

    async def publish(self, log: str, entries: Mapping[int, bytes], pair: bytes) -> None:
        known = self.log.setdefault(log, {})
        for version, entry in entries.items():
            if version > max(known, default=0):
                known[version] = entry
        self.newest = pair

    async def pair(self) -> bytes | None:
        return self.newest

    async def entries(self, log: str, after: int, upto: int) -> list[bytes]:
        known = self.log.get(log, {})
        return [entry for version, entry in sorted(known.items()) if after < version <= upto]
