"""Files of items for `heatsink bulk submit`: CSV with a header, or JSON lines."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from heatsink.bulk.bulk import Bulk
from heatsink.errors import InvalidBody, InvalidSetting
from heatsink.server.api.requests import read_json

from .remote_bulk import RemoteBulk


def read_items(file: Path) -> Iterator[Any]:
    """Read items one by one, so that a file may be larger than memory."""
    readers = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise InvalidSetting(f"{file.name} must end in {', '.join(readers)}")
    return reader(file)


def _csv(file: Path) -> Iterator[Any]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.DictReader(lines, strict=True)
            _check_header(file, rows.fieldnames)
            for row in rows:
                if None in row or None in row.values():
                    raise InvalidBody(
                        f"{file.name} line {rows.line_num} has more or fewer columns than the "
                        "header: correct the line"
                    )
                yield row
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidBody(f"{file.name} cannot be read as CSV in UTF-8: {error}") from None


def _check_header(file: Path, names: Sequence[str] | None) -> None:
    if not names:
        raise InvalidBody(f"{file.name} is empty: its first line must name the columns")
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidBody(f"{file.name} names the column {twice[0]!r} twice: rename one of them")


def _json_lines(file: Path) -> Iterator[Any]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield read_json(msgspec.json.decode, line)
                except msgspec.DecodeError as error:
                    raise InvalidBody(f"{file.name} line {number} is not JSON: {error}") from None


def count_items(file: Path, bulk: Bulk | RemoteBulk) -> int:
    """Return about how many items the file has, for the progress bar.

    For a server, first read the whole file, to find errors in it. Otherwise the server would only
    see that the command stops sending.
    """
    if isinstance(bulk, RemoteBulk):
        return sum(1 for _ in read_items(file))
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def drawn(
    items: Iterable[Any], count: Callable[[], None], all_sent: Callable[[], None]
) -> Iterator[Any]:
    """Yield the items. Call `count` for each of them, and `all_sent` after the last one."""
    for item in items:
        count()
        yield item
    all_sent()
