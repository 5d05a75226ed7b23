"""Homes that are tried again as rows are: their Redis may be away for a moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from heatsink.isolate.store import HomeEntry, HomeStore
from heatsink.spread.backoff import Backoff

Result = TypeVar("Result")


class PatientHomes:
    """All of a home's changes are safe to repeat."""

    def __init__(self, homes: HomeStore, backoff: Backoff) -> None:
        self._homes = homes
        self._backoff = backoff

    async def push(self, users: Sequence[str], entry: HomeEntry) -> None:
        await self._call(lambda: self._homes.push(users, entry))

    async def page(self, user: str, below: HomeEntry | None, limit: int) -> list[HomeEntry] | None:
        return await self._call(lambda: self._homes.page(user, below, limit))

    async def fill(self, users: Sequence[str], entries: Sequence[HomeEntry], built: bool) -> None:
        await self._call(lambda: self._homes.fill(users, entries, built))

    async def drop(self, user: str, author: str) -> None:
        await self._call(lambda: self._homes.drop(user, author))

    async def looked_at_s(self, users: Sequence[str]) -> list[float | None]:
        """Once: a post must not wait for a guess."""
        return await self._homes.looked_at_s(users)

    async def _call(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        return await self._backoff.call(attempt, "", self._backoff.deadline_s())
