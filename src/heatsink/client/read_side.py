"""The hot reads of a client: its caches, their invalidation, and the leader's decisions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from msgspec.structs import astuple

from heatsink.errors import HeatsinkError
from heatsink.heat.count import Tracker
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import NO_HOOKS, Hooks
from heatsink.primitives.owner import Owner
from heatsink.reads import cached
from heatsink.reads.blocking import BlockingReads
from heatsink.reads.invalidation import Invalidation
from heatsink.reads.near_cache import NearKeys, ReadStats
from heatsink.reads.reads import NearPages, Reads
from heatsink.stores.memory.messages import MemorySoft
from heatsink.stores.stores import Stores

from .settings import Settings

FOLLOW_S = 1.0


class ReadSide:
    """All parts for hot reads in one process.

    Without a Redis for news, invalidations and decisions about near keys stay in this process.
    """

    def __init__(
        self,
        stores: Stores,
        settings: Settings,
        tracker: Tracker,
        clock: Clock,
        rng: Random,
        hooks: Hooks = NO_HOOKS,
        owner: Owner | None = None,
    ) -> None:
        self.near_keys = NearKeys(clock)
        self.soft = stores.soft or MemorySoft([])
        self.note = tracker.record_read
        self.near_s = self.near_keys.near_s
        self.reads = Reads(
            settings.reads, clock=clock, rng=rng, heat=self, owner=owner, hooks=hooks
        )
        self._caches: list[Reads | BlockingReads] = [self.reads]
        self._page_reads = Reads(settings.reads, clock=clock, rng=rng, owner=owner)
        self.pages = NearPages(self._page_reads, self, settings.reads.capacity)
        self.invalidation = Invalidation(stores.wire, clock, rng) if stores.wire else None
        if self.invalidation is not None:
            self.invalidation.tie(self.reads)
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._hooks = hooks
        self._owner = owner

    def stats(self) -> ReadStats:
        """Return statistics of `hs.reads`, including reads from threads."""
        each = [astuple(cache.stats()) for cache in self._caches]
        return ReadStats(*map(sum, zip(*each, strict=True)))

    def page_stats(self) -> ReadStats:
        """Return statistics of log pages read with `fresh_for`."""
        return self._page_reads.stats()

    def blocking(self, soon: Callable[[Callable[[str], None], str], object]) -> BlockingReads:
        """Make the cache of `hs.reads` for threads, and return it.

        `soon` calls a function in the thread of the event loop.
        """
        reads = BlockingReads(
            self._settings.reads,
            clock=self._clock,
            rng=self._rng,
            heat=self,
            owner=self._owner,
            hooks=self._hooks,
        )
        if self.invalidation is not None:
            post = self.invalidation.post
            self.invalidation.tie(reads, on_forget=lambda key: soon(post, key))
        self._caches.append(reads)
        cached.opened(reads)
        return reads

    async def follow(self) -> None:
        """Apply the leader's decisions about near keys every `FOLLOW_S`, for ever."""
        while True:
            with suppress(HeatsinkError):  # without them, `fresh_for` of each read applies
                self.near_keys.apply(await self.soft.read())
            await self._clock.sleep(FOLLOW_S)

    def open(self) -> None:
        """Let functions that are decorated with `heatsink.cached` find `hs.reads`."""
        cached.opened(self.reads)

    def close(self) -> None:
        for cache in self._caches:
            cached.closed(cache)
        self.reads.close()
        self._page_reads.close()
