"""A trace from a CSV file: `time,key,operation,bytes`, plain or gzipped, read as it is replayed."""

from __future__ import annotations

import csv
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from io import BufferedReader
from math import inf
from pathlib import Path

from heatsink.checks import check_whole, shown
from heatsink.errors import InvalidInput, InvalidSetting
from heatsink.keys import check_key

from .trace import Request

COLUMNS = ("time", "key", "operation", "bytes")
READS = ("read", "get", "gets", "query", "scan")
WRITES = ("write", "put", "set", "add", "update", "delete", "incr", "cas")
OPERATIONS = {**dict.fromkeys(READS, False), **dict.fromkeys(WRITES, True)}
BYTES_MAX = 1 << 20  # a page of a query has 1 MB at most, and an item less
MILLISECONDS_FROM = 1e11  # as seconds, that would be the year 5138
TIME_MAX = 1e14
LATE_S_MAX = 60.0
WEIGHT_MAX = 10**6
GZIP_MAGIC = b"\x1f\x8b"


class CsvTrace:
    """The first line names the columns, in any order; others are not looked at.

    `time` is in seconds or milliseconds since 1970, or ISO 8601 (UTC if it does not say). Lines are
    in the order of time; one that is a little late counts as of the line before it.
    """

    def __init__(self, path: Path, weight: int = 1) -> None:
        self.name = path.name
        self.weight = check_whole("sampled", weight, 1, WEIGHT_MAX)
        self._path = path
        self._file: BufferedReader | None = None
        self._size = 1

    def done(self) -> float:
        if self._file is None:
            return 0.0
        return 1.0 if self._file.closed else min(self._file.tell() / self._size, 1.0)

    def requests(self) -> Iterator[Request]:
        try:
            with self._path.open("rb") as self._file:
                self._size = max(os.fstat(self._file.fileno()).st_size, 1)
                yield from self._parsed(_lines(self._file))
        except (EOFError, zlib.error):
            raise self._unreadable("its gzip data is cut off or damaged") from None
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from None
        except UnicodeDecodeError:
            raise self._unreadable("it is not UTF-8") from None
        except csv.Error as error:
            raise self._unreadable(f"it is not CSV ({error})") from None

    def _unreadable(self, why: str) -> InvalidSetting:
        return InvalidSetting(f"trace {str(self._path)!r} cannot be read: {why}")

    def _parsed(self, lines: Iterable[str]) -> Iterator[Request]:
        rows, last_s = csv.reader(lines, strict=True), -inf
        time_at, key_at, operation_at, bytes_at = self._places(next(rows, []))
        for row in rows:
            if not row:
                continue
            try:
                time_s = _seconds(row[time_at])
                key = check_key(row[key_at])
                is_write = OPERATIONS[row[operation_at].strip().lower()]
                size = _size(row[bytes_at])
                if time_s < last_s:
                    time_s = _not_late(time_s, last_s)
            except (LookupError, ValueError, InvalidInput):
                fields = {name: row[place : place + 1] for name, place in self._named.items()}
                raise self._wrong(rows.line_num, fields, last_s) from None
            last_s = time_s
            yield Request(time_s, key, is_write, size)

    def _places(self, header: list[str]) -> list[int]:
        names = [name.strip().lower().lstrip("\ufeff") for name in header]
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise InvalidSetting(
                f"{self.name} line 1: it must name the columns {', '.join(COLUMNS)}; "
                f"{', '.join(missing)} not found"
            )
        self._named = {name: names.index(name) for name in COLUMNS}
        return list(self._named.values())

    def _wrong(self, line: int, fields: dict[str, list[str]], last_s: float) -> InvalidSetting:
        """Which field it was: looked for only when one is wrong."""
        checks = {"time": _seconds, "key": check_key, "operation": _operation, "bytes": _size}
        for name, check in checks.items():
            if not fields[name]:
                return InvalidSetting(f"{self.name} line {line}: {name} is missing")
            try:
                check(fields[name][0])
            except (ValueError, InvalidInput) as error:
                why = str(error) if isinstance(error, InvalidInput) else _must_be(name, fields)
                return InvalidSetting(f"{self.name} line {line}: {why}")
        back_s = last_s - _seconds(fields["time"][0])
        return InvalidSetting(
            f"{self.name} line {line}: time goes back by {back_s:,.0f} s: sort the trace by time"
        )


def _lines(file: BufferedReader) -> Iterator[str]:
    if file.peek(2)[:2] == GZIP_MAGIC:
        with gzip.open(file) as unzipped:
            yield from map(bytes.decode, unzipped)
    else:
        yield from map(bytes.decode, file)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not 0 <= number < TIME_MAX:
        raise ValueError(text)
    return number if number < MILLISECONDS_FROM else number / 1000


def _not_late(time_s: float, last_s: float) -> float:
    if last_s - time_s > LATE_S_MAX:
        raise ValueError(time_s)
    return last_s


def _operation(text: str) -> bool:
    if text.strip().lower() not in OPERATIONS:
        raise ValueError(text)
    return OPERATIONS[text.strip().lower()]


def _size(text: str) -> int:
    size = int(text)
    if not 0 <= size <= BYTES_MAX:
        raise ValueError(text)
    return size


def _must_be(name: str, fields: dict[str, list[str]]) -> str:
    accepted = {
        "time": "seconds or milliseconds since 1970, or ISO 8601",
        "operation": f"one of {', '.join(OPERATIONS)}",
        "bytes": f"a whole number from 0 to {BYTES_MAX:,}",
    }
    return f"{name} must be {accepted[name]}, not {shown(fields[name][0])}"
