"""Messages of conversations: append, page, get."""

from __future__ import annotations

from typing import Any

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

STEP = 100
PAGE_BYTES = 4 * 1_024 * 1_024


async def append(call: Call[NoQuery, NewMessage]) -> Reply:
    log, message = call.service.hs.log, call.body
    id = to_id(log.scheme, message.id)
    receipt = await log.append(to_key(call.path["key"]), to_bytes(message.body), id=id)
    return Reply(Appended(str(receipt.id), receipt.time), 201 if receipt.is_new else 200)


async def page(call: Call[PageQuery, None]) -> Reply:
    """Up to `limit`, or as many as make a page of PAGE_BYTES: the cursor goes on from there."""
    log, query, key = call.service.hs.log, call.query, to_key(call.path["key"])
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
    return Reply(Messages(messages, cursor))


async def get(call: Call[NoQuery, None]) -> Reply:
    log, text = call.service.hs.log, call.path["id"]
    entry = await log.get(to_key(call.path["key"]), to_id(log.scheme, text))
    if entry is None:
        raise NotFound(f"there is no message {text[:40]!r} in this conversation")
    return Reply(_message(entry))


def _message(entry: Entry) -> Message:
    return Message(str(entry.id), entry.time, from_bytes(entry.body))
