"""Rows of logs in SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from heatsink.primitives.clock import Clock, now_ms
from heatsink.spread.store import Answer, Ask, Row

from .engine import SqliteDatabase, WriteJob
from .registry import read_layout

COLUMNS = "raw, body, epoch_ms, buckets, expires_ms, deleted"
VALUES = "(?, ?, ?, ?, ?, ?, ?)"
CHUNKS = (256, 64, 16, 4, 1)  # few sizes, so that their statements stay prepared
SCAN_ROWS = 1_000
SWEEP_EVERY = 500


class Put:
    """A put as a record and not as a function, so that one SQL statement can insert many rows."""

    __slots__ = ("partition", "row")
    is_prompt = True  # the writer ends a put that waits for too long

    def __init__(self, partition: str, row: Row) -> None:
        self.partition = partition
        self.row = row

    def values(self) -> tuple[Any, ...]:
        row = self.row
        return (
            self.partition,
            row.raw,
            row.body,
            row.epoch_ms,
            row.buckets,
            row.expires_ms,
            row.deleted,
        )

    def __call__(self, connection: sqlite3.Connection) -> Row | None:
        insert = f"INSERT OR IGNORE INTO rows VALUES {VALUES}"
        if connection.execute(insert, self.values()).rowcount:
            return None
        return read_row(connection, self.partition, self.row.raw)


def run_batch(connection: sqlite3.Connection, batch: list[WriteJob[Any]]) -> None:
    """Run the jobs of a batch. All puts together take a few SQL statements.

    If one of the rows exists, each put runs by itself. Each statement releases the GIL and waits to
    get it back, so fewer statements take less time.
    """
    puts = [job for job in batch if isinstance(job.operation, Put)]
    rest = [job for job in batch if not isinstance(job.operation, Put)]
    if not _insert_all(connection, [job.operation for job in puts]):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
        rest = batch
    for job in rest:
        job.run(connection)


def _insert_all(connection: sqlite3.Connection, puts: list[Any]) -> bool:
    """Insert all rows. If a row exists or cannot be written, return False.

    The caller must then roll back.
    """
    start = 0
    while start < len(puts):
        size = next(chunk for chunk in CHUNKS if chunk <= len(puts) - start)
        try:
            inserted = _insert(connection, puts[start : start + size])
        except Exception:  # running them one by one will show which put fails
            return False
        if inserted != size:
            return False
        start += size
    return True


def _insert(connection: sqlite3.Connection, puts: list[Any]) -> int:
    values = [value for put in puts for value in put.values()]
    places = ", ".join([VALUES] * len(puts))
    return connection.execute(f"INSERT OR IGNORE INTO rows VALUES {places}", values).rowcount


def _row(values: tuple[Any, ...]) -> Row:
    raw, body, epoch_ms, buckets, expires_ms, deleted = values
    return Row(raw, body, epoch_ms, buckets, expires_ms, bool(deleted))


def read_row(connection: sqlite3.Connection, partition: str, raw: bytes) -> Row | None:
    found = connection.execute(
        f"SELECT {COLUMNS} FROM rows WHERE partition = ? AND raw = ?", (partition, raw)
    ).fetchone()
    return _row(found) if found else None


class SqliteLog:
    def __init__(self, database: SqliteDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._expiring = 0

    def put(self, partition: str, row: Row) -> asyncio.Future[Row | None]:
        if row.expires_ms is not None:
            self._let_expired_go()
        return self._database.write(Put(partition, row))

    def _let_expired_go(self) -> None:
        """Count a put of a row that expires. Delete expired rows at every 500th such put.

        A sweep deletes up to 1,000 rows, so it keeps up with the puts.
        """
        self._expiring += 1
        if self._expiring % SWEEP_EVERY == 0:
            sweep = self._database.write(partial(_sweep, now_ms(self._clock)))
            sweep.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def get(self, partition: str, raw: bytes) -> Row | None:
        row = self._database.read(lambda connection: read_row(connection, partition, raw))
        return row if row and not row.deleted and not self._has_expired(row) else None

    def _has_expired(self, row: Row) -> bool:
        return row.expires_ms is not None and row.expires_ms <= now_ms(self._clock)

    async def query(self, partition: str, ask: Ask) -> Answer:
        return self._database.read(lambda connection: self._query(connection, partition, ask))

    def _query(self, connection: sqlite3.Connection, partition: str, ask: Ask) -> Answer:
        conditions = ["partition = ?", "NOT deleted", "(expires_ms IS NULL OR expires_ms > ?)"]
        values: list[Any] = [partition, now_ms(self._clock)]
        if ask.above is not None:
            conditions.append("raw > ?")
            values.append(ask.above)
        if ask.below is not None:
            conditions.append("raw < ?")
            values.append(ask.below)
        order = "DESC" if ask.newest_first else "ASC"
        where = " AND ".join(conditions)
        sql = f"SELECT {COLUMNS} FROM rows WHERE {where} ORDER BY raw {order} LIMIT ?"
        rows = [_row(found) for found in connection.execute(sql, (*values, ask.limit)).fetchall()]
        layout = None if ask.layout_of is None else read_layout(connection, ask.layout_of)
        return Answer(rows, layout)

    async def delete(self, partition: str, tombstone: Row) -> bool:
        def replace(connection: sqlite3.Connection) -> bool:
            before = read_row(connection, partition, tombstone.raw)
            values = Put(partition, tombstone).values()
            connection.execute(f"INSERT OR REPLACE INTO rows VALUES {VALUES}", values)
            return before is not None and not before.deleted and not self._has_expired(before)

        return await self._database.write(replace)

    async def erase(self, partition: str) -> int:
        def remove(connection: sqlite3.Connection) -> int:
            for table in ("shares", "tokens", "writers"):
                connection.execute(f"DELETE FROM {table} WHERE partition = ?", (partition,))
            return connection.execute("DELETE FROM rows WHERE partition = ?", (partition,)).rowcount

        return await self._database.write(remove)

    async def scan(self) -> AsyncIterator[tuple[str, Row]]:
        place: tuple[str, bytes] = ("", b"")
        while True:
            found = self._database.read(partial(_next_rows, place))
            for partition, *values in found:
                yield partition, _row(tuple(values))
            if len(found) < SCAN_ROWS:
                return
            place = (found[-1][0], found[-1][1])


def _sweep(time_ms: int, connection: sqlite3.Connection) -> None:
    expired = "SELECT partition, raw FROM rows WHERE expires_ms <= ? LIMIT ?"
    sql = f"DELETE FROM rows WHERE (partition, raw) IN ({expired})"
    connection.execute(sql, (time_ms, 2 * SWEEP_EVERY))


def _next_rows(after: tuple[str, bytes], connection: sqlite3.Connection) -> list[Any]:
    sql = f"SELECT partition, {COLUMNS} FROM rows WHERE (partition, raw) > (?, ?)"
    return connection.execute(f"{sql} ORDER BY partition, raw LIMIT {SCAN_ROWS}", after).fetchall()
