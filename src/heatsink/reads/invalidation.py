"""Cache invalidation between processes: if one process forgets a key, all others forget it too.

A `Wire` loses messages only when its link breaks. So when the link is up again, a process drops its
whole cache, since it may have missed invalidations. While the link is down, the process serves no
value older than `fresh_for`. Whether the link is up or down, the process never serves a value older
than `stale_for`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from random import Random
from typing import Protocol

from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import Clock

TOGETHER_MAX = 500
OUTBOX_MAX = 10_000
AGAIN_S = 1.0
END_S = 1.0
EVERYTHING: Sequence[str] = ()
Tell = Callable[[str], object]


class Forgetful(Protocol):
    """A cache to invalidate: `Reads` or `BlockingReads`."""

    is_linked: bool
    on_forget: Tell

    def drop(self, key: str) -> None: ...

    def drop_all(self) -> None: ...


class Ear(Protocol):
    """Receives the events of a wire."""

    def linked(self) -> None:
        """Called when the link is up.

        From this call on, every message arrives, until `Wire.listen` ends.
        """

    def heard(self, keys: Sequence[str]) -> None:
        """Called when another process forgot these keys. `EVERYTHING` means all keys."""


class Wire(Protocol):
    """Carries the names of forgotten keys to all other processes."""

    async def send(self, keys: Sequence[str]) -> None: ...

    async def listen(self, ear: Ear) -> None:
        """Pass messages to `ear` until the link breaks. Then return or raise a `HeatsinkError`."""


class Invalidation:
    """Passes invalidations between the caches of this process and those of all other processes.

    Invalidations pass only while `run` is running.
    """

    def __init__(self, wire: Wire, clock: Clock, rng: Random) -> None:
        self._wire = wire
        self._clock = clock
        self._rng = rng
        self._caches: list[Forgetful] = []
        self._outbox: dict[str, None] = {}
        self._owes_everything = False
        self._has_mail = asyncio.Event()
        self._is_running = self._is_linked = False

    def tie(self, cache: Forgetful, on_forget: Tell | None = None) -> None:
        cache.is_linked = self._is_linked
        cache.on_forget = on_forget or self.post
        self._caches.append(cache)

    def post(self, key: str) -> None:
        """Queue the invalidation of a key for all other processes.

        If more than `OUTBOX_MAX` keys are queued, all keys are invalidated instead.
        """
        if len(self._outbox) >= OUTBOX_MAX and key not in self._outbox:
            self._owes_everything = True
            self._outbox.clear()
        if not self._owes_everything:
            self._outbox[key] = None
        self._has_mail.set()

    async def run(self) -> None:
        """Send and receive invalidations until cancelled.

        After the cancellation, `run` waits at most `END_S` for its tasks, since a driver may ignore
        a cancellation.
        """
        tasks = {asyncio.ensure_future(self._tell()), asyncio.ensure_future(self._listen())}
        self._is_running = True
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self._is_running = False
            for task in tasks:
                task.cancel()
            ended, _ = await asyncio.wait(tasks, timeout=END_S)
            self._set_linked(False)
        for task in ended:
            if not task.cancelled():
                task.result()

    async def _tell(self) -> None:
        while self._is_running:
            await self._has_mail.wait()
            await self._tell_once()

    async def _tell_once(self) -> None:
        keys = EVERYTHING if self._owes_everything else list(islice(self._outbox, TOGETHER_MAX))
        for key in keys:
            del self._outbox[key]
        self._owes_everything = False
        if not self._outbox:
            self._has_mail.clear()
        try:
            await self._wire.send(keys)
        except HeatsinkError:
            self._owes_everything = self._owes_everything or not keys
            for key in keys:
                self.post(key)
            self._has_mail.set()
            await self._pause()

    async def _listen(self) -> None:
        while self._is_running:
            try:
                await self._wire.listen(self)
            except HeatsinkError:
                pass
            finally:
                self._set_linked(False)
            await self._pause()

    async def _pause(self) -> None:
        await self._clock.sleep(AGAIN_S * self._rng.uniform(0.5, 1.0))

    def linked(self) -> None:
        for cache in self._caches:
            cache.drop_all()
        self._set_linked(True)

    def heard(self, keys: Sequence[str]) -> None:
        for cache in self._caches:
            for key in keys:
                cache.drop(key)
            if not keys:
                cache.drop_all()

    def _set_linked(self, is_linked: bool) -> None:
        self._is_linked = is_linked
        for cache in self._caches:
            cache.is_linked = is_linked
