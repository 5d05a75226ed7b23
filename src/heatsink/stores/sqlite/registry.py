"""The registry in SQLite (META, EPOCHS, pins and LOG), with one transaction per change.

`SqliteBus` carries heat reports between processes that share the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from functools import partial

import msgspec

from heatsink.errors import Deposed, NoRegistry, Outdated
from heatsink.heat.heat import Report
from heatsink.primitives.clock import Clock, witness_of
from heatsink.registry.closed_time import FAR_AHEAD_MS, StoreTime, check_append
from heatsink.registry.decisions import Decision, LogEntry, Meta, Reading, Reasons, Snapshot
from heatsink.registry.layouts import COLD, EpochMaker, Layout

from .engine import SqliteDatabase

encode = msgspec.msgpack.encode
_META = msgspec.msgpack.Decoder(Meta)
_ENTRY = msgspec.msgpack.Decoder(LogEntry)
_DECISION = msgspec.msgpack.Decoder(Decision)
_EPOCHS = msgspec.msgpack.Decoder(list[tuple[int, int]])
REPORTS_MAX = 1_000
_REPORT = msgspec.msgpack.Decoder(Report)


def read_layout(connection: sqlite3.Connection, key: str) -> Layout:
    found = connection.execute("SELECT epochs FROM epochs WHERE key = ?", (key,)).fetchone()
    return Layout.of(_EPOCHS.decode(found[0])) if found else COLD


def _read_meta(connection: sqlite3.Connection) -> Meta:
    found = connection.execute("SELECT meta FROM meta").fetchone()
    if found is None:
        raise NoRegistry
    return _META.decode(found[0])


def _write_meta(connection: sqlite3.Connection, meta: Meta) -> None:
    """Write META. Stored fields that this release does not know stay unchanged."""
    found = connection.execute("SELECT meta FROM meta").fetchone()
    kept = msgspec.msgpack.decode(found[0]) if found else {}
    whole = encode({**kept, **msgspec.structs.asdict(meta)})
    connection.execute("INSERT OR REPLACE INTO meta VALUES (1, ?)", (whole,))


class SqliteRegistry:
    def __init__(self, database: SqliteDatabase, clock: Clock) -> None:
        self._database = database
        self._time = StoreTime(clock, witness_of(clock))

    def _reading(self, meta: Meta) -> Reading:
        verdict = self._time.judge(meta.evidence)
        return Reading(meta, verdict.time_ms, verdict)

    async def found(self, meta: Meta) -> Reading:
        def create(connection: sqlite3.Connection) -> Meta:
            connection.execute("INSERT OR IGNORE INTO meta VALUES (1, ?)", (encode(meta),))
            return _read_meta(connection)

        return self._reading(await self._database.write(create))

    async def meta(self) -> Reading:
        self._database.check_file()
        return self._reading(self._database.read(_read_meta))

    async def advance(self, closed_ms: int) -> Reading:
        """Advance the closed time to `closed_ms`, unless it is already later. Returns META.

        The closed time never gets far ahead of the store's time. The time record is renewed if this
        is due and no other process has renewed it meanwhile.
        """
        known = self._database.read(_read_meta).evidence
        verdict = self._time.judge(known)
        allowed_ms = min(closed_ms, verdict.time_ms + FAR_AHEAD_MS)

        def raise_closed_time(connection: sqlite3.Connection) -> Meta:
            before = _read_meta(connection)
            meta = msgspec.structs.replace(before, closed_ms=max(before.closed_ms, allowed_ms))
            if verdict.testimony is not None and before.evidence == known:
                meta = msgspec.structs.replace(meta, evidence=verdict.testimony)
            if meta != before:
                _write_meta(connection, meta)
            return meta

        return self._reading(await self._database.write(raise_closed_time))

    async def append(self, entry: LogEntry, term: int | None) -> None:
        def commit(connection: sqlite3.Connection) -> None:
            meta = _read_meta(connection)
            changed = entry.bucket_decisions
            layouts = {d.key: read_layout(connection, d.key) for d in changed}
            check_append(entry, term, meta, layouts)
            _write_meta(connection, msgspec.structs.replace(meta, version=entry.version))
            connection.execute("INSERT INTO log VALUES (?, ?)", (entry.version, encode(entry)))
            for decision in changed:
                assert decision.value is not None
                layout = layouts[decision.key].then(entry.start_ms, decision.value)
                _write_layout(connection, layout, decision)
            for decision in entry.pin_decisions:
                _write_pin(connection, decision)

        await self._database.write(commit)

    async def log(self, after: int, upto: int) -> list[LogEntry]:
        def select(connection: sqlite3.Connection) -> list[LogEntry]:
            sql = "SELECT entry FROM log WHERE version > ? AND version <= ? ORDER BY version"
            return [_ENTRY.decode(entry) for (entry,) in connection.execute(sql, (after, upto))]

        return self._database.read(select)

    async def layout(self, key: str) -> Layout:
        return self._database.read(lambda connection: read_layout(connection, key))

    async def snapshot(self) -> Snapshot:
        return await self._database.read_in_a_thread(_read_snapshot)

    async def trim(self, below: int) -> None:
        await self._database.write(
            lambda connection: connection.execute("DELETE FROM log WHERE version < ?", (below,))
        )

    async def restore(self, meta: Meta, snapshot: Snapshot) -> None:
        await self._database.write(partial(replace_registry, meta, snapshot))

    async def layouts(self) -> AsyncIterator[tuple[str, Layout]]:
        for key, layout in (await self.snapshot()).layouts.items():
            yield key, layout

    async def lead(self, seen: Meta, leader: str, lease_ms: int) -> Meta:
        def take_over(connection: sqlite3.Connection) -> Meta:
            meta = _read_meta(connection)
            if (meta.term, meta.beat) != (seen.term, seen.beat):
                who = meta.leader or "a coordinator"
                raise Outdated(f"{who} renewed or took the lease meanwhile")
            meta = msgspec.structs.replace(
                meta, term=meta.term + 1, beat=0, leader=leader, lease_ms=lease_ms
            )
            _write_meta(connection, meta)
            return meta

        return await self._database.write(take_over)

    async def beat(self, term: int, servers: int, lease_ms: int) -> None:
        def raise_beat(connection: sqlite3.Connection) -> None:
            meta = _read_meta(connection)
            if meta.term != term:
                raise Deposed(
                    f"term {term} is over: {meta.leader or 'nobody'} leads term {meta.term}"
                )
            meta = msgspec.structs.replace(
                meta, beat=meta.beat + 1, servers=servers, lease_ms=lease_ms
            )
            _write_meta(connection, meta)

        await self._database.write(raise_beat)


def replace_registry(meta: Meta, snapshot: Snapshot, connection: sqlite3.Connection) -> None:
    for table in ("epochs", "pins", "log"):
        connection.execute(f"DELETE FROM {table}")
    _write_meta(connection, meta)
    for key, layout in snapshot.layouts.items():
        _write_layout(connection, layout, snapshot.reasons[key])
    for decision in snapshot.pins.values():
        _write_pin(connection, decision)


def _write_layout(connection: sqlite3.Connection, layout: Layout, decision: Decision) -> None:
    values = (decision.key, encode(layout.later), encode(decision))
    connection.execute("INSERT OR REPLACE INTO epochs VALUES (?, ?, ?)", values)


def _write_pin(connection: sqlite3.Connection, decision: Decision) -> None:
    if decision.value is None:
        connection.execute("DELETE FROM pins WHERE key = ?", (decision.key,))
    else:
        values = (decision.key, encode(decision))
        connection.execute("INSERT OR REPLACE INTO pins VALUES (?, ?)", values)


def _read_snapshot(connection: sqlite3.Connection) -> Snapshot:
    layouts: dict[str, Layout] = {}
    reasons: dict[str, bytes] = {}
    made = EpochMaker()
    for key, epochs, decision in connection.execute("SELECT key, epochs, decision FROM epochs"):
        layouts[key] = made.layout(_EPOCHS.decode(epochs))
        reasons[key] = decision
    pinned = connection.execute("SELECT key, decision FROM pins")
    pins = {key: _DECISION.decode(pin) for key, pin in pinned}
    version = _read_meta(connection).version
    return Snapshot(version, layouts, pins, Reasons(reasons, _DECISION.decode))


class SqliteBus:
    """Heat reports in a table of the file, until a coordinator takes them.

    The table keeps only the newest 1,000 reports.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def send(self, report: Report) -> None:
        def insert(connection: sqlite3.Connection) -> None:
            data = msgspec.msgpack.encode(report)
            connection.execute("INSERT INTO reports (report) VALUES (?)", (data,))
            newest = "SELECT max(id) FROM reports"
            connection.execute(f"DELETE FROM reports WHERE id <= ({newest}) - {REPORTS_MAX}")

        await self._database.write(insert)

    async def receive(self) -> list[Report]:
        if not self._database.read(_has_reports):
            return []
        return await self._database.write(_take_reports)


def _has_reports(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM reports LIMIT 1").fetchone() is not None


def _take_reports(connection: sqlite3.Connection) -> list[Report]:
    found = connection.execute("SELECT report FROM reports ORDER BY id").fetchall()
    connection.execute("DELETE FROM reports")
    return [report for (data,) in found if (report := _decode(data)) is not None]


def _decode(data: bytes) -> Report | None:
    """Decode a report. Returns None if it is malformed, since reports are not trusted."""
    try:
        return _REPORT.decode(data)
    except msgspec.MsgspecError:
        return None
