"""The time in a sort key: pass one of these functions as `time_of`.

The functions are `iso_text`, `seconds`, `millis`, `millis_text`, `uuid7_text` and `ulid_text`. For
sort keys with a prefix, wrap one of them in `after`.

Each function returns milliseconds since 1970 and raises `InvalidId` for a malformed sort key. A
sort key that sorts later must have a later time, so use one format, of one width, in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import update_wrapper
from inspect import unwrap
from typing import Any
from uuid import UUID

from heatsink.errors import InvalidId
from heatsink.primitives.checks import shown
from heatsink.primitives.ids import Ulid, Uuid7

from .keys import comparable

TimeOf = Callable[[Any], int]
MILLIS_TEXT = re.compile(r"([0-9]{13})(\D.*)?", re.DOTALL)  # 13 digits: from 2001 to 2286
ISO_TEXT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?"
    r"(?:[#|/_@~,; ].*)?",
    re.ASCII | re.DOTALL,
)


SEPARATORS = tuple("#|/_@~,; ")


def iso_text(value: Any) -> int:
    """Return the time in ms of `2026-11-15T12:00:00.000Z`. The fraction and the `Z` are optional.

    A suffix may follow, separated by one of `#|/_@~,;` or a space: `2026-11-15T12:00:00Z#17`.

    Other forms of ISO 8601 are refused: text sorts by time only if the time up to the second always
    takes the same 19 characters.
    """
    found = ISO_TEXT.fullmatch(_text(value))
    if found is None:
        raise InvalidId("write it in UTC as 2026-11-15T12:00:00.000Z, or give your own time_of")
    *fields, fraction = found.groups("")
    try:
        time = datetime(*map(int, fields), tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError as error:
        raise InvalidId(f"{shown(value)} is not a valid time: {error}") from None
    return int(time.timestamp()) * 1000 + int(fraction[:3].ljust(3, "0"))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidId(f"it must be text, not {shown(value)}")
    return value


def seconds(value: Any) -> int:
    """Return the time in ms of a number of seconds since 1970, with or without a fraction."""
    return int(_number(value) * 1000)


def millis(value: Any) -> int:
    """Return the time in ms of a number of milliseconds since 1970; its fraction is dropped."""
    return int(_number(value))


def _number(value: Any) -> Decimal:
    if isinstance(value, str):
        raise InvalidId("text does not sort as numbers do: use millis_text, or your own time_of")
    return Decimal(value)


def millis_text(value: Any) -> int:
    """Return the time in ms at the start of a text: `1794744000000` or `1794744000000#anything`."""
    found = MILLIS_TEXT.fullmatch(_text(value))
    if found is None:
        raise InvalidId(f"{shown(value)} does not begin with 13 digits of milliseconds")
    return int(found[1])


def uuid7_text(value: Any) -> int:
    """Return the time in ms of a UUID of version 7, written as 36 characters in lower case.

    A suffix may follow, as after `iso_text`.
    """
    text = _first(value, 36)
    scheme, uuid = Uuid7(), UUID(text)
    return scheme.time_ms(_spelled_so(text, str(uuid), scheme.raw(uuid)))


def ulid_text(value: Any) -> int:
    """Return the time in ms of a ULID, written as 26 characters in upper case.

    A suffix may follow, as after `iso_text`.
    """
    text, scheme = _first(value, 26), Ulid()
    raw = scheme.raw(text)
    return scheme.time_ms(_spelled_so(text, scheme.value(raw), raw))


def _first(value: Any, length: int) -> str:
    """Return the first characters of a text, without a suffix that a separator introduces."""
    text = _text(value)
    return text[:length] if text[length : length + 1] in SEPARATORS else text


def _spelled_so(value: str, spelling: str, raw: bytes) -> bytes:
    """Return `raw` if `value` is spelled like `spelling`. Otherwise raise `InvalidId`.

    Another spelling of the same id would sort differently.
    """
    if value != spelling:
        raise InvalidId(f"write it as {spelling}")
    return raw


@dataclass(frozen=True)
class After:
    """A `time_of` for sort keys with a fixed prefix: see `after`."""

    prefix: str
    time_of: TimeOf

    def __call__(self, value: Any) -> int:
        if not value.startswith(self.prefix):
            raise InvalidId(f"{shown(value)} does not begin with {self.prefix!r}")
        return self.time_of(value.removeprefix(self.prefix))


def after(prefix: str, time_of: TimeOf) -> TimeOf:
    """Return a `time_of` for sort keys with a fixed prefix: `after("MSG#", iso_text)`."""
    return After(prefix, time_of)


def careful(time_of: TimeOf) -> TimeOf:
    """Return a safe version of `time_of`, which raises only `InvalidId`.

    It converts a sort key to a str, Decimal or bytes, and passes that to `time_of`.
    """

    def read(value: Any) -> int:
        try:
            return max(int(time_of(comparable(value))), 0)
        except Exception as error:
            raise InvalidId(f"sort key {shown(value)} carries no time: {error}") from error

    return update_wrapper(read, time_of, updated=())


def name_of(time_of: TimeOf) -> str:
    """Return the name by which declarations are compared: of a function, its qualified name."""
    time_of = unwrap(time_of)
    if isinstance(time_of, After):
        return f"after({time_of.prefix!r}, {name_of(time_of.time_of)})"
    return str(getattr(time_of, "__qualname__", None) or type(time_of).__qualname__)
