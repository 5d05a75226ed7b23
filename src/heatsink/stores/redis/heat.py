"""Heat in Redis: the reports of all servers, and the fleet's heat that the leader publishes."""

from __future__ import annotations

from typing import Any

import msgspec

from heatsink.errors import InvalidInput
from heatsink.heat.fleet import FleetHeat
from heatsink.heat.heat import Report
from heatsink.heat.plain import read_fields
from heatsink.primitives.clock import Clock

from .address import GROUP, RedisKeys
from .connection import Connection, Refused

REPORTS_MAX = 20_000
TAKE_MAX = 5_000
BODY_BYTES_MAX = 256 * 1024
POISON_MAX = 1_000
POISON_BYTES_MAX = 4_096
DELIVERIES_MAX = 3
RECLAIM_S = 5.0
IDLE_CONSUMER_MS = 3_600_000
_REPORT = msgspec.msgpack.Decoder(Report)
Entry = tuple[bytes, list[bytes] | None]
_HEAT = msgspec.msgpack.Decoder(FleetHeat)


class RedisBus:
    """Heat reports on a stream of limited length, which the leader reads in a consumer group.

    The leader acknowledges the reports of one read at its next read. If the leader dies before
    that, the next leader gets these reports again. Reports are not trusted. An entry moves to the
    poison stream if it cannot be decoded, or if it was delivered three times and never
    acknowledged. It is then never delivered again.
    """

    def __init__(
        self,
        connection: Connection,
        keys: RedisKeys,
        consumer: str,
        clock: Clock,
        reports_max: int = REPORTS_MAX,
    ) -> None:
        self._run = connection.run
        self._keys = keys
        self._consumer = consumer
        self._clock = clock
        self._reports_max = reports_max
        self._taken: list[bytes] = []
        self._reclaim_s = float("-inf")

    async def send(self, report: Report) -> None:
        body = msgspec.msgpack.encode(report)
        await self._run("XADD", self._keys.heat, "MAXLEN", "~", self._reports_max, "*", "r", body)

    async def receive(self) -> list[Report]:
        try:
            return await self._receive()
        except Refused as refused:
            if refused.code != "NOGROUP":
                raise
        self._taken.clear()
        await self._make_group()
        return await self._receive()

    async def _make_group(self) -> None:
        """Create the consumer group, so that it reads the stream from the beginning.

        A new or wiped Redis has no such group.
        """
        try:
            await self._run("XGROUP", "CREATE", self._keys.heat, GROUP, "0", "MKSTREAM")
        except Refused as refused:
            if refused.code != "BUSYGROUP":
                raise

    async def _receive(self) -> list[Report]:
        await self._acknowledge(self._taken)
        self._taken = []
        entries = [*await self._left_behind(), *await self._new()]
        reports = []
        for id, fields in entries:
            try:
                report = _decoded(fields)
            except InvalidInput as error:
                await self._set_aside(id, fields, str(error))
            else:
                self._taken.append(id)
                reports.append(report)
        return reports

    async def _new(self) -> list[Entry]:
        count = min(TAKE_MAX, self._reports_max)
        answer = await self._run(
            *("XREADGROUP", "GROUP", GROUP, self._consumer, "COUNT", count),
            *("STREAMS", self._keys.heat, ">"),
        )
        return _entries_of(answer)

    async def _acknowledge(self, ids: list[bytes]) -> None:
        for start in range(0, len(ids), 1_000):
            await self._run("XACK", self._keys.heat, GROUP, *ids[start : start + 1_000])

    async def _left_behind(self) -> list[Entry]:
        """Every 5 s, take over the entries that other consumers read and never acknowledged.

        Returns no entries in between.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._reclaim_s:
            return []
        self._reclaim_s = now_s + RECLAIM_S
        await self._set_aside_repeaters()
        await self._dismiss_idle_consumers()
        answer = await self._run(
            *("XAUTOCLAIM", self._keys.heat, GROUP, self._consumer),
            *(int(RECLAIM_S * 1000), "0", "COUNT", 1_000),
        )
        return [(entry[0], entry[1]) for entry in answer[1] if entry and entry[0]]

    async def _set_aside_repeaters(self) -> None:
        idle_ms = int(RECLAIM_S * 1000)
        pending = await self._run(
            "XPENDING", self._keys.heat, GROUP, "IDLE", idle_ms, "-", "+", 100
        )
        for id, _consumer, _idle_ms, deliveries in pending:
            if deliveries >= DELIVERIES_MAX:
                found = await self._run("XRANGE", self._keys.heat, id, id)
                fields = found[0][1] if found else None
                await self._set_aside(id, fields, f"delivered {deliveries} times")

    async def _set_aside(self, id: bytes, fields: list[bytes] | None, reason: str) -> None:
        body = b" ".join(fields or [])[:POISON_BYTES_MAX]
        poison = ("id", id, "reason", reason, "fields", body)
        await self._run("XADD", self._keys.poison, "MAXLEN", "~", POISON_MAX, "*", *poison)
        await self._acknowledge([id])

    async def _dismiss_idle_consumers(self) -> None:
        for consumer in await self._run("XINFO", "CONSUMERS", self._keys.heat, GROUP):
            about = _pairs(consumer)
            name, idle_ms = about[b"name"], about[b"idle"]
            if about[b"pending"] == 0 and idle_ms > IDLE_CONSUMER_MS and name != self._name:
                await self._run("XGROUP", "DELCONSUMER", self._keys.heat, GROUP, name)

    @property
    def _name(self) -> bytes:
        return self._consumer.encode()


def _decoded(fields: list[bytes] | None) -> Report:
    """Decode the report in an entry. Raises `InvalidInput` if the entry is malformed.

    This library puts a report into the field `r`. Other programs use one field per value.
    """
    if fields is None or len(fields) % 2 or sum(map(len, fields)) > BODY_BYTES_MAX:
        raise InvalidInput("the entry has no fields, or more than 256 KB")
    try:
        if len(fields) == 2 and fields[0] == b"r":
            return _REPORT.decode(fields[1])
        names, values = fields[::2], fields[1::2]
        return read_fields({n.decode(): v.decode() for n, v in zip(names, values, strict=True)})
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidInput("the entry cannot be decoded") from None


def _entries_of(answer: Any) -> list[Entry]:
    """Return the entries in a reply to XREADGROUP for one stream."""
    return [(id, fields) for id, fields in answer[0][1]] if answer else []


def _pairs(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


class RedisBoard:
    """The fleet's heat, which the leader publishes as one value.

    The value expires unless the leader renews it.
    """

    def __init__(self, connection: Connection, keys: RedisKeys) -> None:
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
