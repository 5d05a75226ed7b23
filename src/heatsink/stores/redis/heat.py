"""Heat in Redis: the reports of all servers, and the fleet's heat that the leader publishes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from heatsink.errors import InvalidInput, Unavailable
from heatsink.heat.fleet import FleetHeat
from heatsink.heat.heat import Report
from heatsink.heat.plain import read_fields
from heatsink.primitives.clock import breathe

from .address import RedisKeys
from .connection import Connection

REPORTS_MAX = 20_000  # or the reports of `START_S`, if a larger fleet sends more
TAKE_MAX = 2_000  # entries in one reply, so that decoding them takes milliseconds
TAKES_MAX = 10  # replies in one call: a leader that is far behind reads the rest in its next turn
START_S = 3.0  # of reports that a new leader reads, one a second from each server
BODY_BYTES_MAX = 256 * 1024
POISON_MAX = 1_000
POISON_BYTES_MAX = 4_096
_REPORT = msgspec.msgpack.Decoder(Report)
Entry = tuple[bytes, list[bytes] | None]
_HEAT = msgspec.msgpack.Decoder(FleetHeat)


class RedisBus:
    """Heat reports on a stream of limited length. A leader remembers how far it has read.

    A new leader starts with the reports of the last seconds. The leader does not depend on these
    reports, since the next ones come within a second. So there is no consumer group, which would
    double the cost of a report. Reports are not trusted. An entry that cannot be decoded is copied
    to the poison stream and skipped.
    """

    def __init__(
        self,
        connection: Connection,
        keys: RedisKeys,
        reports_max: int = REPORTS_MAX,
        leading: Connection | None = None,
        servers: Callable[[], int] = lambda: 1,
    ) -> None:
        """`leading` is the connection of a leader, which has more time: see `with_redis`.

        `servers` returns the size of the fleet.
        """
        self._servers = servers
        self._send = connection.run
        self._run = (leading or connection).run
        self._keys = keys
        self._reports_max = reports_max
        self._last = b""

    async def send(self, report: Report) -> None:
        body = msgspec.msgpack.encode(report)
        kept = max(self._reports_max, int(START_S * self._servers()))
        await self._send("XADD", self._keys.heat, "MAXLEN", "~", kept, "*", "r", body)

    async def receive(self) -> list[Report]:
        reports: list[Report] = []
        if not self._last:
            await self._start()
        for _ in range(TAKES_MAX):
            try:
                entries = await self._new()
            except Unavailable:
                if not reports:
                    raise
                break  # what was read counts, since it will not be read again
            reports += await self._decoded(entries)
            if len(entries) < TAKE_MAX:
                break
            await breathe()
        if not reports:
            await self._notice_a_wipe()
        return reports

    async def _new(self) -> list[Entry]:
        start = b"(" + self._last
        entries: list[Entry] = await self._run(
            "XRANGE", self._keys.heat, start, "+", "COUNT", TAKE_MAX
        )
        if entries:
            self._last = entries[-1][0]
        return entries

    async def _decoded(self, entries: list[Entry]) -> list[Report]:
        reports = []
        for id, fields in entries:
            try:
                reports.append(decoded(fields))
            except InvalidInput as error:
                await self._set_aside(id, fields, str(error))
        return reports

    async def _start(self) -> None:
        """Set the position to some seconds before the newest entry."""
        newest = await self._newest()
        self._last = b"%d-0" % max(newest[0] - int(1000 * START_S), 0)

    async def _notice_a_wipe(self) -> None:
        """After a wipe of Redis with its clock set back, new ids are below the last id read."""
        if (0, 0) < await self._newest() < order_of(self._last):
            await self._start()

    async def _newest(self) -> tuple[int, int]:
        newest = await self._run("XREVRANGE", self._keys.heat, "+", "-", "COUNT", 1)
        return order_of(newest[0][0]) if newest else (0, 0)

    async def _set_aside(self, id: bytes, fields: list[bytes] | None, reason: str) -> None:
        body = b" ".join(fields or [])[:POISON_BYTES_MAX]
        poison = ("id", id, "reason", reason, "fields", body)
        await self._run("XADD", self._keys.poison, "MAXLEN", "~", POISON_MAX, "*", *poison)


def decoded(fields: list[bytes] | None) -> Report:
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


def order_of(id: bytes) -> tuple[int, int]:
    """Return the id of a stream's entry as two numbers. Such pairs sort in the stream's order."""
    time_ms, _, sequence = id.partition(b"-")
    return int(time_ms), int(sequence)


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
