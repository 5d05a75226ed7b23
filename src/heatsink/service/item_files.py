"""Items from a file: CSV with a header, or one JSON value a line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from heatsink.errors import InvalidBody, InvalidSetting

from .api.json_text import read_json


def read_items(file: Path) -> Iterator[Any]:
    """One after the other, so that a file may be larger than memory."""
    readers = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise InvalidSetting(f"{file.name} must end in {', '.join(readers)}")
    return reader(file)


def _csv(file: Path) -> Iterator[Any]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.DictReader(lines, strict=True)
            for row in rows:
                if None in row or None in row.values():
                    raise InvalidBody(
                        f"{file.name} line {rows.line_num} has not as many columns "
                        "as the header: mend the line"
                    )
                yield row
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidBody(f"{file.name} cannot be read as CSV in UTF-8: {error}") from None


def _json_lines(file: Path) -> Iterator[Any]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield read_json(msgspec.json.decode, line)
                except msgspec.DecodeError as error:
                    raise InvalidBody(f"{file.name} line {number} is not JSON: {error}") from None


def count_lines(file: Path) -> int:
    """A quick guess for the progress bar."""
    with file.open("rb") as lines:
        return sum(1 for _ in lines)
