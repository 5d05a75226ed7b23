"""Home timelines in Redis: one sorted set per user, ordered by the posts' ids and authors.

A member is the length of the id, then the id, then the author. All ids of a deployment have the
same length, so members sort like (id, author). A complete home has one more member, which sorts
last. If Redis loses a home, later pushes create a home without this member. Such a home is
incomplete, so Heatsink rebuilds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from importlib.resources import files
from random import Random

from heatsink.primitives.clock import Clock
from heatsink.stores.redis.address import parse
from heatsink.stores.redis.connection import Connection, Word
from heatsink.timelines.store import HOME_MAX, HomeEntry, slot_of

KEEP_S = 30 * 86_400
TIMEOUT_S = 2.0
BUILT = b"\xff"


class RedisHomes:
    def __init__(self, url: str, stage: str, clock: Clock, rng: Random) -> None:
        self._connection = Connection(parse(url, "queue", TIMEOUT_S), clock, rng)
        self._stage = stage
        self._push, self._page, self._drop = (
            files(__package__).joinpath(f"{name}.lua").read_text()
            for name in ("push", "page", "drop")
        )

    def _root(self, user: str) -> str:
        return f"/{self._stage}/homes/{{home_{slot_of(user)}}}/"

    async def push(self, users: Sequence[str], entry: HomeEntry) -> None:
        await self.fill(users, [entry], built=False)

    async def fill(self, users: Sequence[str], entries: Sequence[HomeEntry], built: bool) -> None:
        members = [_member(entry) for entry in entries] + [BUILT] * built
        if not members:
            return
        by_root: dict[str, list[str]] = {}
        for user in users:
            by_root.setdefault(self._root(user), []).append(_handle(user))
        words: list[Word] = [HOME_MAX, KEEP_S, len(members), *members]
        calls = (self._run(self._push, root, *words, *handles) for root, handles in by_root.items())
        await asyncio.gather(*calls)

    async def page(self, user: str, below: HomeEntry | None, limit: int) -> list[HomeEntry] | None:
        top = b"(" + (BUILT if below is None else _member(below))
        found = await self._run(self._page, self._root(user) + _handle(user), top, limit, KEEP_S)
        return None if found is None else [_entry(member) for member in found]

    async def drop(self, user: str, author: str) -> None:
        await self._run(self._drop, self._root(user) + _handle(user), author.encode())

    async def looked_at_s(self, users: Sequence[str]) -> list[float | None]:
        keys = [self._root(user) + _handle(user) for user in users]
        left_ms = await asyncio.gather(*(self._connection.run("PTTL", key) for key in keys))
        return [KEEP_S - int(ms) / 1000 if ms >= 0 else None for ms in left_ms]

    async def _run(self, script: str, key: str, *words: Word) -> list[bytes] | None:
        found: list[bytes] | None = await self._connection.run("EVAL", script, 1, key, *words)
        return found

    async def close(self) -> None:
        await self._connection.close()


def _handle(user: str) -> str:
    return blake2b(user.encode(), digest_size=16, person=b"home").hexdigest()


def _member(entry: HomeEntry) -> bytes:
    return bytes([len(entry.raw)]) + entry.raw + entry.author.encode()


def _entry(member: bytes) -> HomeEntry:
    end = 1 + member[0]
    return HomeEntry(member[1:end], member[end:].decode())
