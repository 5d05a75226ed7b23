"""Home timelines inside one process: the reference that Redis is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from heatsink.isolate.store import HOME_MAX, HomeEntry


class MemoryHomes:
    def __init__(self) -> None:
        self._homes: dict[str, set[HomeEntry]] = {}
        self._built: set[str] = set()

    async def push(self, users: Sequence[str], entry: HomeEntry) -> None:
        for user in users:
            await self.fill(user, [entry], built=False)

    async def page(self, user: str, below: bytes | None, limit: int) -> list[HomeEntry] | None:
        if user not in self._built:
            return None
        entries = sorted(self._homes.get(user, ()), reverse=True)
        return [e for e in entries if below is None or e.raw < below][:limit]

    async def fill(self, user: str, entries: Sequence[HomeEntry], built: bool) -> None:
        home = self._homes.setdefault(user, set()) | set(entries)
        self._homes[user] = set(sorted(home, reverse=True)[:HOME_MAX])
        if built:
            self._built.add(user)

    async def drop(self, user: str, author: str) -> None:
        self._homes[user] = {e for e in self._homes.get(user, ()) if e.author != author}
        self._built.discard(user)

    def lose_everything(self) -> None:
        self._homes.clear()
        self._built.clear()
