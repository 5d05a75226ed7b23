"""The interfaces that timelines need: logs, counters, homes, a queue, a cache."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Any, Literal, Protocol

import msgspec

from heatsink.primitives.ids import IdScheme
from heatsink.primitives.subjects import Kind, Subject

HOME_MAX = 800
HOME_SLOTS = 64


class HomeEntry(msgspec.Struct, frozen=True, order=True):
    """A post in a home timeline.

    Entries are ordered by id, then by author, since several authors may use the same id. `raw`
    sorts like the ids. Names of authors sort in the same order as text and as UTF-8 bytes.
    """

    raw: bytes
    author: str


class HomeStore(Protocol):
    """Home timelines: caches of pushed posts. If a home is lost, the next read rebuilds it."""

    async def push(self, users: Sequence[str], entry: HomeEntry) -> None:
        """Add an entry to the homes of users whose homes are in one slot.

        Repeating a push is safe.
        """

    async def page(self, user: str, below: HomeEntry | None, limit: int) -> list[HomeEntry] | None:
        """Return at most `limit` entries that are older than `below`, newest first.

        Returns None if the home was never built, or was lost.
        """

    async def fill(self, users: Sequence[str], entries: Sequence[HomeEntry], built: bool) -> None:
        """Add entries to the home of each user. With `built`, the homes then count as complete."""

    async def drop(self, user: str, author: str) -> None:
        """Remove an author's entries from a home. The next read rebuilds the home."""

    async def looked_at_s(self, users: Sequence[str]) -> list[float | None]:
        """Return the seconds since each home was last read or created; None for a missing home."""


class Stored(Protocol):
    """A row of a log."""

    @property
    def raw(self) -> bytes: ...

    @property
    def id(self) -> Any: ...


class StoredEntry(Stored, Protocol):
    @property
    def body(self) -> bytes: ...


class StoredPage(Protocol):
    @property
    def entries(self) -> Sequence[StoredEntry]: ...

    @property
    def cursor(self) -> str | None: ...


def posts_of(author: str) -> Subject:
    return Subject(Kind.POSTS, author)


class PostLog(Protocol):
    """Logs by key: the part of `heatsink.spread.log.Log` that timelines use."""

    @property
    def scheme(self) -> IdScheme: ...

    async def append(self, key: Subject, body: bytes, *, id: Any = None) -> Stored: ...

    async def page(
        self,
        key: Subject,
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Literal["newest", "oldest"] = "newest",
        before: Any = None,
    ) -> StoredPage: ...

    async def get(self, key: Subject, id: Any) -> StoredEntry | None: ...

    async def delete(self, key: Subject, id: Any) -> Any: ...


class Counts(Protocol):
    async def add(self, key: Subject, amount: int, *, token: Any) -> Any: ...

    async def value(self, key: Subject) -> int: ...


class Cache(Protocol):
    async def get_own(
        self,
        key: Subject,
        load: Callable[[], Awaitable[Any]],
        *,
        fresh_for: float,
        stale_for: float,
    ) -> Any: ...

    def forget(self, key: Subject) -> Any: ...


class FanOut(Protocol):
    """Submits the push of one post to the queue. Returns the id of the batch.

    Repeating the call is safe.
    """

    async def __call__(self, author: str, post: str, items: AsyncIterable[Any]) -> str: ...


def slot_of(user: str) -> int:
    """Return the slot of a user's home. One call can push a post to many users of the same slot."""
    digest = blake2b(user.encode(), digest_size=4, person=b"home").digest()
    return int.from_bytes(digest, "big") % HOME_SLOTS
