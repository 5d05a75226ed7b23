"""Timelines: post, follow, and read a home timeline.

Posts of authors with many followers are pulled: a home reads them from the author's log. Posts of
all other authors are pushed into the homes of their followers, by a batch on the queue. Each item
of the batch is a post and a group of followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from heatsink.errors import InvalidCursor, InvalidId, InvalidSetting
from heatsink.primitives.checks import check_text, check_whole, each, shown
from heatsink.primitives.keys import escape
from heatsink.primitives.subjects import Kind, Subject

from .graph import Graph
from .modes import PINNED, AuthorMode, Choice, Modes
from .policy import FOLLOWERS_MAX, PULLED, PUSHED, TimelineSettings
from .store import (
    HOME_MAX,
    HOME_SLOTS,
    Cache,
    FanOut,
    HomeEntry,
    HomeStore,
    PostLog,
    posts_of,
    slot_of,
)

NAME_MAX = 256
NAME_BYTES_MAX = 900  # a key may have 1,024, and timelines put a prefix before the name
LIMIT_MAX = 200
PUSH_TOGETHER = 500
BACK_FILL = 100
FOLLOW_TOGETHER = 500
Result = TypeVar("Result")
SCAN_PAGES = 4  # pages to read of a pulled author's log, which may have pushed posts in between
FAN_OUT = "heatsink.fanout"
PRIORITY = -10  # an author is a tenant of the queue: pushes come after their other batches


@dataclass(frozen=True)
class Post:
    """A post. `batch` is the id of the batch that pushes it; empty if the post is pulled."""

    id: Any
    author: str
    body: bytes
    mode: str
    batch: str = ""


@dataclass(frozen=True)
class HomePage:
    """Posts, newest first. Pass `cursor` to get the next page; it is None on the last page."""

    posts: list[Post]
    cursor: str | None


class Timelines:
    """`hs.timelines`: follows, posts and home timelines.

    Users and authors are text of up to 256 characters. Every call raises `InvalidInput` for a bad
    argument, and `Overloaded` if all retries fail until the deadline::

        await hs.timelines.follow("alice", "bob")
        post = await hs.timelines.post("bob", b"hello")
    """

    def __init__(
        self,
        log: PostLog,
        graph: Graph,
        homes: HomeStore,
        modes: Modes,
        choice: Choice,
        cache: Cache,
        fan_out: FanOut,
        settings: TimelineSettings,
    ) -> None:
        self._log = log
        self._graph = graph
        self._homes = homes
        self._modes = modes
        self._choice = choice
        self._cache = cache
        self._fan_out = fan_out
        self._scheme = log.scheme
        self._settings = settings

    def adopt(self, settings: TimelineSettings) -> None:
        """Use these settings from now on."""
        self._settings = settings
        self._choice.adopt(settings)

    # -- following -------------------------------------------------------------------------

    async def follow(self, user: str, author: str) -> bool:
        """Let a user follow an author. Returns False if the user already follows the author.

        After the call, the author's last 100 pushed posts are in the user's home. After an error,
        repeat the call or call `unfollow`. Either call completes the unfinished change::

            is_new = await hs.timelines.follow("alice", "bob")
        """
        _check_pair(user, author)
        return bool(await self._follow_together([(user, author)]))

    async def follow_many(
        self, pairs: Iterable[tuple[str, str]] | AsyncIterable[tuple[str, str]]
    ) -> int:
        """Import many follows. Returns how many of them are new.

        `pairs` is any (async) iterable of (user, author). After an error, some pairs are stored. It
        is safe to repeat the call with all pairs::

            new = await hs.timelines.follow_many([("alice", "bob"), ("carol", "bob")])
        """
        new, number, some = 0, 0, []
        async for pair in each("pairs", pairs):
            some.append(_pair(pair, number))
            number += 1
            if len(some) == FOLLOW_TOGETHER:
                new += await self._follow_together(some)
                some = []
        return new + await self._follow_together(some)

    async def _follow_together(self, pairs: list[tuple[str, str]]) -> int:
        """Follow, then fill the users' homes with the authors' recent posts.

        Returns how many follows are new. The posts are read only after all follows are stored, so
        that no post is missed.
        """
        are_new = await _all(self._graph.follow(*pair) for pair in pairs)
        authors = sorted({author for _, author in pairs})
        recent = await _all(self._recent_pushed(author, BACK_FILL) for author in authors)
        for author, entries in zip(authors, recent, strict=True):
            users = [user for user, followed in pairs if followed == author]
            await self._homes.fill(users, entries, False)
        return sum(are_new)

    async def unfollow(self, user: str, author: str) -> bool:
        """End a follow. Returns whether the user followed the author before.

        The author's posts leave the user's home. Older posts of other authors take their places::

            was_following = await hs.timelines.unfollow("alice", "bob")
        """
        _check_pair(user, author)
        is_new = await self._graph.unfollow(user, author)
        await self._homes.drop(user, author)
        return is_new

    async def followers(self, author: str) -> int:
        """Return the number of followers of an author: `await hs.timelines.followers("bob")`"""
        return await self._graph.follower_count(_check_name("author", author))

    async def following(self, user: str) -> list[str]:
        """Return a user's authors, sorted: `await hs.timelines.following("alice")`"""
        return sorted(await self._graph.following(_check_name("user", user)))

    def authors(self) -> list[AuthorMode]:
        """Return the authors for whom a mode was ever decided, the latest change first.

        All other authors are pushed. Example::

            pulled = [each.author for each in hs.timelines.authors() if each.mode == "pull"]
        """
        return self._modes.decided()

    # -- posting ---------------------------------------------------------------------------

    async def post(self, author: str, body: bytes, *, id: Any = None) -> Post:
        """Store a post. If the author is pushed, also queue the push to all followers.

        A call with an `id` may be repeated: all such calls store one post. In the result, `batch`
        is the id of the batch that pushes the post. Raises `Conflict` if the id was used with
        another body, and `Deleted` if the post with this id was deleted::

            post = await hs.timelines.post("bob", b"hello")
            await hs.bulk.wait(post.batch)  # only to see it arrive
        """
        _check_name("author", author)
        await self._choice.renew(author)
        stored = await self._log.append(posts_of(author), body, id=id)
        self._cache.forget(posts_of(author))
        mode = self._modes.at(author, self._scheme.time_ms(stored.raw))
        batch = ""
        if mode == PUSHED:
            items = self._push_items(author, stored.raw)
            batch = await self._fan_out(author, stored.raw.hex(), items)
        return Post(stored.id, author, body, mode, batch)

    async def delete(self, author: str, id: Any) -> bool:
        """Delete a post from every home. Returns whether the post existed.

        Homes hold only references to posts, so no home is rewritten. Other processes may show the
        post until their cached copy expires. Raises `InvalidId` for a malformed id::

            await hs.timelines.delete("bob", post.id)
        """
        found = await self._log.delete(posts_of(_check_name("author", author)), id)
        self._cache.forget(posts_of(author))
        self._cache.forget(_post_key(author, self._scheme.raw(id)))
        return bool(found)

    async def pin(self, author: str, mode: str, *, reason: str) -> None:
        """Fix an author's mode, "push" or "pull", from now on until `unpin`.

        Raises `InvalidSetting` for another mode::

            await hs.timelines.pin("bob", "pull", reason="on television tonight")
        """
        _check_name("author", author)
        if mode not in (PUSHED, PULLED):
            raise InvalidSetting(
                f"mode must be {PUSHED!r} or {PULLED!r}, not {mode!r}", field="mode"
            )
        await self._modes.change(author, mode, f"{PINNED}{check_text('reason', reason, 400)}")

    async def set_threshold(self, followers: int, *, reason: str) -> None:
        """Set, for all processes, the number of followers from which authors are pulled.

        Example::

            await hs.timelines.set_threshold(50_000, reason="larger homes")
        """
        check_whole("followers", followers, 1, FOLLOWERS_MAX)
        await self._modes.set_threshold(followers, check_text("reason", reason, 400))

    async def unpin(self, author: str) -> None:
        """Let Heatsink choose an author's mode again: `await hs.timelines.unpin("bob")`"""
        mode = self._modes.now(_check_name("author", author))
        await self._modes.change(author, mode, "unpinned: followers and cost decide")

    async def explain(self, author: str) -> str:
        """Say in words why an author is pushed or pulled, and what pushing would cost now.

        Example::

            print(await hs.timelines.explain("bob"))
        """
        return await self._choice.explain(_check_name("author", author))

    async def _push_items(self, author: str, raw: bytes) -> AsyncIterator[Any]:
        """The items of the batch that pushes a post.

        Each item holds the author, the post's id and a group of followers. One call to
        `HomeStore.push` serves one item.
        """
        groups: dict[int, list[str]] = {slot: [] for slot in range(HOME_SLOTS)}
        async for follower in self._graph.followers(author):
            group = groups[slot_of(follower)]
            group.append(follower)
            if len(group) == PUSH_TOGETHER:
                yield [author, raw, group.copy()]
                group.clear()
        for group in groups.values():
            if group:
                yield [author, raw, group]

    # -- reading ---------------------------------------------------------------------------

    async def home(self, user: str, *, limit: int = 50, cursor: str | None = None) -> HomePage:
        """Return the newest posts of all authors that `user` follows, in the order of their ids.

        Posts with the same id are ordered by author. Raises `InvalidCursor` if `cursor` is not from
        an earlier page::

            page = await hs.timelines.home("alice", limit=20)
            older = await hs.timelines.home("alice", limit=20, cursor=page.cursor)
        """
        _check_name("user", user)
        check_whole("limit", limit, 1, LIMIT_MAX)
        below = self._read_cursor(cursor)
        following = await self._graph.following(user)
        posts: list[Post] = []
        while len(posts) < limit:
            wanted = limit - len(posts)
            entries = await self._newest(user, following, below, wanted)
            if not entries:
                return HomePage(posts, None)
            below = entries[-1]
            posts += [post for post in await self._posts(entries) if post is not None]
            if len(entries) < wanted:
                return HomePage(posts, None)
        return HomePage(posts, _cursor(below) if below else None)

    def _read_cursor(self, cursor: str | None) -> HomeEntry | None:
        if cursor is None:
            return None
        with suppress(ValueError, TypeError, InvalidSetting, InvalidId):
            data, length = bytes.fromhex(cursor), len(self._scheme.first_raw(0))
            entry = HomeEntry(data[:length], _check_name("author", data[length:].decode()))
            is_an_id = self._scheme.raw(self._scheme.value(entry.raw)) == entry.raw
            if is_an_id and _cursor(entry) == cursor:
                return entry
        raise InvalidCursor("cursor was not made by home(): pass the cursor of the last page")

    async def _newest(
        self, user: str, following: Iterable[str], below: HomeEntry | None, limit: int
    ) -> list[HomeEntry]:
        """The newest posts for a user, pushed and pulled ones merged. No post occurs twice."""
        followed = frozenset(following)
        pulled = sorted(author for author in followed if self._modes.was_ever_pulled(author))
        pushed, *celebrities = await asyncio.gather(
            self._pushed(user, followed, below, limit),
            *(self._pulled(author, below, limit) for author in pulled),
        )
        found = {*pushed, *(entry for entries in celebrities for entry in entries)}
        return sorted(found, reverse=True)[:limit]

    async def _pushed(
        self, user: str, followed: frozenset[str], below: HomeEntry | None, limit: int
    ) -> list[HomeEntry]:
        """The pushed posts in the user's home, by authors that the user follows now.

        A home may get posts of an author even after an unfollow: these posts are left out.
        """
        found: list[HomeEntry] = []
        while len(found) < limit:
            page = await self._homes.page(user, below, limit)
            if page is None:
                await self._rebuild(user)
                page = await self._homes.page(user, below, limit) or []
            found += [entry for entry in page if entry.author in followed]
            if len(page) < limit:
                break
            below = page[-1]
        return found[:limit]

    async def _rebuild(self, user: str) -> None:
        """Rebuild a home from the authors' logs, which hold all posts.

        The list of authors is read from the store, not from the cache. The home counts as complete
        afterwards. So it must include an author whom the user followed a moment ago in another
        process.
        """
        followed = await self._graph.load_following(user)
        each = max(BACK_FILL, HOME_MAX // max(len(followed), 1))
        recent = await asyncio.gather(*(self._recent_pushed(a, each) for a in sorted(followed)))
        entries = sorted((e for some in recent for e in some), reverse=True)[:HOME_MAX]
        await self._homes.fill([user], entries, True)

    async def _recent_pushed(self, author: str, limit: int) -> list[HomeEntry]:
        return await self._in_mode(PUSHED, await self._load_posts(author, None, limit))

    async def _pulled(self, author: str, below: HomeEntry | None, limit: int) -> list[HomeEntry]:
        found: list[HomeEntry] = []
        for _ in range(SCAN_PAGES):
            entries = await self._author_page(author, below, limit)
            found += await self._in_mode(PULLED, entries)
            if len(found) >= limit or len(entries) < limit:
                break
            below = entries[-1]
        return found[:limit]

    async def _author_page(
        self, author: str, below: HomeEntry | None, limit: int
    ) -> list[HomeEntry]:
        """A page of an author's log.

        The newest posts, which most readers want, come from the cache.
        """
        settings = self._settings
        newest: list[HomeEntry] = await self._cache.get_own(
            posts_of(author),
            lambda: self._load_posts(author, None, LIMIT_MAX),
            fresh_for=settings.fresh_for,
            stale_for=settings.stale_for,
        )
        found = [entry for entry in newest if below is None or entry < below][:limit]
        if len(found) == limit or len(newest) < LIMIT_MAX:
            return found
        return await self._load_posts(author, below, limit)

    async def _load_posts(
        self, author: str, below: HomeEntry | None, limit: int
    ) -> list[HomeEntry]:
        key, before = posts_of(author), None if below is None else self._scheme.value(below.raw)
        load = self._log.page(key, limit=limit, before=before)
        if below is None or author >= below.author:
            return [HomeEntry(entry.raw, author) for entry in (await load).entries]
        # A post with the same id as `below` comes after it, but `before` excludes that id.
        same, page = await asyncio.gather(self._log.get(key, before), load)
        entries = [*([same] if same else []), *page.entries]
        return [HomeEntry(entry.raw, author) for entry in entries[:limit]]

    async def _in_mode(self, mode: str, newest_first: list[HomeEntry]) -> list[HomeEntry]:
        """The entries whose author was in this mode at the time of the post.

        If the view does not cover these times, it is renewed first.
        """
        time_ms = self._scheme.time_ms
        await self._modes.know((entry.author, time_ms(entry.raw)) for entry in newest_first)
        return [entry for entry in newest_first if self._mode_of(entry) == mode]

    def _mode_of(self, entry: HomeEntry) -> str:
        return self._modes.at(entry.author, self._scheme.time_ms(entry.raw))

    async def _posts(self, entries: list[HomeEntry]) -> list[Post | None]:
        return list(await asyncio.gather(*map(self._post, entries)))

    async def _post(self, entry: HomeEntry) -> Post | None:
        """The post of an entry; None if the post was deleted.

        The body of a post never changes. But another process may delete the post, so a cached post
        expires.
        """
        id = self._scheme.value(entry.raw)

        async def load() -> bytes | None:
            stored = await self._log.get(posts_of(entry.author), id)
            return stored.body if stored else None

        settings = self._settings
        body: bytes | None = await self._cache.get_own(
            _post_key(entry.author, entry.raw),
            load,
            fresh_for=settings.fresh_for,
            stale_for=settings.stale_for,
        )
        if body is None:
            return None
        return Post(id, entry.author, body, self._mode_of(entry))


async def _all(calls: Iterable[Awaitable[Result]]) -> list[Result]:
    """Run calls concurrently and wait for all, even if one fails. Raises the first error."""
    done = await asyncio.gather(*calls, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return cast("list[Result]", done)


def _cursor(entry: HomeEntry) -> str:
    return (entry.raw + entry.author.encode()).hex()


def _post_key(author: str, raw: bytes) -> Subject:
    return Subject(Kind.CACHED, f"post/{raw.hex()}/{author}")


def _check_name(field: str, value: object) -> str:
    name = check_text(field, value, NAME_MAX)
    if "\0" in name:
        raise InvalidSetting(f"{field} must not contain NUL (\\0)", field=field)
    if (size := len(escape(name).encode())) > NAME_BYTES_MAX:
        raise InvalidSetting(
            f"{field} takes {size:,} bytes: use at most {NAME_BYTES_MAX}", field=field
        )
    return name


def _check_pair(user: str, author: str) -> None:
    _check_name("user", user)
    if _check_name("author", author) == user:
        raise InvalidSetting(
            "author must not be the user: nobody follows themselves", field="author"
        )


def _pair(pair: object, number: int) -> tuple[str, str]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidSetting(
            f"pairs[{number}] must be a tuple (user, author), not {shown(pair)}", field="pairs"
        )
    user, author = pair
    try:
        _check_pair(user, author)
    except InvalidSetting as error:
        raise InvalidSetting(f"pairs[{number}]: {error}", field="pairs") from None
    return user, author


def push_handler(homes: HomeStore) -> Callable[[Any, Any], Awaitable[None]]:
    async def push(item: Any, _: Any) -> None:
        author, raw, users = item
        await homes.push(users, HomeEntry(raw, author))

    return push
