"""Who follows whom: two logs of events per pair, one for each side. The latest event holds.

The user's side decides. The n-th change of a pair has one row id, whoever makes it, so of several
who click at once one writes it and the others find it; its token makes what follows from it, the
author's side and the count, the same write however often it is repeated. Followers of an author
who gets famous arrive at a high rate: that side has ids of its time, and is spread when it is hot.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from random import Random

import msgspec

from heatsink.errors import Conflict, TokenExpired
from heatsink.primitives.ids import COUNTER_BITS, TAIL_BITS
from heatsink.primitives.subjects import Kind, Subject

from .store import Cache, Counts, PostLog

PAGE = 500
STRETCHES = 4
FRESH_S, STALE_S = 1.0, 5.0
_encode = msgspec.msgpack.Encoder().encode


class FollowEvent(msgspec.Struct, frozen=True, array_like=True):
    """The pair's change of this number, from 1 on. `token` is an id from when it was made."""

    name: str
    is_in: bool
    number: int = 0
    token: bytes = b""


_decode = msgspec.msgpack.Decoder(FollowEvent).decode


class Graph:
    def __init__(
        self,
        log: PostLog,
        counts: Counts,
        cache: Cache,
        mint: Callable[[], bytes],
        rng: Random,
    ) -> None:
        self._log = log
        self._counts = counts
        self._cache = cache
        self._scheme = log.scheme
        self._mint = mint
        self._rng = rng

    async def follow(self, user: str, author: str) -> bool:
        return await self._change(user, author, True)

    async def unfollow(self, user: str, author: str) -> bool:
        return await self._change(user, author, False)

    async def _change(self, user: str, author: str, follows: bool) -> bool:
        """Whether it changed anything. It may end anywhere: a push too many is filtered by the
        reader, one too few is lost, so the author hears of a follower before it holds and of a
        leaver after; what the last call left undone, the next one does."""
        last = await self._last(user, author)
        await self._count(author, last)
        if last.is_in == follows:
            await self._tell(user, author, last)
            return False
        mine = FollowEvent(author, follows, last.number + 1, self._token(user, last))
        if follows:
            await self._tell(user, author, mine)
        held = await self._claim(user, mine)
        if not follows:
            await self._tell(user, author, held)
        await self._count(author, held)
        return held == mine

    async def _last(self, user: str, author: str) -> FollowEvent:
        async for event in self._events(Subject(Kind.FOLLOWING, user)):
            if event.name == author:
                return event
        return FollowEvent(author, False)

    async def _claim(self, user: str, event: FollowEvent) -> FollowEvent:
        """The change of this number, as whoever came first made it."""
        key, id = (
            Subject(Kind.FOLLOWING, user),
            self._scheme.value(self._raw(event.number, user, event.name)),
        )
        try:
            await self._log.append(key, _encode(event), id=id)
        except Conflict:
            stored = await self._log.get(key, id)
            assert stored is not None  # events are never deleted
            return _decode(stored.body)
        finally:
            self._cache.forget(key)
        return event

    async def _tell(self, user: str, author: str, event: FollowEvent) -> None:
        if event.number:
            body = _encode(FollowEvent(user, event.is_in, event.number, event.token))
            await self._log.append(
                Subject(Kind.FOLLOWERS, author), body, id=self._scheme.value(event.token)
            )

    async def _count(self, author: str, event: FollowEvent) -> None:
        key = Subject(Kind.FOLLOWERS, author)
        if event.number:
            with suppress(TokenExpired):  # a day old
                token = self._scheme.value(event.token)
                await self._counts.add(key, 1 if event.is_in else -1, token=token)
            self._cache.forget(key)

    def _token(self, user: str, last: FollowEvent) -> bytes:
        """Above the last one's, whatever the clocks say: the author's side is ordered by it."""
        fresh = self._mint()
        if fresh > last.token:
            return fresh
        return self._raw(self._scheme.time_ms(last.token) + 1, user, last.name)

    def _raw(self, time_ms: int, user: str, author: str) -> bytes:
        digest = blake2b(f"{user}\0{author}".encode(), digest_size=16, person=b"pair").digest()
        number = int.from_bytes(digest, "big")
        counter, tail = number % (1 << COUNTER_BITS), (number >> 64) % (1 << TAIL_BITS)
        return self._scheme.from_parts(time_ms, counter, tail)

    async def following(self, user: str) -> frozenset[str]:
        key = Subject(Kind.FOLLOWING, user)
        found: frozenset[str] = await self._cache.get_own(
            key, lambda: self.load_following(user), fresh_for=FRESH_S, stale_for=STALE_S
        )
        return found

    async def load_following(self, user: str) -> frozenset[str]:
        """As the store has it now."""
        return frozenset([name async for name in self._current(Subject(Kind.FOLLOWING, user))])

    async def follower_count(self, author: str) -> int:
        key = Subject(Kind.FOLLOWERS, author)
        count: int = await self._cache.get_own(
            key, lambda: self._counts.value(key), fresh_for=FRESH_S, stale_for=STALE_S
        )
        return max(count, 0)

    def followers(self, author: str) -> AsyncIterator[str]:
        """Every one; who came and went, or clicked twice, may come twice."""
        return self._current(Subject(Kind.FOLLOWERS, author))

    async def some_followers(self, author: str, count: int) -> list[str]:
        """The newest, and as many from before each of some moments by chance."""
        key, each = Subject(Kind.FOLLOWERS, author), count // STRETCHES
        newest = await self._log.page(key, limit=each)
        pages = [newest]
        if newest.cursor:
            oldest = await self._log.page(key, limit=1, order="oldest")
            span_ms = [self._scheme.time_ms(page.entries[0].raw) for page in (oldest, newest)]
            for _ in range(STRETCHES - 1):
                at = datetime.fromtimestamp(self._rng.uniform(*span_ms) / 1000, UTC)
                pages.append(await self._log.page(key, limit=each, before=at))
        events = [_decode(entry.body) for page in pages for entry in page.entries]
        return sorted({event.name for event in events if event.is_in})

    async def _current(self, key: Subject) -> AsyncIterator[str]:
        """Newest first, so that only those who left need to be remembered."""
        gone: set[str] = set()
        async for event in self._events(key):
            if not event.is_in:
                gone.add(event.name)
            elif event.name not in gone:
                yield event.name

    async def _events(self, key: Subject) -> AsyncIterator[FollowEvent]:
        cursor = None
        while True:
            page = await self._log.page(key, limit=PAGE, cursor=cursor)
            for entry in page.entries:
                yield _decode(entry.body)
            cursor = page.cursor
            if cursor is None:
                return
