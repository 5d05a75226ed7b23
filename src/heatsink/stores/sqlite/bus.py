"""Heat reports between processes that share a file."""

from __future__ import annotations

import sqlite3

import msgspec

from heatsink.detect.heat import Report

from .database import Database

REPORTS_MAX = 1_000
_REPORT = msgspec.msgpack.Decoder(Report)


class SqliteBus:
    """Reports wait in a table until a coordinator takes them; with none about, old ones go."""

    def __init__(self, database: Database) -> None:
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
    """Reports are input, not truth: one that is not as it should be is left out."""
    try:
        return _REPORT.decode(data)
    except msgspec.MsgspecError:
        return None
