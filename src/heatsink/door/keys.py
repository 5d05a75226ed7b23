"""Keys of an existing table, and the names of their buckets.

A key with one bucket keeps its name (the bare key). If a key has several buckets, a bucket's name
is the key, a reserved tag and a number. A key of the application may not end in such a tag and
number, so no key equals the name of another key's bucket.
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
BARE = -1  # the bare key, where a page token names a bucket by its number
NUMBERS = Context(prec=38)  # DynamoDB's numbers have 38 digits


def check_partition_value(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidKey(f"the partition key must be text, not {shown(value)}")
    if TAGGED.search(value):
        raise InvalidKey(
            f"the partition key {shown(value)} ends in {TAG!r} and digits: Heatsink reserves such "
            "keys for its buckets, choose another"
        )
    return value


def physical(key: str, bucket: int | None) -> str:
    """Return the partition key in the user's table: the bare key if `bucket` is None."""
    return key if bucket is None else f"{key}{TAG}{bucket}"


def number_in(name: str, key: str) -> int:
    """Return the number of the bucket with this name; `BARE` if the name is the key itself."""
    return BARE if name == key else int(name.removeprefix(key + TAG))


def subject_in(table: str, key: str) -> Subject:
    """Return the subject of a table's key in the registry. Many tables may share one registry."""
    return Subject(Kind.TABLE, f"{table}/{key}")


def registry_key(table: str, key: str) -> str:
    """Return the name of a table's key in the registry. Many tables may share one registry."""
    return check_key(subject_in(table, key))


def comparable(value: Any) -> Any:
    """Return a sort key as a str, Decimal or bytes. In Python these types sort as in DynamoDB."""
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
    """Return the bytes of a comparable sort key, for hashing. Equal numbers have equal bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Decimal):
        return str(value.normalize(NUMBERS)).encode() if value else b"0"
    return bytes(value)


def table_of(name: str) -> str:
    """Return the name of a table that is given by its name, or by an ARN."""
    if not name.startswith("arn:"):
        return name
    return name.partition(":table/")[2].partition("/")[0]
