"""Ready-made readers of the time that a sort key carries: pass one as `time_of`.

A reader gives milliseconds since 1970 and refuses what is not a whole sort key. Time must grow
with the sort key: keep to one format, of one width, in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from heatsink.checks import shown
from heatsink.errors import InvalidId
from heatsink.ids import Ulid, Uuid7

from .names import comparable

TimeOf = Callable[[Any], int]
MILLIS_TEXT = re.compile(r"([0-9]{13})(\D.*)?", re.DOTALL)  # 13 digits: from 2001 to 2286
ISO_TEXT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|\+00:00)?", re.ASCII)


def iso_text(value: Any) -> int:
    """`2026-11-15T12:00:00.000Z`, with any fraction; a time without a zone is UTC.

    Other forms of ISO 8601 are refused: only where the seconds stand in the same 19 characters
    does text sort as its times do.
    """
    if not ISO_TEXT.fullmatch(value):
        raise InvalidId("write it in UTC as 2026-11-15T12:00:00.000Z, or give your own time_of")
    time = datetime.fromisoformat(value)
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def seconds(value: Any) -> int:
    """A number of seconds since 1970, with or without a fraction."""
    return int(_number(value) * 1000)


def millis(value: Any) -> int:
    """A number of milliseconds since 1970."""
    return int(_number(value))


def _number(value: Any) -> Decimal:
    if isinstance(value, str):
        raise InvalidId("text does not sort as numbers do: use millis_text, or your own time_of")
    return Decimal(value)


def millis_text(value: Any) -> int:
    """`1794744000000` or `1794744000000#anything`."""
    found = MILLIS_TEXT.fullmatch(value)
    if found is None:
        raise InvalidId(f"{shown(value)} does not begin with 13 digits of milliseconds")
    return int(found[1])


def uuid7_text(value: Any) -> int:
    """A UUID of version 7 as its 36 characters, in lower case."""
    scheme, uuid = Uuid7(), UUID(value)
    return scheme.time_ms(_spelled_so(value, str(uuid), scheme.raw(uuid)))


def ulid_text(value: Any) -> int:
    """A ULID as its 26 characters, in upper case."""
    scheme = Ulid()
    raw = scheme.raw(value)
    return scheme.time_ms(_spelled_so(value, scheme.value(raw), raw))


def _spelled_so(value: str, spelling: str, raw: bytes) -> bytes:
    """Two spellings of one id do not sort alike."""
    if value != spelling:
        raise InvalidId(f"write it as {spelling}")
    return raw


def after(prefix: str, time_of: TimeOf) -> TimeOf:
    """For sort keys with a fixed beginning: `after("MSG#", iso_text)`."""

    def read(value: Any) -> int:
        if not value.startswith(prefix):
            raise InvalidId(f"{shown(value)} does not begin with {prefix!r}")
        return time_of(value.removeprefix(prefix))

    return read


def careful(time_of: TimeOf) -> TimeOf:
    """Gives a reader str, Decimal or bytes; what it stumbles over is an `InvalidId`."""

    def read(value: Any) -> int:
        try:
            return max(int(time_of(comparable(value))), 0)
        except Exception as error:
            raise InvalidId(f"sort key {shown(value)} carries no time: {error}") from error

    return read
