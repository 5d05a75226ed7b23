"""A SQLite file shared by the log, the counters and the registry."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from heatsink.errors import Closed, WrongIncarnation

from .engine import Operation, Result, RunBatch, Writer, open_file, unavailable

SCHEMA = files(__package__).joinpath("schema.sql").read_text()


class Database:
    """Writes go through the writer's thread, in batches. Reads run here and now.

    A read takes some tens of microseconds from the page cache, less than handing it to a thread
    and back would, and sees every commit that was acknowledged before.
    """

    def __init__(self, file: Path, run_batch: RunBatch) -> None:
        self._file = file
        self._inode: int | None = None
        self._writer = Writer(lambda: open_file(file, SCHEMA), run_batch, self.check_file)
        self._reader: sqlite3.Connection | None = None
        self._closed = False

    def check_file(self) -> None:
        """Somebody who puts another file in its place must not have writes go to the old one."""
        try:
            found = self._file.stat()
            inode, size = found.st_ino, found.st_size
        except OSError:
            inode, size = -1, -1
        if self._inode is None:
            self._inode = inode
        elif inode != self._inode:
            raise WrongIncarnation(f"{self._file} was replaced by another file: reconnect")
        elif not size:
            raise WrongIncarnation(f"{self._file} was emptied: restore a backup, and reconnect")

    def write(self, operation: Operation[Result]) -> asyncio.Future[Result]:
        """One transaction, or a part of one that several callers share."""
        return self._writer.submit(operation)

    def read(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        """One statement: several could see different moments."""
        if self._closed:
            raise Closed.meanwhile("the SQLite store")
        if self._reader is None:
            self._reader = open_file(self._file, SCHEMA)
        try:
            return operation(self._reader)
        except sqlite3.Error as error:
            self.check_file()
            raise unavailable(error) from error

    def read_at_once(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        """Several statements that see the same moment."""

        def inside(connection: sqlite3.Connection) -> Result:
            connection.execute("BEGIN")
            try:
                return operation(connection)
            finally:
                connection.execute("COMMIT")

        return self.read(inside)

    async def close(self) -> None:
        self._closed = True
        await self._writer.close()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
