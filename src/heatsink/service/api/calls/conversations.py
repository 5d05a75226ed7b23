"""Messages of conversations: append, page, get."""

from __future__ import annotations

from heatsink.errors import NotFound
from heatsink.service.api.routes import Call, Reply
from heatsink.service.api.shapes import (
    Appended,
    Message,
    Messages,
    NewMessage,
    NoQuery,
    PageQuery,
)
from heatsink.service.api.values import from_bytes, to_bound, to_bytes, to_id, to_key
from heatsink.spread.pages import Entry


async def append(call: Call[NoQuery, NewMessage]) -> Reply:
    log, message = call.service.hs.log, call.body
    id = to_id(log.scheme, message.id)
    receipt = await log.append(to_key(call.path["key"]), to_bytes(message.body), id=id)
    return Reply(Appended(str(receipt.id), receipt.time), 201 if receipt.is_new else 200)


async def page(call: Call[PageQuery, None]) -> Reply:
    log, query = call.service.hs.log, call.query
    found = await log.page(
        to_key(call.path["key"]),
        limit=query.limit,
        cursor=query.cursor,
        order=query.order,
        after=to_bound(log.scheme, "after", query.after),
        before=to_bound(log.scheme, "before", query.before),
    )
    return Reply(Messages([_message(entry) for entry in found.entries], found.cursor))


async def get(call: Call[NoQuery, None]) -> Reply:
    log, text = call.service.hs.log, call.path["id"]
    entry = await log.get(to_key(call.path["key"]), to_id(log.scheme, text))
    if entry is None:
        raise NotFound(f"there is no message {text[:40]!r} in this conversation")
    return Reply(_message(entry))


def _message(entry: Entry) -> Message:
    return Message(str(entry.id), entry.time, from_bytes(entry.body))
