"""`--data FILE`: the emulator's tables in a file, which survives restarts and `kill -9`.

The file is a journal. A request that changes a table itself (CreateTable, UpdateTable, tags, …) is
appended as it came. A write is appended as the row that it leaves, and a transaction as one record
of all its rows, with its client request token. The emulator appends before it answers, so every
change that a client has seen is in the file. The emulator does not fsync: the file survives a crash
of the process, but may lose changes if the machine crashes.

At the start, the emulator plays the journal back without any limits. If less than half of the
journal is still needed, the emulator then writes a new journal. Each record has its length and a
checksum. If a crash has cut a record off, the journal ends before this record. If whole records
follow a record that cannot be read, the file is damaged, and the emulator refuses it unchanged.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from heatsink.errors import Misconfigured
from heatsink.stores.dynamodb.wire.errors import EngineError
from heatsink.stores.dynamodb.wire.keys import Key
from heatsink.stores.dynamodb.wire.values import Item, admit_item

from .database import Database
from .rows import StoredItem
from .table import EngineTable

MAGIC = b"heatsink dynamo 1\n"
HEAD_BYTES = 8
KEPT_SHARE = 0.5
RECORDS_MIN = 1_000
TURNS_MAX = 100_000
RECORD_BYTES_MAX = 16 * 1_024 * 1_024
SEARCHED_BYTES = RECORD_BYTES_MAX  # behind a damaged record, for one that is whole
DEFINING = frozenset(
    (
        *("CreateTable", "DeleteTable", "UpdateTable", "UpdateTimeToLive"),
        *("TagResource", "UntagResource"),
    )
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Definition(NamedTuple):
    """A request that changed a table: its operation and its body."""

    operation: str
    body: bytes


class Transaction(NamedTuple):
    """A transaction as one record of the journal: its rows, and its client request token.

    `at_s` is the wall time of the token's use, and `fingerprint` is that of its request.
    """

    rows: list[tuple[Any, ...]]
    token: str | None
    fingerprint: bytes
    at_s: float


class Journal:
    """The journal of one emulator. Only one process may have it open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()
        self._definitions: dict[str, list[Definition]] = {}
        self._records = 0
        self._end = 0
        self._transaction: list[tuple[Any, ...]] | None = None

    def _open(self) -> int:
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Misconfigured(
                f"cannot open {self._path} ({error.strerror}): choose another --data", field="data"
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise Misconfigured(
                f"another emulator uses {self._path}: stop it, or choose another --data",
                field="data",
            ) from None
        return file

    def close(self) -> None:
        os.close(self._file)

    def restore(self, database: Database, define: Callable[[str, bytes], Any]) -> None:
        """Play the journal back into an empty database.

        `define` carries out a request that changes a table.
        """
        content = self._path.read_bytes()
        if content and not content.startswith(MAGIC):
            raise Misconfigured(
                f"{self._path} is no data of the emulator: name another file with --data",
                field="data",
            )
        end = len(MAGIC)
        for after, record in _records(content):
            end = after
            self._records += 1
            if len(record) == len(Definition._fields):
                definition = Definition(*record)
                self._play(definition, database, define)
                self._keep(definition)
            elif len(record) == len(Transaction._fields):
                _replay(database, Transaction(*record))
            else:
                _put(database, *record)
        self._check_rest(content, end)
        os.ftruncate(self._file, end if content else 0)
        if not content:
            self._begin()
        self._end = os.lseek(self._file, 0, os.SEEK_END)
        self._compact(database)
        self.follow(database)

    def _begin(self) -> None:
        try:
            os.write(self._file, MAGIC)
        except OSError as error:
            raise Misconfigured(
                f"cannot write to {self._path} ({error.strerror}): free space on its disk, or "
                "choose another --data",
                field="data",
            ) from None

    def _check_rest(self, content: bytes, end: int) -> None:
        """Raise if records follow the one that cannot be read, which begins at `end`.

        A crash leaves nothing behind the record that it cut off, so the file is damaged then.
        """
        if _has_record(content, end + 1):
            raise Misconfigured(
                f"{self._path} is damaged at byte {end}, and further changes follow. Restore a "
                f"copy of the file, or lose the rest: `truncate --size={end} {self._path}`",
                field="data",
            )

    def _play(
        self, definition: Definition, database: Database, define: Callable[[str, bytes], Any]
    ) -> None:
        """Repeat a request that changed a table, and finish what it starts.

        For example, it may fill a new index.
        """
        try:
            define(*definition)
        except EngineError as error:
            raise Misconfigured(
                f"{self._path} has a request that this version refuses ({error.message}): choose "
                "another --data",
                field="data",
            ) from None
        for _ in range(TURNS_MAX):
            if all(table.status == "ACTIVE" for table in database.tables.values()):
                return
            database.tend()

    def follow(self, database: Database) -> None:
        """Append all future writes to the tables of the database."""
        for table in database.tables.values():
            table.note = self.note
        clock = database.clock

        @contextmanager
        def together(token: str | None, fingerprint: bytes) -> Iterator[None]:
            rows = self._transaction = []
            try:
                yield
            finally:
                self._transaction = None
            self._append(Transaction(rows, token, fingerprint, clock.now_s()))

        database.together = together

    def note(
        self, table: EngineTable, key: Key, old: StoredItem | None, new: StoredItem | None
    ) -> None:
        """Append a write: the new row, or the key of the row that the write deleted."""
        del key  # the items have it
        if new is not None:
            row = (table.spec.name, new.item, True)
        elif old is not None:
            row = (table.spec.name, table.schema.key_values(old.item), False)
        else:
            return
        if self._transaction is None:
            self._append(row)
        else:
            self._transaction.append(row)

    def define(self, operation: str, body: bytes, database: Database) -> None:
        """Write down a request that has changed a table, and record the writes to new tables."""
        definition = Definition(operation, body)
        self._append(definition)
        self._keep(definition)
        self.follow(database)

    def clear(self) -> None:
        """Remove everything."""
        self._definitions.clear()
        self._records = 0
        os.ftruncate(self._file, len(MAGIC))
        self._end = os.lseek(self._file, 0, os.SEEK_END)

    def _append(self, record: tuple[Any, ...]) -> None:
        """Append a record. If the disk is full, the file stays as it was, and this raises."""
        body = _framed(record)
        if os.write(self._file, body) < len(body):
            os.ftruncate(self._file, self._end)
            os.lseek(self._file, 0, os.SEEK_END)
            raise OSError(errno.ENOSPC, f"no space for {self._path}: make room, then try again")
        self._records += 1
        self._end += len(body)

    def _keep(self, definition: Definition) -> None:
        """Remember a request that changed a table, for the next compaction.

        A deleted table's requests are forgotten.
        """
        request = msgspec.json.decode(definition.body)
        name = str(request.get("TableName") or request.get("ResourceArn")).rpartition("/")[2]
        if definition.operation == "DeleteTable":
            self._definitions.pop(name, None)
        else:
            self._definitions.setdefault(name, []).append(definition)

    def _compact(self, database: Database) -> None:
        """Write a new journal if most records of the old one are outdated."""
        needed = sum(table.rows.size()[0] for table in database.tables.values())
        needed += sum(map(len, self._definitions.values()))
        if self._records < RECORDS_MIN or needed > self._records * KEPT_SHARE:
            return
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            file.write(MAGIC)
            for record in self._needed(database):
                file.write(_framed(record))
            file.flush()
            os.fsync(file.fileno())
            fresh.replace(self._path)
            old, self._file = self._file, os.dup(file.fileno())
            self._end = file.tell()
        os.close(old)
        self._records = needed

    def _needed(self, database: Database) -> Iterator[tuple[Any, ...]]:
        for definitions in self._definitions.values():
            yield from definitions
        for name, table in database.tables.items():
            for row in table.rows.scan():
                yield name, row.item, True
        for token, fingerprint, at_s in database.tokens.kept():
            yield Transaction([], token, fingerprint, at_s)


def _framed(record: tuple[Any, ...]) -> bytes:
    body = _encode(record)
    return len(body).to_bytes(4, "big") + crc32(body).to_bytes(4, "big") + body


def _records(content: bytes) -> Iterator[tuple[int, list[Any]]]:
    """Yield each whole record and where it ends, up to the first that is cut off or damaged."""
    at = len(MAGIC)
    while at + HEAD_BYTES <= len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        body = content[at + HEAD_BYTES : at + HEAD_BYTES + size]
        if len(body) < size or crc32(body).to_bytes(4, "big") != content[at + 4 : at + HEAD_BYTES]:
            return
        at += HEAD_BYTES + size
        yield at, _decode(body)


def _has_record(content: bytes, start: int) -> bool:
    """Return whether a whole record begins at `start` or in the bytes after it."""
    for at in range(start, min(len(content), start + SEARCHED_BYTES) - HEAD_BYTES):
        size = int.from_bytes(content[at : at + 4], "big")
        end = at + HEAD_BYTES + size
        if 0 < size <= RECORD_BYTES_MAX and end <= len(content):
            body = content[at + HEAD_BYTES : end]
            if crc32(body).to_bytes(4, "big") == content[at + 4 : at + HEAD_BYTES]:
                return True
    return False


def _replay(database: Database, transaction: Transaction) -> None:
    for row in transaction.rows:
        _put(database, *row)
    if transaction.token is not None:
        database.tokens.restore(transaction.token, transaction.fingerprint, transaction.at_s)


def _put(database: Database, name: str, item: Item, is_there: bool) -> None:
    """Store or remove a row, without limits."""
    table = database.table(name)
    key = table.schema.key_of_item(item)
    old = table.rows.get(key)
    new = StoredItem(item, admit_item(item)) if is_there else None
    table.write(key, old, new, table.changes(key, old, new))
