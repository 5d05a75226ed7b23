"""What logs and counters of one process share: how a call begins, and when nothing is believed."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from heatsink.clock import Clock
from heatsink.detect.tracker import Tracker
from heatsink.owner import Owner
from heatsink.registry.registry import Registry

from .backoff import Backoff
from .pages import Page
from .router import Router

Load = Callable[[], Awaitable[Page]]


class PageCache(Protocol):
    """Keeps pages for a moment, and never beyond a write to their key.

    Until it `is_used`, there is nothing that a write could outdate.
    """

    is_used: bool

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
    is_used = False

    async def get(self, _key: str, _page: object, load: Load, *_: float) -> Page:
        return await load()

    def wrote(self, key: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Parts:
    """`answers_in_s` is by when the store ends an attempt by itself, whatever happens."""

    registry: Registry
    router: Router
    tracker: Tracker
    backoff: Backoff
    clock: Clock
    pages: PageCache = field(default_factory=NoPageCache)
    answers_in_s: float = math.inf
    owner: Owner = field(default_factory=Owner)

    def begin(self) -> float:
        """Every call begins here: when it has to end, unless the store is not ours any more."""
        self.check()
        return self.clock.monotonic_s() + self.backoff.patience_s

    def check(self) -> None:
        """Refuse a caller that is not the owner, and a store that is not ours any more."""
        self.owner.check()
        if self.registry.refusal:
            self.registry.check()

    async def believe_nothing(self, key: str, deadline_s: float) -> None:
        """Nothing was found, which a wiped store says of every key.

        A view that is fresh would know. One that was not renewed lately, since the process slept
        or could not reach the registry, is renewed first: only then does this cost a request.
        """
        if not self.registry.is_fresh():
            await self.backoff.call(self.registry.renew_shared, key, deadline_s)
        self.registry.check()
