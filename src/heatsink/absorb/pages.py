"""Pages of hot keys, kept for a moment: never beyond a write of this process to the same key.

Writes come far too often to look for the pages they outdate. Each page carries the number of writes
that its key had seen when it was asked for, so that a later reader asks for another one; the
outdated pages are not asked for any more and make room in time. Keys share a fixed number of such
counters: where two meet, a page is loaded once too often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any

from .reads import Reads
from .settings import ReadHeat
from .shelf import Times

COUNTERS = 4_096


class NearPages:
    def __init__(self, reads: Reads, heat: ReadHeat) -> None:
        self._reads = reads
        self._heat = heat
        self._writes = [0] * COUNTERS
        self.is_used = False

    async def get(
        self,
        key: str,
        page: tuple[object, ...],
        load: Callable[[], Awaitable[Any]],
        fresh_for: float,
        stale_for: float,
    ) -> Any:
        """`page` is all that tells one page of the key from another."""
        Times(fresh_for, stale_for)
        self.is_used = True
        self._heat.note(key, 1)
        fresh_for = min(max(fresh_for, self._heat.near_s(key)), stale_for)
        writes = self._writes[hash(key) % COUNTERS]
        name = blake2b(repr((key, writes, *page)).encode("utf-8", "surrogatepass"), digest_size=16)
        return await self._reads.get(
            name.hexdigest(), load, fresh_for=fresh_for, stale_for=stale_for
        )

    def wrote(self, key: str) -> None:
        self._writes[hash(key) % COUNTERS] += 1
