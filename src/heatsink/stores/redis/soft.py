"""Soft decisions on a capped stream. Every reader has its own place in it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from heatsink.registry.decision import Decision
from heatsink.registry.soft import SoftDecision

from .connection import Connection
from .keys import Keys

DECISIONS_MAX = 10_000
READ_MAX = 1_000
_SOFT = msgspec.msgpack.Decoder(SoftDecision)


class RedisSoft:
    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._run = connection.run
        self._keys = keys
        self._last = b"0-0"

    async def publish(self, decisions: Sequence[Decision], term: int) -> None:
        for decision in decisions:
            body = msgspec.msgpack.encode(SoftDecision(term, decision))
            await self._run("XADD", self._keys.soft, "MAXLEN", "~", DECISIONS_MAX, "*", "d", body)

    async def read(self) -> list[SoftDecision]:
        await self._notice_a_wipe()
        read: list[SoftDecision] = []
        while found := await self._next():
            self._last = found[-1][0]
            read += [soft for _, fields in found if (soft := _decoded(fields)) is not None]
        return read

    async def _next(self) -> list[tuple[bytes, list[bytes]]]:
        start = b"(" + self._last
        found: list[tuple[bytes, list[bytes]]] = await self._run(
            "XRANGE", self._keys.soft, start, "+", "COUNT", READ_MAX
        )
        return found

    async def _notice_a_wipe(self) -> None:
        """After a wipe ids may start again below ours (the server's clock went back)."""
        newest = await self._run("XREVRANGE", self._keys.soft, "+", "-", "COUNT", 1)
        if not newest or _order(newest[0][0]) < _order(self._last):
            self._last = b"0-0"


def _order(id: bytes) -> tuple[int, int]:
    time_ms, _, sequence = id.partition(b"-")
    return int(time_ms), int(sequence)


def _decoded(fields: list[bytes]) -> SoftDecision | None:
    try:
        return _SOFT.decode(fields[1])
    except (msgspec.MsgspecError, IndexError):
        return None
