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
ACCEPTED = {
    "time": "seconds or milliseconds since 1970, or ISO 8601",
    "operation": f"one of {', '.join(OPERATIONS)}",
    "bytes": f"a whole number from 0 to {BYTES_MAX:,}",
}
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
        places = self._places(next(rows, []))
        time_at, key_at, operation_at, bytes_at = places
        for row in rows:
            if not row:
                continue
            try:
                last_s = _seconds(row[time_at], last_s)
                key = check_key(row[key_at])
                is_write, size = _is_write(row[operation_at]), _size(row[bytes_at])
            except IndexError:
                at = next(number for number, place in enumerate(places) if place >= len(row))
                raise self._wrong(rows.line_num, f"{COLUMNS[at]} is missing") from None
            except InvalidInput as error:
                raise self._wrong(rows.line_num, str(error)) from None
            yield Request(last_s, key, is_write, size)

    def _wrong(self, line: int, why: str) -> InvalidSetting:
        return InvalidSetting(f"{self.name} line {line}: {why}")

    def _places(self, header: list[str]) -> list[int]:
        names = [name.strip().lower().lstrip("\ufeff") for name in header]
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            columns = f"it must name the columns {', '.join(COLUMNS)}"
            raise self._wrong(1, f"{columns}; {', '.join(missing)} not found")
        return [names.index(name) for name in COLUMNS]


def _lines(file: BufferedReader) -> Iterator[str]:
    if file.peek(2)[:2] == GZIP_MAGIC:
        with gzip.open(file) as unzipped:
            yield from map(bytes.decode, unzipped)
    else:
        yield from map(bytes.decode, file)


def _seconds(text: str, last_s: float) -> float:
    """Not before the line before, from which it may be a little late."""
    try:
        number = float(text)
    except ValueError:
        number = _iso_seconds(text)
    if not 0 <= number < TIME_MAX:
        raise _refusal("time", text)
    time_s = number if number < MILLISECONDS_FROM else number / 1000
    if last_s - time_s > LATE_S_MAX:
        back_s = last_s - time_s
        raise InvalidSetting(f"time goes back by {back_s:,.0f} s: sort the trace by time")
    return max(time_s, last_s)


def _iso_seconds(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise _refusal("time", text) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _is_write(text: str) -> bool:
    is_write = OPERATIONS.get(text.strip().lower())
    if is_write is None:
        raise _refusal("operation", text)
    return is_write


def _size(text: str) -> int:
    try:
        size = int(text)
    except ValueError:
        raise _refusal("bytes", text) from None
    if not 0 <= size <= BYTES_MAX:
        raise _refusal("bytes", text)
    return size


def _refusal(name: str, text: str) -> InvalidSetting:
    return InvalidSetting(f"{name} must be {ACCEPTED[name]}, not {shown(text)}")
