"""Who follows whom: two logs of events per pair, one for each side.

Followers of an author who gets famous arrive at a high rate: a log is spread when it is hot.
The latest event of a pair holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from .store import Cache, Counts, PostLog

FOLLOWERS, FOLLOWING = "~followers/", "~following/"
PAGE = 500
FRESH_S, STALE_S = 1.0, 5.0
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, bool]).decode


class Graph:
    def __init__(self, log: PostLog, counts: Counts, cache: Cache) -> None:
        self._log = log
        self._counts = counts
        self._cache = cache

    async def follow(self, user: str, author: str) -> bool:
        return await self._change(user, author, True)

    async def unfollow(self, user: str, author: str) -> bool:
        return await self._change(user, author, False)

    async def _change(self, user: str, author: str, follows: bool) -> bool:
        """Whether it changed anything. The author's side first: a push that misses it is repaired
        by the back-fill, which comes after."""
        if (author in await self._load_following(user)) == follows:
            return False
        await self._log.append(FOLLOWERS + author, _encode((user, follows)))
        await self._log.append(FOLLOWING + user, _encode((author, follows)))
        await self._counts.add(FOLLOWERS + author, 1 if follows else -1)
        self._cache.forget(FOLLOWING + user)
        self._cache.forget(FOLLOWERS + author)
        return True

    async def following(self, user: str) -> frozenset[str]:
        key = FOLLOWING + user
        found: frozenset[str] = await self._cache.get(
            key, lambda: self._load_following(user), fresh_for=FRESH_S, stale_for=STALE_S
        )
        return found

    async def _load_following(self, user: str) -> frozenset[str]:
        return frozenset([name async for name in self._current(FOLLOWING + user)])

    async def follower_count(self, author: str) -> int:
        key = FOLLOWERS + author
        count: int = await self._cache.get(
            key, lambda: self._counts.value(key), fresh_for=FRESH_S, stale_for=STALE_S
        )
        return count

    def followers(self, author: str) -> AsyncIterator[str]:
        """Every one; somebody who came and went may come twice."""
        return self._current(FOLLOWERS + author)

    async def _current(self, key: str) -> AsyncIterator[str]:
        """Newest first, so that only those who left need to be remembered."""
        gone: set[str] = set()
        cursor = None
        while True:
            page = await self._log.page(key, limit=PAGE, cursor=cursor)
            for entry in page.entries:
                name, is_in = _decode(entry.body)
                if not is_in:
                    gone.add(name)
                elif name not in gone:
                    yield name
            cursor = page.cursor
            if cursor is None:
                return
