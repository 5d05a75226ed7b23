"""The relay of registry news: one value for the pair, one stream for the log.

The stream's ids are versions, so an entry can be there once only and never out of order; what a
slow, deposed leader says late is refused by Redis itself. The pair is one value: a reader can never
see a closed time with the version of another moment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from heatsink.registry.decision import LogEntry, Meta
from heatsink.registry.news import News

from .connection import Connection, Refused
from .keys import Keys

ENTRIES_MAX = 1_000
FORGET_S = 86_400
_PAIR = re.compile(rb"(\d{1,15})\|(\d{1,15})\|([0-9A-Za-z_-]{1,64})")
_ENTRY = msgspec.msgpack.Decoder(LogEntry)


class RedisNews:
    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._run = connection.run
        self._keys = keys

    async def publish(self, meta: Meta, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            await self._add(self._keys.log(meta.incarnation), entry)
        if entries:
            await self._run("EXPIRE", self._keys.log(meta.incarnation), FORGET_S)
        pair = f"{meta.closed_ms}|{meta.version}|{meta.incarnation}"
        await self._run("SET", self._keys.pair, pair)

    async def _add(self, log: str, entry: LogEntry) -> None:
        body = msgspec.msgpack.encode(entry)
        cap = ("MAXLEN", "~", ENTRIES_MAX)
        try:
            await self._run("XADD", log, *cap, f"{entry.version}-0", "e", body)
        except Refused as refused:
            if refused.code != "OLDER":
                raise

    async def read(self, after: int) -> News | None:
        pair = _PAIR.fullmatch(await self._run("GET", self._keys.pair) or b"")
        if pair is None:
            return None
        closed_ms, version, incarnation = int(pair[1]), int(pair[2]), pair[3].decode()
        entries = await self._entries(incarnation, after, version) if version > after else ()
        return News(closed_ms, version, incarnation, entries)

    async def _entries(self, incarnation: str, after: int, upto: int) -> tuple[LogEntry, ...]:
        span = (f"{after + 1}-0", f"{upto}-0")
        found = await self._run("XRANGE", self._keys.log(incarnation), *span, "COUNT", ENTRIES_MAX)
        entries = (_decoded(id, fields) for id, fields in found)
        return tuple(entry for entry in entries if entry is not None)


def _decoded(id: bytes, fields: list[bytes]) -> LogEntry | None:
    """None if it is not what it should be: then there is a gap, and the store fills gaps."""
    try:
        entry = _ENTRY.decode(fields[1])
    except (msgspec.MsgspecError, IndexError):
        return None
    return entry if id == b"%d-0" % entry.version else None
