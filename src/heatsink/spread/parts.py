"""What logs and counters of one process share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from heatsink.clock import Clock
from heatsink.detect.tracker import Tracker
from heatsink.registry.registry import Registry

from .backoff import Backoff
from .pages import Page
from .router import Router

Load = Callable[[], Awaitable[Page]]


class PageCache(Protocol):
    """Keeps pages for a moment, and never beyond a write to their key."""

    async def get(
        self,
        key: str,
        page: tuple[object, ...],
        load: Load,
        fresh_for: float,
        stale_for: float,
    ) -> Page:
        """`page` is all that tells one page of the key from another."""

    def wrote(self, key: str) -> None: ...


class NoPageCache:
    async def get(self, _key: str, _page: object, load: Load, *_: float) -> Page:
        return await load()

    def wrote(self, key: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Parts:
    registry: Registry
    router: Router
    tracker: Tracker
    backoff: Backoff
    clock: Clock
    pages: PageCache = field(default_factory=NoPageCache)
