"""Counters in SQLite. The table `shares` has one row per counter share."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence

from heatsink.errors import TokenExpired
from heatsink.spread.store import Running, Total, check_running, check_share

from .engine import SqliteDatabase


class SqliteCounters:
    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def add(self, partition: str, token: bytes, time_ms: int, amount: int) -> int | None:
        def add_once(connection: sqlite3.Connection) -> int | None:
            before = _token(connection, partition, token)
            if before is not None:
                return before
            share = _read_share(connection, partition)
            _check_open(share, time_ms)
            check_share(share.value, amount)
            _write_value(connection, partition, share.value + amount)
            values = (partition, token, time_ms, amount)
            connection.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", values)
            return None

        return await self._database.write(add_once)

    async def raise_to(
        self, partition: str, writer: bytes, time_ms: int, to: Running
    ) -> Running | None:
        check_running(to)

        def raise_totals(connection: sqlite3.Connection) -> Running | None:
            known = _writer(connection, partition, writer)
            if known is None:
                _check_open(_read_share(connection, partition), time_ms)
                known = (0, 0, False)
            raised, lowered, folded = known
            if folded:
                return Running(raised, lowered)
            raised, lowered = max(raised, to.raised), max(lowered, to.lowered)
            values = (partition, writer, time_ms, raised, lowered)
            connection.execute("INSERT OR REPLACE INTO writers VALUES (?, ?, ?, ?, ?, 0)", values)
            return None

        return await self._database.write(raise_totals)

    async def totals(self, partitions: Sequence[str]) -> list[Total]:
        return self._database.read_at_once(
            lambda connection: [_read_share(connection, partition) for partition in partitions]
        )

    async def shares(self) -> AsyncIterator[str]:
        sql = "SELECT partition FROM shares WHERE value != '0' UNION SELECT partition FROM writers"
        for (partition,) in self._database.read(lambda c: c.execute(sql).fetchall()):
            yield partition

    async def fold(self, sources: Sequence[str], target: str, before_ms: int) -> None:
        def move(connection: sqlite3.Connection) -> None:
            moved = 0
            for source in sources:
                _seal(connection, source, before_ms)
                if source != target:
                    moved += _read_share(connection, source).value
                    _write_value(connection, source, 0)
            _write_value(connection, target, _read_share(connection, target).value + moved)
            mark = "UPDATE shares SET folded_ms = max(folded_ms, ?) WHERE partition = ?"
            connection.execute(mark, (before_ms, target))

        await self._database.write(move)


def _token(connection: sqlite3.Connection, partition: str, token: bytes) -> int | None:
    sql = "SELECT amount FROM tokens WHERE partition = ? AND token = ?"
    found = connection.execute(sql, (partition, token)).fetchone()
    return found[0] if found else None


def _writer(
    connection: sqlite3.Connection, partition: str, writer: bytes
) -> tuple[int, int, bool] | None:
    sql = "SELECT raised, lowered, folded FROM writers WHERE partition = ? AND writer = ?"
    found: tuple[int, int, bool] | None = connection.execute(sql, (partition, writer)).fetchone()
    return found


def _read_share(connection: sqlite3.Connection, partition: str) -> Total:
    sql = "SELECT value, sealed_ms, folded_ms FROM shares WHERE partition = ?"
    value, sealed_ms, folded_ms = connection.execute(sql, (partition,)).fetchone() or ("0", 0, 0)
    sql = "SELECT raised - lowered FROM writers WHERE partition = ? AND NOT folded"
    writers = _sum(connection.execute(sql, (partition,)))
    return Total(int(value), writers, sealed_ms, folded_ms)


def _sum(numbers: sqlite3.Cursor) -> int:
    """Return the sum of 64-bit numbers. SQLite's own sum() fails if the result overflows."""
    return sum(number for (number,) in numbers)


def _check_open(share: Total, time_ms: int) -> None:
    if time_ms < share.sealed_ms:
        raise TokenExpired.by("tokens are remembered")


def _write_value(connection: sqlite3.Connection, partition: str, value: int) -> None:
    sql = "INSERT INTO shares (partition, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = ?"
    connection.execute(sql, (partition, str(value), str(value)))


def _seal(connection: sqlite3.Connection, partition: str, before_ms: int) -> None:
    """Make a share refuse tokens and writers from before `before_ms`: see `CounterStore.fold`.

    Adds the running totals of such writers to the share's value.
    """
    sealed_ms = max(_read_share(connection, partition).sealed_ms, before_ms)
    past = (partition, sealed_ms)
    connection.execute("DELETE FROM tokens WHERE partition = ? AND time_ms < ?", past)
    connection.execute("DELETE FROM writers WHERE partition = ? AND folded", (partition,))
    sql = "SELECT raised - lowered FROM writers WHERE partition = ? AND time_ms < ?"
    ended = _sum(connection.execute(sql, past))
    connection.execute("UPDATE writers SET folded = 1 WHERE partition = ? AND time_ms < ?", past)
    _write_value(connection, partition, _read_share(connection, partition).value + ended)
    sql = "UPDATE shares SET sealed_ms = ? WHERE partition = ?"
    connection.execute(sql, (sealed_ms, partition))
