"""Pages of hot keys, kept for a moment: never beyond a write of this process to the same key.

Writes come far too often to look for the pages they outdate. Instead, each key counts its writes,
and a page is dropped when it is next asked for after the count has changed. Keys share a fixed
number of counters: where two keys share one, a page is loaded once too often.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any

from .reads import Reads
from .settings import ReadHeat
from .shelf import Times

COUNTERS = 4_096
REMEMBERED_MAX = 8_192


class NearPages:
    """`remembered_max` pages at most have their count of writes remembered."""

    def __init__(self, reads: Reads, heat: ReadHeat, remembered_max: int = REMEMBERED_MAX) -> None:
        self._reads = reads
        self._heat = heat
        self._writes = [0] * COUNTERS
        self._asked: OrderedDict[str, int] = OrderedDict()  # pages, and the writes they have seen
        self._remembered_max = min(remembered_max, REMEMBERED_MAX)
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
        name = blake2b(repr((key, *page)).encode("utf-8", "surrogatepass"), digest_size=16)
        self._drop_outdated(name.hexdigest(), self._writes[hash(key) % COUNTERS])
        return await self._reads.get(
            name.hexdigest(), load, fresh_for=fresh_for, stale_for=stale_for
        )

    def _drop_outdated(self, name: str, writes: int) -> None:
        """A page whose count was forgotten to bound memory counts as outdated."""
        if self._asked.get(name) == writes:
            return
        self._reads.drop(name)
        self._asked[name] = writes
        if len(self._asked) > self._remembered_max:
            self._asked.popitem(last=False)

    def wrote(self, key: str) -> None:
        self._writes[hash(key) % COUNTERS] += 1
