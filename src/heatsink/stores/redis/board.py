"""The fleet's heat as its leader shows it: one value, which ends when it is not shown again."""

from __future__ import annotations

import msgspec

from heatsink.detect.fleet import FleetHeat

from .connection import Connection
from .keys import Keys

_HEAT = msgspec.msgpack.Decoder(FleetHeat)


class RedisBoard:
    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._run = connection.run
        self._keys = keys

    async def show(self, heat: FleetHeat) -> None:
        body, lasts_ms = msgspec.msgpack.encode(heat), int(heat.lasts_s * 1000)
        await self._run("SET", self._keys.hottest, body, "PX", lasts_ms)

    async def look(self) -> FleetHeat | None:
        try:
            return _HEAT.decode(await self._run("GET", self._keys.hottest) or b"")
        except msgspec.MsgspecError:
            return None
