"""What a user's keys are called in their table and in the registry.

A bare key stays verbatim. A bucket of it is the key with a reserved tag and a number, and no key
of a user's may end in such a tag: so no key can take the name of another key's bucket.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import Any

from heatsink.checks import shown
from heatsink.errors import InvalidId, InvalidKey
from heatsink.keys import check_key

TAG = "\u241fhs"
TABLES, ADOPTED = "table:", "adopted:"  # how the registry's names of them begin
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
    return check_key(f"{TABLES}{table}/{key}")


def adoption_prefix(table: str) -> str:
    """Where the registry notes that a table is adopted: a name that no key's can begin with."""
    return f"{ADOPTED}{table}/"


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
