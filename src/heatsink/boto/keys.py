"""What a user's keys are called in their table and in the registry.

A bare key stays verbatim. A bucket of it is the key with a reserved tag and a number, and no key
of a user's may end in such a tag: so no key can take the name of another key's bucket.

Ready-made readers of the time that a sort key carries: pass one as `time_of`.

A reader gives milliseconds since 1970 and refuses what is not a whole sort key. Time must grow
with the sort key: keep to one format, of one width, in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

from heatsink.errors import InvalidId, InvalidKey
from heatsink.primitives.checks import shown
from heatsink.primitives.ids import Ulid, Uuid7
from heatsink.primitives.keys import check_key
from heatsink.primitives.subjects import Kind, Subject

TAG = "\u241fhs"
TAGGED = re.compile(TAG + r"\d+\Z", re.ASCII)
NUMBERS = Context(prec=38)  # as many digits as a number of DynamoDB's has


def check_partition_value(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidKey(f"the partition key must be text, not {shown(value)}")
    if TAGGED.search(value):
        raise InvalidKey(f"{shown(value)} ends in {TAG!r} and digits, which Heatsink reserves")
    return value


def physical(key: str, bucket: int | None) -> str:
    """The partition key in the user's table: the bare key, or one bucket of it."""
    return key if bucket is None else f"{key}{TAG}{bucket}"


def registry_key(table: str, key: str) -> str:
    """What the registry calls a key of a table; many tables may share a registry."""
    return check_key(Subject(Kind.TABLE, f"{table}/{key}"))


def comparable(value: Any) -> Any:
    """A sort key as something that sorts as DynamoDB sorts it: str, Decimal or bytes."""
    if isinstance(value, bool | float):
        raise InvalidId(f"a sort key is text, bytes, int or Decimal, not {shown(value)}")
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, str | Decimal | bytes):
        return value
    binary = getattr(value, "value", value)  # boto3 wraps bytes that it read
    if isinstance(binary, bytes | bytearray):
        return bytes(binary)
    raise InvalidId(f"a sort key is text, bytes, int or Decimal, not {shown(value)}")


def hashed_bytes(value: Any) -> bytes:
    """The bytes of a comparable sort key, the same however a number was written."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Decimal):
        return str(value.normalize(NUMBERS)).encode() if value else b"0"
    return bytes(value)


def size_of(value: Any) -> int:
    """About the bytes that a value takes in DynamoDB: for heat, and to end a page at 1 MB."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, dict):
        return 3 + sum(len(name) + 1 + size_of(part) for name, part in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return 3 + sum(1 + size_of(part) for part in value)
    binary = getattr(value, "value", value)
    if isinstance(binary, bytes | bytearray):
        return len(binary)
    return 1 if value is None or isinstance(value, bool) else 10


TimeOf = Callable[[Any], int]
MILLIS_TEXT = re.compile(r"([0-9]{13})(\D.*)?", re.DOTALL)  # 13 digits: from 2001 to 2286
ISO_TEXT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?", re.ASCII
)


def iso_text(value: Any) -> int:
    """`2026-11-15T12:00:00.000Z`, with any fraction; a time without a zone is UTC.

    Other forms of ISO 8601 are refused: only where the seconds stand in the same 19 characters
    does text sort as its times do.
    """
    found = ISO_TEXT.fullmatch(_text(value))
    if found is None:
        raise InvalidId("write it in UTC as 2026-11-15T12:00:00.000Z, or give your own time_of")
    *fields, fraction = found.groups("")
    try:
        time = datetime(*map(int, fields), tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError as error:
        raise InvalidId(f"{shown(value)} is no time: {error}") from None
    return int(time.timestamp()) * 1000 + int(fraction[:3].ljust(3, "0"))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidId(f"it must be text, not {shown(value)}")
    return value


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
    found = MILLIS_TEXT.fullmatch(_text(value))
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
