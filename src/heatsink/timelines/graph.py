"""Who follows whom: each change is an event in two logs, the user's and the author's.

The latest event of a user and an author is in force, and the user's log is authoritative. The n-th
event of a user and an author always has the same row id. So if several processes write that event
at the same time, one process writes the row and the other processes find this row. The event holds
a token. The token identifies two more writes: the row in the author's log, and the add to the count
of followers. So both writes can be repeated safely. Rows in the author's log have ids with the
current time. So Heatsink can spread this log if an author gets many followers in a short time.
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
    """One follow or unfollow.

    In the user's log, `name` is the author. In the author's log, `name` is the user. `is_in` is
    True for a follow and False for an unfollow. `number` counts the events of this user and this
    author from 1. `token` is an id with the time of the event.
    """

    name: str
    is_in: bool
    number: int = 0
    token: bytes = b""


_decode = msgspec.msgpack.Decoder(FollowEvent).decode


class Graph:
    """Stores who follows whom: the authors that a user follows, and the followers of an author."""

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
        """Follow or unfollow. Returns whether this call made a change.

        Each change writes two events. One goes to the user's log, which is authoritative. The other
        goes to the author's log, which lists the homes that get a new post. The process may die
        between the two writes. If a user then gets a post without following its author, this is
        harmless: the post is filtered out when the home is read. If a follower does not get a post,
        the post is lost for this follower. So a follow writes to the author's log first, and an
        unfollow writes to it last. The next call for the same user and author completes the missing
        writes.
        """
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
        """Write the event to the user's log, and return the event that the log then holds.

        If another process wrote an event with the same number first, that event is returned.
        """
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
            with suppress(TokenExpired):  # the change is more than a day old
                token = self._scheme.value(event.token)
                await self._counts.add(key, 1 if event.is_in else -1, token=token)
            self._cache.forget(key)

    def _token(self, user: str, last: FollowEvent) -> bytes:
        """A token above the token of the last event, even if a clock is wrong.

        The rows of the author's log are in the order of their tokens, so a newer event must have a
        higher token.
        """
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
        """Return the authors that a user follows, read from the store."""
        return frozenset([name async for name in self._current(Subject(Kind.FOLLOWING, user))])

    async def follower_count(self, author: str) -> int:
        """Return the number of followers, from a cache. The number may be some seconds old."""
        count: int = await self._cache.get_own(
            Subject(Kind.FOLLOWERS, author),
            lambda: self.load_follower_count(author),
            fresh_for=FRESH_S,
            stale_for=STALE_S,
        )
        return count

    async def load_follower_count(self, author: str) -> int:
        """Return the number of followers, read from the store."""
        return max(await self._counts.value(Subject(Kind.FOLLOWERS, author)), 0)

    def followers(self, author: str) -> AsyncIterator[str]:
        """Iterate over all followers. A user who followed several times may come more than once."""
        return self._current(Subject(Kind.FOLLOWERS, author))

    async def some_followers(self, author: str, count: int) -> list[str]:
        """Return a sample of at most `count` followers, from a few stretches of the author's log.

        One stretch holds the newest followers. The other stretches begin at random times.
        """
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
        """The names whose newest event in the log is a follow.

        Events are read from the newest to the oldest. So only names with an unfollow must be
        remembered.
        """
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
