"""Items on their way in and out: encoded one by one, stored in chunks, counted from 0."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

import msgspec

from heatsink.errors import InvalidBody, InvalidSetting

ITEM_BYTES_MAX = 256 * 1024
CHUNK_BYTES_MAX = 256 * 1024
CHUNK_ITEMS_MAX = 100
ITEMS_MAX = 50_000_000

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[Any]]).decode


def encoded(index: int, item: object) -> bytes:
    try:
        body = _encode(item)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidBody(
            f"item {index} cannot be stored ({error}): items are JSON values or bytes"
        ) from None
    if len(body) > ITEM_BYTES_MAX:
        raise InvalidBody(
            f"item {index} has {len(body):,} bytes, the most is {ITEM_BYTES_MAX:,}: "
            "store it elsewhere and submit its name"
        )
    return body


def packed(first: int, bodies: list[bytes]) -> bytes:
    """One chunk: the index of its first item, and the items as they were encoded."""
    return _encode((first, [msgspec.Raw(body) for body in bodies]))


def unpacked(body: bytes) -> tuple[int, list[Any]]:
    return _decode(body)


def digest_of(body: bytes) -> int:
    """A chunk's checksum, 48 bits of it: what Lua's numbers hold exactly, also when they add up."""
    return int(sha1(body, usedforsecurity=False).hexdigest()[:12], 16)


def digests_added(one: int, other: int) -> int:
    """The checksum of chunks together, in whatever order they come."""
    return (one + other) % (1 << 48)


class Packed(msgspec.Struct, frozen=True):
    """A full chunk: the index of its first item, how many there are, and their encoded form."""

    first: int
    count: int
    body: bytes


class Chunker:
    """Collects items until they fill a chunk. The items of a chunk follow each other."""

    def __init__(self) -> None:
        self.count = 0
        self._bodies: list[bytes] = []
        self._bytes = 0

    def add(self, item: object) -> Packed | None:
        """A chunk when one is full, without the new item if that has no room."""
        body = encoded(self.count, item)
        full = None
        if self._bytes + len(body) > CHUNK_BYTES_MAX:
            full = self.rest()
        self._bodies.append(body)
        self._bytes += len(body)
        self._count_one()
        if len(self._bodies) == CHUNK_ITEMS_MAX:
            full = full or self.rest()
        return full

    def skip(self) -> Packed | None:
        """Leave the next item out."""
        full = self.rest()
        self._count_one()
        return full

    def _count_one(self) -> None:
        self.count += 1
        if self.count > ITEMS_MAX:
            raise InvalidSetting(f"a batch has at most {ITEMS_MAX:,} items: submit several")

    def rest(self) -> Packed | None:
        if not self._bodies:
            return None
        first, bodies = self.count - len(self._bodies), self._bodies
        self._bodies, self._bytes = [], 0
        return Packed(first, len(bodies), packed(first, bodies))
