"""A wire inside one process: the reference that Redis is compared with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from heatsink.absorb.invalidation import Ear


class MemoryWire:
    """One process's end; `ends` is what all of them share."""

    def __init__(self, ends: list[MemoryWire]) -> None:
        self._ends = ends
        self._ear: Ear | None = None
        self._broken: asyncio.Event | None = None

    async def send(self, keys: Sequence[str]) -> None:
        for end in self._ends:
            if end is not self:
                end.hear(keys)

    def hear(self, keys: Sequence[str]) -> None:
        if self._ear is not None:
            self._ear.heard(keys)

    async def listen(self, ear: Ear) -> None:
        self._ear, self._broken = ear, asyncio.Event()
        self._ends.append(self)
        ear.linked()
        try:
            await self._broken.wait()
        finally:
            self._ear = None
            self._ends.remove(self)

    def cut(self) -> None:
        """Break the link, as a lost connection does."""
        if self._broken is not None:
            self._broken.set()
