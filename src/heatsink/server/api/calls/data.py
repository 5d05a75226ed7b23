"""Handlers for data: messages of conversations, counters, timelines; and their values in JSON.

In JSON, ids are text, bodies are text or base64, and times are ISO 8601.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from heatsink.client.heatsink import Heatsink
from heatsink.errors import InvalidBody, InvalidId, InvalidSetting, NotFound
from heatsink.primitives.ids import IdScheme
from heatsink.primitives.keys import check_key
from heatsink.server.api.problems import Refusal
from heatsink.server.api.requests import (
    RETRY_HEADER,
    ApiCall,
    Reply,
    Service,
    retry_key_of,
)
from heatsink.server.api.shapes import (
    Add,
    Added,
    Appended,
    AuthorAnswer,
    AuthorLine,
    AuthorList,
    Base64,
    CounterValue,
    DeletedMessage,
    ErasedConversation,
    Follow,
    Followed,
    HomeAnswer,
    HomePost,
    HomeQuery,
    LimitQuery,
    Message,
    MessagePage,
    ModePin,
    NewMessage,
    NewPost,
    NoQuery,
    PageQuery,
    Posted,
    Strict,
)
from heatsink.spread.log import Entry
from heatsink.timelines.modes import AuthorMode
from heatsink.timelines.timelines import Post

STEP = 100
PAGE_BYTES = 4 * 1_024 * 1_024


def to_bytes(body: str | Base64) -> bytes:
    if isinstance(body, Base64):
        return body.base64
    try:
        return body.encode()
    except UnicodeEncodeError:
        raise InvalidBody("body has a lone surrogate, which is not text") from None


def from_bytes(body: bytes) -> str | Base64:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return Base64(body)


def to_id(scheme: IdScheme, text: str | None) -> Any:
    return None if text is None else scheme.from_text(text)


def to_bound(scheme: IdScheme, name: str, text: str | None) -> Any:
    """Parse a bound of a page: an id, or a time with a time zone."""
    if text is None:
        return None
    try:
        return scheme.value(scheme.raw(scheme.from_text(text)))
    except InvalidId:
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InvalidSetting(
            f"{name} must be an id or a time with a zone, like 2026-01-31T12:00:00Z", field=name
        )
    return time


def from_ms(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


async def append(call: ApiCall[NoQuery, NewMessage]) -> Reply:
    log, message, key = call.service.hs.log, call.body, check_key(call.path["key"])
    id, body, retry_key = to_id(log.scheme, message.id), to_bytes(message.body), retry_key_of(call)
    if retry_key is not None:
        if id is not None:
            both = f"{RETRY_HEADER} and id name the same message twice: send one of them"
            raise Refusal(400, both, RETRY_HEADER)
        id = await log.id_for(key, retry_key)
    receipt = await log.append(key, body, id=id, ttl=message.ttl)
    return Reply(Appended(str(receipt.id), receipt.time), 201 if receipt.is_new else 200)


async def delete(call: ApiCall[NoQuery, None]) -> Reply:
    log = call.service.hs.log
    id = to_id(log.scheme, call.path["id"])
    return Reply(DeletedMessage(await log.delete(check_key(call.path["key"]), id)))


async def erase(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(ErasedConversation(await call.service.hs.log.erase(check_key(call.path["key"]))))


async def page(call: ApiCall[PageQuery, None]) -> Reply:
    """Return a page of up to `limit` messages, or fewer if they exceed PAGE_BYTES.

    The cursor of the page continues after the last message.
    """
    log, query, key = call.service.hs.log, call.query, check_key(call.path["key"])
    bounds: dict[str, Any] = {
        "after": to_bound(log.scheme, "after", query.after),
        "before": to_bound(log.scheme, "before", query.before),
        "fresh_for": query.fresh_for or None,
    }
    messages: list[Message] = []
    cursor, size = query.cursor, 0
    while len(messages) < query.limit and size < PAGE_BYTES:
        step = min(query.limit - len(messages), STEP)
        found = await log.page(key, limit=step, cursor=cursor, order=query.order, **bounds)
        messages += map(_message, found.entries)
        size += sum(len(entry.body) for entry in found.entries)
        cursor = found.cursor
        if cursor is None:
            break
    return Reply(MessagePage(messages, cursor))


async def get(call: ApiCall[NoQuery, None]) -> Reply:
    log, text = call.service.hs.log, call.path["id"]
    entry = await log.get(check_key(call.path["key"]), to_id(log.scheme, text))
    if entry is None:
        raise NotFound(f"there is no message {text[:40]!r} in this conversation")
    return Reply(_message(entry))


def _message(entry: Entry) -> Message:
    return Message(str(entry.id), entry.time, from_bytes(entry.body))


async def add(call: ApiCall[NoQuery, Add]) -> Reply:
    hs, body, key = call.service.hs, call.body, check_key(call.path["key"])
    try:
        await hs.counters.add(key, body.amount, token=to_id(hs.log.scheme, body.token))
    except InvalidId as error:
        raise error.called("token") from None
    return Reply(Added(await hs.counters.value(key)) if body.value else Added())


async def value(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(CounterValue(await call.service.hs.counters.value(check_key(call.path["key"]))))


class FollowMany(Strict, frozen=True):
    """Each pair is a user and the author whom they follow."""

    pairs: Annotated[list[tuple[str, str]], Meta(min_length=1, max_length=1_000)]


class FollowedMany(msgspec.Struct, frozen=True):
    new: int


async def follow(call: ApiCall[NoQuery, Follow]) -> Reply:
    timelines, wish, user = call.service.hs.timelines, call.body, call.path["user"]
    change = timelines.follow if wish.follows else timelines.unfollow
    changed = await change(user, wish.author)
    status = 201 if changed and wish.follows else 200
    return Reply(Followed(wish.author, wish.follows, changed), status)


async def follow_many(call: ApiCall[NoQuery, FollowMany]) -> Reply:
    new = await call.service.hs.timelines.follow_many(call.body.pairs)
    return Reply(FollowedMany(new), 201 if new else 200)


async def post(call: ApiCall[NoQuery, NewPost]) -> Reply:
    hs, message = call.service.hs, call.body
    id = to_id(hs.log.scheme, message.id)
    made = await hs.timelines.post(call.path["user"], to_bytes(message.body), id=id)
    time = from_ms(_time_ms(call.service, made))
    return Reply(Posted(str(made.id), time, made.mode, made.batch), 201)


async def home(call: ApiCall[HomeQuery, None]) -> Reply:
    service, query = call.service, call.query
    timelines = service.hs.timelines
    page = await timelines.home(call.path["user"], limit=query.limit, cursor=query.cursor)
    posts = [
        HomePost(str(post.id), from_ms(_time_ms(service, post)), post.author, from_bytes(post.body))
        for post in page.posts
    ]
    return Reply(HomeAnswer(posts, page.cursor))


async def authors(call: ApiCall[LimitQuery, None]) -> Reply:
    decided = call.service.hs.timelines.authors()[: call.query.limit]
    return Reply(AuthorList([_author(one) for one in decided]))


async def author(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(await _explained(call.service.hs, call.path["user"]))


async def pin_mode(call: ApiCall[NoQuery, ModePin]) -> Reply:
    hs, user, wish = call.service.hs, call.path["user"], call.body
    await hs.timelines.pin(user, wish.mode, reason=wish.reason)
    return Reply(await _explained(hs, user))


async def unpin_mode(call: ApiCall[NoQuery, None]) -> Reply:
    hs, user = call.service.hs, call.path["user"]
    await hs.timelines.unpin(user)
    return Reply(await _explained(hs, user))


async def _explained(hs: Heatsink, user: str) -> AuthorAnswer:
    timelines = hs.timelines
    return AuthorAnswer(user, await timelines.followers(user), await timelines.explain(user))


def _author(one: AuthorMode) -> AuthorLine:
    since = from_ms(one.since_ms) if one.since_ms else None
    return AuthorLine(one.author, one.mode, since, one.reason)


def _time_ms(service: Service, post: Post) -> int:
    scheme = service.hs.log.scheme
    return scheme.time_ms(scheme.raw(post.id))
