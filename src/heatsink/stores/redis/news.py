"""The relay of registry news: one value for the pair, one stream for the log.

The stream's ids are versions, so an entry can be there once only and never out of order; what a
slow, deposed leader says late is refused by Redis itself. The pair is one value: a reader can never
see a closed time with the version of another moment. Whoever else can write here is found out by
whoever reads: both are signed (`registry.news`).
"""

from __future__ import annotations

from collections.abc import Mapping

from .connection import Connection, Refused
from .keys import Keys

ENTRIES_MAX = 1_000
FORGET_S = 86_400


class RedisNews:
    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._run = connection.run
        self._keys = keys

    async def publish(self, log: str, entries: Mapping[int, bytes], pair: bytes) -> None:
        for version, entry in entries.items():
            await self._add(self._keys.log(log), version, entry)
        if entries:
            await self._run("EXPIRE", self._keys.log(log), FORGET_S)
        await self._run("SET", self._keys.pair, pair)

    async def _add(self, log: str, version: int, entry: bytes) -> None:
        cap = ("MAXLEN", "~", ENTRIES_MAX)
        try:
            await self._run("XADD", log, *cap, f"{version}-0", "e", entry)
        except Refused as refused:
            if refused.code != "OLDER":
                raise

    async def pair(self) -> bytes | None:
        found: bytes | None = await self._run("GET", self._keys.pair)
        return found

    async def entries(self, log: str, after: int, upto: int) -> list[bytes]:
        span = (f"{after + 1}-0", f"{upto}-0")
        found = await self._run("XRANGE", self._keys.log(log), *span, "COUNT", ENTRIES_MAX)
        return [fields[1] for _, fields in found]
