"""Home timelines inside one process: the reference that Redis is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from heatsink.clock import Clock
from heatsink.isolate.store import HOME_MAX, HomeEntry


class MemoryHomes:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_s: dict[str, float] = {}
        self._homes: dict[str, set[HomeEntry]] = {}
        self._built: set[str] = set()

    async def push(self, users: Sequence[str], entry: HomeEntry) -> None:
        await self.fill(users, [entry], built=False)

    async def page(self, user: str, below: HomeEntry | None, limit: int) -> list[HomeEntry] | None:
        if user not in self._built:
            return None
        self._looked_s[user] = self._clock.monotonic_s()
        entries = sorted(self._homes.get(user, ()), reverse=True)
        return [e for e in entries if below is None or e < below][:limit]

    async def fill(self, users: Sequence[str], entries: Sequence[HomeEntry], built: bool) -> None:
        for user in users:
            home = self._homes.setdefault(user, set())
            home.update(entries)
            if len(home) > HOME_MAX:
                self._homes[user] = set(sorted(home, reverse=True)[:HOME_MAX])
            self._looked_s.setdefault(user, self._clock.monotonic_s())
        if built:
            self._built.update(users)

    async def drop(self, user: str, author: str) -> None:
        self._homes[user] = {e for e in self._homes.get(user, ()) if e.author != author}
        self._built.discard(user)

    async def looked_at_s(self, users: Sequence[str]) -> list[float | None]:
        now_s, looked_s = self._clock.monotonic_s(), self._looked_s
        return [now_s - looked_s[user] if user in looked_s else None for user in users]

    def lose_everything(self) -> None:
        self._looked_s.clear()
        self._homes.clear()
        self._built.clear()
