"""Counters: add, read."""

from __future__ import annotations

from typing import Any

from heatsink.errors import InvalidId, InvalidSetting
from heatsink.ids import IdScheme
from heatsink.service.api.routes import Call, Reply
from heatsink.service.api.shapes import Add, Added, CounterValue, NoQuery
from heatsink.service.api.values import to_id, to_key


async def add(call: Call[NoQuery, Add]) -> Reply:
    hs, body, key = call.service.hs, call.body, to_key(call.path["key"])
    await hs.counters.add(key, body.amount, token=_token(hs.log.scheme, body.token))
    return Reply(Added(await hs.counters.value(key)) if body.value else Added())


def _token(scheme: IdScheme, text: str | None) -> Any:
    try:
        return to_id(scheme, text)
    except InvalidId as error:  # it is an id, by another name
        raise InvalidSetting(f"token{str(error).removeprefix('id')}") from None


async def value(call: Call[NoQuery, None]) -> Reply:
    return Reply(CounterValue(await call.service.hs.counters.value(to_key(call.path["key"]))))
