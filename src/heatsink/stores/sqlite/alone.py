"""Exclusive access to a SQLite file, for repairs during which no other process may use it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import Clock
from heatsink.primitives.ids import IdScheme
from heatsink.registry.decisions import Meta, Snapshot

from . import stores_over
from .engine import (
    Operation,
    Result,
    RunBatch,
    SqliteDatabase,
    WriteJob,
    commit,
    open_alone,
    unavailable,
)
from .log import run_batch
from .registry import replace_registry

SEALED = "SELECT partition, max(sealed_ms, folded_ms) FROM shares"
LOWER = "UPDATE shares SET sealed_ms = min(sealed_ms, ?), folded_ms = min(folded_ms, ?)"


class SoleDatabase(SqliteDatabase):
    """A database whose only connection both reads and writes, without a writer thread.

    `write` commits before it returns.
    """

    def __init__(self, file: Path, connection: sqlite3.Connection, run_batch: RunBatch) -> None:
        super().__init__(file, run_batch)
        self._reader = connection
        self._run_batch = run_batch

    def write(self, operation: Operation[Result]) -> asyncio.Future[Result]:
        assert self._reader is not None
        job = WriteJob(operation, asyncio.get_running_loop().create_future())
        commit(self._reader, [job], self._run_batch)
        job.settle()
        return job.future

    async def read_in_a_thread(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run a long read in the caller's thread.

        `SqliteDatabase` uses another connection and another thread here. This database has only one
        connection, and no other work to delay.
        """
        return self.read_at_once(operation)


class SqliteAlone:
    """A SQLite file that, until `close`, only this process has open.

    `stores` are the usual stores of the file.
    """

    def __init__(self, file: Path, connection: sqlite3.Connection, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._connection = connection
        self._database = SoleDatabase(file, connection, run_batch)
        self.stores = stores_over(self._database, clock)

    @classmethod
    def open(cls, file: Path, clock: Clock) -> SqliteAlone:
        """Open the file. Raises `Unavailable` while another connection to the file is open."""
        return cls(file, open_alone(file), clock)

    def copy(self) -> Path:
        """Copy the database to a new file in the same folder. Returns the new file."""
        now = datetime.fromtimestamp(self._clock.now_s(), UTC)
        target = self._file.with_name(f"{self._file.name}.{now:%Y%m%dT%H%M%SZ}.copy")
        if target.exists():
            raise InvalidSetting(f"{target} already exists: move it away, or retry a second later")
        try:
            copy = sqlite3.connect(target)
            try:
                self._connection.backup(copy)
            finally:
                copy.close()
        except sqlite3.Error as error:
            raise unavailable(error) from error
        return target

    def traces(self, scheme: IdScheme) -> Iterator[tuple[str, int]]:
        """Yield (partition key, newest time) of all data that has a time.

        There is one pass each for rows, tokens and running totals. So the same key may come three
        times.
        """
        execute = self._connection.execute
        for partition, raw in execute("SELECT partition, max(raw) FROM rows GROUP BY partition"):
            yield partition, scheme.time_ms(raw)
        yield from execute("SELECT partition, max(time_ms) FROM tokens GROUP BY partition")
        yield from execute("SELECT partition, max(time_ms) FROM writers GROUP BY partition")

    def ends(self, from_ms: int, below_ms: int, scheme: IdScheme) -> tuple[int, int] | None:
        """Return the oldest and the newest time of all rows, tokens and running totals in a span.

        The span is [from_ms, below_ms). Returns None if the span contains nothing.
        """
        execute, first = self._connection.execute, scheme.first_raw
        sql = "SELECT min(raw), max(raw) FROM rows WHERE raw >= ? AND raw < ?"
        (raws,) = execute(sql, (first(from_ms), first(below_ms)))
        found = [scheme.time_ms(raw) for raw in raws if raw is not None]
        for table in ("tokens", "writers"):
            sql = (
                f"SELECT min(time_ms), max(time_ms) FROM {table} WHERE time_ms >= ? AND time_ms < ?"
            )
            (times,) = execute(sql, (from_ms, below_ms))
            found += [time_ms for time_ms in times if time_ms is not None]
        return (min(found), max(found)) if found else None

    def seals(self) -> dict[str, int]:
        """Return, by partition key, the time up to which a counter's share is sealed or folded."""
        return dict(self._connection.execute(SEALED))

    async def reset(self, meta: Meta, snapshot: Snapshot, opened: list[str]) -> None:
        """Replace the registry, and let the counter shares `opened` accept adds again.

        Both happen in one transaction. The shares accept adds from the new closed time on.
        """
        await self._database.write(partial(_reset, meta, snapshot, opened))

    async def close(self) -> None:
        await self._database.close()


def _reset(
    meta: Meta, snapshot: Snapshot, opened: list[str], connection: sqlite3.Connection
) -> None:
    replace_registry(meta, snapshot, connection)
    for partition in opened:
        values = (meta.closed_ms, meta.closed_ms, partition)
        connection.execute(f"{LOWER} WHERE partition = ?", values)
    connection.execute("DELETE FROM reports")  # reports of windows far in the future
