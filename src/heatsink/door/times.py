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
from functools import lru_cache, update_wrapper
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
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?(?:[#|/_@~,; ].*)?",
    re.ASCII | re.DOTALL,
)
MINUTES_KEPT = 4_096
YEAR_9999_MS = 253_370_764_800_000


SEPARATORS = tuple("#|/_@~,; ")


def iso_text(value: Any) -> int:
    """Return the time in ms of `2026-11-15T12:00:00.000Z`. The fraction and the `Z` are optional.

    A suffix may follow, separated by one of `#|/_@~,;` or a space: `2026-11-15T12:00:00Z#17`.

    Other forms of ISO 8601 are refused: text sorts by time only if the time up to the second always
    takes the same 19 characters.
    """
    found = ISO_TEXT.fullmatch(value if type(value) is str else _text(value))
    if found is None:
        raise InvalidId(
            "write the time in UTC as 2026-11-15T12:00:00.000Z, or give your own time_of"
        )
    minute, second, fraction = found.groups()
    second_ms = 1000 * int(second) + (int(f"{fraction}00"[:3]) if fraction else 0)
    try:
        if second > "59":
            datetime.fromisoformat(f"{minute}:{second}")  # its error names the field
        return _minute_ms(minute) + second_ms
    except ValueError as error:
        raise InvalidId(f"{shown(value)} is not a valid time: {error}") from None


@lru_cache(MINUTES_KEPT)
def _minute_ms(text: str) -> int:
    """Return the time in ms of `2026-11-15T12:00`. Sort keys in use share few minutes."""
    return int(datetime.fromisoformat(f"{text}+00:00").timestamp()) * 1000


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidId(f"the sort key must be text, not {shown(value)}")
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
        raise InvalidId(f"write the id as {spelling}")
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
            time_ms = int(time_of(value if type(value) is str else comparable(value)))
            return max(0, time_ms)
        except Exception as error:
            raise InvalidId(f"sort key {shown(value)} carries no time: {error}") from error

    return update_wrapper(read, time_of, updated=())


def sort_type_of(time_of: TimeOf) -> str | None:
    """Return the type of the sort keys that a function of this module reads: "S" or "N".

    Returns None for any other function.
    """
    time_of = unwrap(time_of)
    if isinstance(time_of, After):
        return sort_type_of(time_of.time_of)
    if time_of in (seconds, millis):
        return "N"
    return "S" if time_of in (iso_text, millis_text, uuid7_text, ulid_text) else None


def first_text(time_of: TimeOf, time_ms: int) -> str:
    """Return a text such that no text below it has the time `time_ms` or a later one.

    Comparing two texts takes less time than reading one. The result is empty if no such text is
    known for this function.
    """
    time_of = unwrap(time_of)
    if not 0 < time_ms < YEAR_9999_MS:
        return ""
    if isinstance(time_of, After):
        text = first_text(time_of.time_of, time_ms)
        return time_of.prefix + text if text else ""
    if time_of is iso_text:
        return _first_iso_text(time_ms)
    return f"{time_ms:013}" if time_of is millis_text else ""


def _first_iso_text(time_ms: int) -> str:
    second = datetime.fromtimestamp(time_ms // 1000, UTC).isoformat()[:19]
    # without zeros at the end, since `12:00:00.5` and `12:00:00.5#1` sort before `12:00:00.500`
    return f"{second}.{time_ms % 1000:03}".rstrip("0") if time_ms % 1000 else second


def name_of(time_of: TimeOf) -> str:
    """Return the name of a `time_of` function, by which declarations of tables are compared."""
    time_of = unwrap(time_of)
    if isinstance(time_of, After):
        return f"after({time_of.prefix!r}, {name_of(time_of.time_of)})"
    return str(getattr(time_of, "__qualname__", None) or type(time_of).__qualname__)
