"""Keys of an existing table, and the names of their buckets.

A key without buckets keeps its name (the bare key). A bucket's name is the key, a reserved tag and
a number. A key of the application may not end in such a tag, so it can never equal the name of
another key's bucket.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import Any

from heatsink.errors import InvalidId, InvalidKey
from heatsink.primitives.checks import shown
from heatsink.primitives.keys import check_key
from heatsink.primitives.subjects import Kind, Subject

TAG = "\u241fhs"
TAGGED = re.compile(TAG + r"\d+\Z", re.ASCII)
NUMBERS = Context(prec=38)  # DynamoDB's numbers have 38 digits


def check_partition_value(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidKey(f"the partition key must be text, not {shown(value)}")
    if TAGGED.search(value):
        raise InvalidKey(f"{shown(value)} ends in {TAG!r} and digits, which Heatsink reserves")
    return value


def physical(key: str, bucket: int | None) -> str:
    """The partition key in the user's table: the bare key, or one bucket of it."""
    return key if bucket is None else f"{key}{TAG}{bucket}"


def subject_in(table: str, key: str) -> Subject:
    """A key of a table as a subject of the registry, which many tables may share."""
    return Subject(Kind.TABLE, f"{table}/{key}")


def registry_key(table: str, key: str) -> str:
    """The name of a table's key in the registry, which many tables may share."""
    return check_key(subject_in(table, key))


def comparable(value: Any) -> Any:
    """A sort key as a str, Decimal or bytes, which sort as in DynamoDB."""
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
    """The bytes of a comparable sort key, equal for equal numbers."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Decimal):
        return str(value.normalize(NUMBERS)).encode() if value else b"0"
    return bytes(value)


def size_of(value: Any) -> int:
    """A value's approximate size in DynamoDB in bytes: for heat, and to end a page at 1 MB."""
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
