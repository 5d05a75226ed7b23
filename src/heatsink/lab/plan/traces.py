"""Traces, that is, requests in order of time: from a CSV file, or generated from a load.

A load is described by the user, or published. The published loads are Twitter's cache clusters,
March 2020: J. Yang, Y. Yue, K. V. Rashmi, "A large scale analysis of hundreds of in-memory cache
clusters at Twitter", OSDI 2020. The figures are those of the table `stat/2020Mar.md` in
github.com/twitter/cache-trace (CC BY 4.0). That table gives the mean rate of a week, so the rate is
constant here. It also gives the requests per key, from which the number of keys follows.
"""

from __future__ import annotations

import csv
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from heapq import heappop, heappush
from io import BufferedReader
from math import ceil, cos, inf, pi, sin, sqrt
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from heatsink.errors import InvalidInput, InvalidSetting
from heatsink.primitives.checks import check_number, check_whole, shown
from heatsink.primitives.keys import check_key
from heatsink.testing.traffic import Zipf

COLUMNS = ("time", "key", "operation", "bytes")
READS = ("read", "get", "gets", "query", "scan", "GetItem", "BatchGetItem", "TransactGetItems")
WRITES = (
    *("write", "put", "set", "add", "update", "delete", "incr", "cas"),
    *("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"),
)
OPERATIONS = {name.lower(): name in WRITES for name in READS + WRITES}
BYTES_MAX = 1 << 20  # the maximum of a page of a query; an item is smaller
MILLISECONDS_FROM = 1e11  # as seconds, that would be the year 5138
TIME_MAX = 1e14
LATE_S_MAX = 10.0
WEIGHT_MAX = 10**6
ACCEPTED = {
    "time": "seconds or milliseconds since 1970, or ISO 8601",
    "operation": f"a read ({', '.join(READS)}) or a write ({', '.join(WRITES)})",
    "bytes": f"a whole number from 0 to {BYTES_MAX:,}",
}
GZIP_MAGIC = b"\x1f\x8b"
DAY_S = 86_400.0
MIDNIGHT_S = 20_833 * DAY_S  # of a day in 2027: windows and epochs need a time above zero
GOLDEN, SILVER = (sqrt(5) - 1) / 2, sqrt(2) - 1
WEEK_S = 7 * 86_400


class TraceRequest(NamedTuple):
    time_s: float
    key: str
    is_write: bool
    size: int


class Trace(Protocol):
    """Requests, oldest first. In a sample each request stands for `weight` requests."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> int: ...

    def requests(self) -> Iterator[TraceRequest]: ...

    def done(self) -> float:
        """Return the share of the trace that has been read, from 0 to 1, for a progress bar."""


class CsvTrace:
    """A CSV file, plain or gzipped, read as it is replayed.

    The first line names the columns, in any order; columns with other names are ignored. `time` is
    in seconds or milliseconds since 1970, or ISO 8601, in UTC if it has no offset. Lines are in
    order of time. In logs of several servers, a line may come up to `LATE_S_MAX` seconds too late:
    the reader puts such a line in its right place.
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

    def requests(self) -> Iterator[TraceRequest]:
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
        return InvalidSetting(f"trace {str(self._path)!r} cannot be read: {why}", field="trace")

    def _parsed(self, lines: Iterable[str]) -> Iterator[TraceRequest]:
        rows, newest_s, count = csv.reader(lines, strict=True), -inf, 0
        waiting: list[tuple[float, int, TraceRequest]] = []
        places = self._places(next(rows, []))
        time_at, key_at, operation_at, bytes_at = places
        for row in rows:
            if not row:
                continue
            try:
                time_s = _seconds(row[time_at], newest_s)
                key = check_key(row[key_at])
                is_write, size = _is_write(row[operation_at]), _size(row[bytes_at])
            except IndexError:
                at = next(number for number, place in enumerate(places) if place >= len(row))
                raise self._wrong(rows.line_num, f"{COLUMNS[at]} is missing") from None
            except InvalidInput as error:
                raise self._wrong(rows.line_num, str(error)) from None
            count += 1
            newest_s = max(newest_s, time_s)
            heappush(waiting, (time_s, count, TraceRequest(time_s, key, is_write, size)))
            while waiting[0][0] < newest_s - LATE_S_MAX:
                yield heappop(waiting)[2]
        while waiting:
            yield heappop(waiting)[2]

    def _wrong(self, line: int, why: str) -> InvalidSetting:
        return InvalidSetting(f"{self.name} line {line}: {why}")

    def _places(self, header: list[str]) -> list[int]:
        names = [name.strip().lower().lstrip("\ufeff") for name in header]
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            lacks = "" if len(missing) == len(COLUMNS) else f"; it lacks {', '.join(missing)}"
            raise self._wrong(1, f"the header must name {', '.join(COLUMNS)}{lacks}")
        return [names.index(name) for name in COLUMNS]


def _lines(file: BufferedReader) -> Iterator[str]:
    if file.peek(2)[:2] == GZIP_MAGIC:
        with gzip.open(file) as unzipped:
            yield from map(bytes.decode, unzipped)
    else:
        yield from map(bytes.decode, file)


def _seconds(text: str, newest_s: float) -> float:
    """Return the time of a line in seconds, from a number or ISO 8601.

    Raises `InvalidSetting` if the time is more than `LATE_S_MAX` before `newest_s`, the latest time
    in the lines before it.
    """
    try:
        number = float(text)
    except ValueError:
        number = _iso_seconds(text)
    if not 0 <= number < TIME_MAX:
        raise _refusal("time", text)
    time_s = number if number < MILLISECONDS_FROM else number / 1000
    if newest_s - time_s > LATE_S_MAX:
        back_s = newest_s - time_s
        raise InvalidSetting(
            f"time goes back by {back_s:,.0f} s: sort the trace by time", field="time"
        )
    return time_s


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
    return InvalidSetting(f"{name} must be {ACCEPTED[name]}, not {shown(text)}", field=name)


class SyntheticLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Requests for keys by Zipf's law, at a rate that rises and falls with the time of day.

    There are `peak` requests per second at noon and `trough * peak` at midnight. A load of less
    than a day is centred on noon, so that it always has its peak. A longer load begins at midnight.
    `read_share` is the probability that a request is a read; all others are writes. Items have
    `item_bytes`.
    """

    keys: int = 100_000
    skew: float = 0.99
    peak: float = 20_000.0
    trough: float = 0.3
    read_share: float = 0.5
    item_bytes: int = 500
    hours: float = 24.0

    def __post_init__(self) -> None:
        check_whole("keys", self.keys, 1, 10**12)
        check_number("skew", self.skew, 0, 10)
        check_number("peak", self.peak, 0.001, 10**9)
        check_number("trough", self.trough, 0.001, 1)
        check_number("read_share", self.read_share, 0, 1)
        check_whole("item_bytes", self.item_bytes, 0, 400 * 1_024)
        check_number("hours", self.hours, 0.001, 24 * 31)

    @property
    def start_s(self) -> float:
        """When the load begins, in seconds after midnight."""
        return max(DAY_S - self.hours * 3_600, 0.0) / 2

    def rate(self, second: float) -> float:
        """Return the rate at a time, in seconds after midnight."""
        return self.peak * (
            self.trough + (1 - self.trough) * (1 - cos(2 * pi * second / DAY_S)) / 2
        )

    @property
    def total(self) -> float:
        """The number of requests in all hours: the integral of the rate."""
        seconds, swing = self.hours * 3_600, (1 - self.trough) / 2
        first, last = (2 * pi * at / DAY_S for at in (self.start_s, self.start_s + seconds))
        waves = seconds - DAY_S / (2 * pi) * (sin(last) - sin(first))
        return self.peak * (self.trough * seconds + swing * waves)


class SyntheticTrace:
    """A trace of a load, with at most about `requests_max` requests.

    If the load has more requests, each request of the trace stands for several. Requests that stand
    for one request each arrive at random. Requests that stand for several arrive evenly, in time
    and over the keys: a small random sample would vary far more than the whole load does.
    """

    def __init__(
        self, load: SyntheticLoad, requests_max: int, seed: int, name: str = "synthetic"
    ) -> None:
        self.name = name
        self.weight = ceil(load.total / check_whole("requests", requests_max, 1_000, 10**9))
        self.load = load
        self._seed = seed
        self._done = 0.0

    def done(self) -> float:
        return self._done

    def requests(self) -> Iterator[TraceRequest]:
        load, begin_s = self.load, self.load.start_s
        end_s = begin_s + load.hours * 3_600
        keys, second = Zipf(load.keys, load.skew), begin_s
        rate, weight, read_share, size = load.rate, self.weight, load.read_share, load.item_bytes
        for gap, place, chance in self._draws():
            second += gap * weight / rate(second)
            if second >= end_s:
                return
            self._done = (second - begin_s) / (end_s - begin_s)
            key = f"key-{keys.at(place)}"
            yield TraceRequest(MIDNIGHT_S + second, key, chance >= read_share, size)

    def _draws(self) -> Iterator[tuple[float, float, float]]:
        """Yield three numbers for each request: the gap before it, and two numbers from 0 up to 1.

        The average gap is 1. The other two choose the key and the operation.
        """
        rng = Random(self._seed)
        if self.weight == 1:
            while True:
                yield rng.expovariate(1.0), rng.random(), rng.random()
        place, chance = rng.random(), rng.random()
        while True:
            place, chance = (place + GOLDEN) % 1, (chance + SILVER) % 1
            yield 1.0, place, chance


class Cluster(msgspec.Struct, frozen=True):
    """One row of Twitter's table. Operations other than `get` and `gets` count as writes."""

    number: int
    key_bytes: int
    value_bytes: int
    kilo_requests_s: float
    requests_per_key: float
    read_share: float
    zipf_alpha: float

    @property
    def keys(self) -> int:
        return round(self.kilo_requests_s * 1_000 * WEEK_S / self.requests_per_key)

    def load(self, hours: float) -> SyntheticLoad:
        return SyntheticLoad(
            keys=self.keys,
            skew=self.zipf_alpha,
            peak=self.kilo_requests_s * 1_000,
            trough=1.0,
            read_share=self.read_share,
            item_bytes=self.key_bytes + self.value_bytes,
            hours=hours,
        )


CLUSTERS = (
    Cluster(8, 23, 9_497, 2.11, 1_532.6, 0.50, 1.7366),
    Cluster(14, 96, 414, 5.81, 35.4, 0.65, 1.2959),
    Cluster(29, 36, 799, 10.73, 22.5, 0.86, 1.2323),
    Cluster(40, 44, 155, 6.26, 11.8, 0.50, 0.8551),
    Cluster(49, 44, 10_658, 1.25, 154.2, 0.57, 1.5095),
    Cluster(51, 44, 221, 10.40, 814.8, 0.90, 1.9745),
    Cluster(52, 20, 273, 24.25, 32.6, 0.93, 1.2117),
)
SHAPES = {f"twitter-{cluster.number}": cluster for cluster in CLUSTERS}
