"""Timelines: follow, post, read home."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from heatsink.isolate.modes import AuthorMode
from heatsink.isolate.timelines import Post
from heatsink.service.api.routes import Call, Reply
from heatsink.service.api.service import Service
from heatsink.service.api.shapes import (
    AuthorLine,
    Authors,
    Follow,
    Followed,
    Home,
    HomePost,
    HomeQuery,
    LimitQuery,
    NewMessage,
    NoQuery,
    Posted,
    Strict,
)
from heatsink.service.api.values import from_bytes, from_ms, to_bytes, to_id


class FollowMany(Strict, frozen=True):
    """Each pair is a user and the author whom they follow."""

    pairs: Annotated[list[tuple[str, str]], Meta(min_length=1, max_length=1_000)]


class FollowedMany(msgspec.Struct, frozen=True):
    new: int


async def follow(call: Call[NoQuery, Follow]) -> Reply:
    timelines, wish, user = call.service.hs.timelines, call.body, call.path["user"]
    change = timelines.follow if wish.follows else timelines.unfollow
    changed = await change(user, wish.author)
    status = 201 if changed and wish.follows else 200
    return Reply(Followed(wish.author, wish.follows, changed), status)


async def follow_many(call: Call[NoQuery, FollowMany]) -> Reply:
    new = await call.service.hs.timelines.follow_many(call.body.pairs)
    return Reply(FollowedMany(new), 201 if new else 200)


async def post(call: Call[NoQuery, NewMessage]) -> Reply:
    hs, message = call.service.hs, call.body
    id = to_id(hs.log.scheme, message.id)
    made = await hs.timelines.post(call.path["user"], to_bytes(message.body), id=id)
    time = from_ms(_time_ms(call.service, made))
    return Reply(Posted(str(made.id), time, made.mode, made.batch), 201)


async def home(call: Call[HomeQuery, None]) -> Reply:
    service, query = call.service, call.query
    timelines = service.hs.timelines
    page = await timelines.home(call.path["user"], limit=query.limit, cursor=query.cursor)
    posts = [
        HomePost(str(post.id), from_ms(_time_ms(service, post)), post.author, from_bytes(post.body))
        for post in page.posts
    ]
    return Reply(Home(posts, page.cursor))


async def authors(call: Call[LimitQuery, None]) -> Reply:
    decided = call.service.hs.timelines.authors()[: call.query.limit]
    return Reply(Authors([_author(one) for one in decided]))


def _author(one: AuthorMode) -> AuthorLine:
    since = from_ms(one.since_ms) if one.since_ms else None
    return AuthorLine(one.author, one.mode, since, one.reason)


def _time_ms(service: Service, post: Post) -> int:
    scheme = service.hs.log.scheme
    return scheme.time_ms(scheme.raw(post.id))
