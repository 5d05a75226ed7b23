"""Counters: add, read."""

from __future__ import annotations

from heatsink.errors import InvalidId, InvalidSetting
from heatsink.service.api.routes import Call, Reply
from heatsink.service.api.shapes import Add, Added, CounterValue, NoQuery
from heatsink.service.api.values import to_id, to_key


async def add(call: Call[NoQuery, Add]) -> Reply:
    hs, body, key = call.service.hs, call.body, to_key(call.path["key"])
    try:
        await hs.counters.add(key, body.amount, token=to_id(hs.log.scheme, body.token))
    except InvalidId as error:  # which would blame a field `id`
        raise InvalidSetting(str(error.called("token"))) from None
    return Reply(Added(await hs.counters.value(key)) if body.value else Added())


async def value(call: Call[NoQuery, None]) -> Reply:
    return Reply(CounterValue(await call.service.hs.counters.value(to_key(call.path["key"]))))
