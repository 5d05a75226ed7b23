"""Items of a batch: encoded one by one, stored in chunks, numbered from 0.

A batch's record keeps which items went into which part, so that it can name the ones that a server
has lost. It keeps them as runs: consecutive chunks of equal size. A large batch has a few hundred.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
Span = tuple[int, int]
"""A range of items: the first index, and how many."""
Run = tuple[int, int, int]
"""Consecutive chunks: the first item, the number of chunks, and the items in each."""
Gap = tuple[int, int, int]
"""Missing items: a chunk's number, an offset in it, and how many; -1 is all from there on."""
NAMED_MAX = 5  # spans that a message names


def encoded(index: int, item: object) -> bytes:
    try:
        body = _encode(item)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidBody(
            f"item {index} cannot be stored ({error}): items are JSON values or bytes"
        ) from None
    if len(body) > ITEM_BYTES_MAX:
        raise InvalidBody(
            f"item {index} has {len(body):,} bytes, more than {ITEM_BYTES_MAX:,}: "
            "store it elsewhere and submit its name"
        )
    return body


def packed(first: int, bodies: list[bytes]) -> bytes:
    """Encode a chunk: the index of its first item, and its encoded items."""
    return _encode((first, [msgspec.Raw(body) for body in bodies]))


def unpacked(body: bytes) -> tuple[int, list[Any]]:
    return _decode(body)


def digest_of(body: bytes) -> int:
    """A chunk's checksum: 48 bits, so that Lua's numbers hold it exactly, even when added up."""
    return int(sha1(body, usedforsecurity=False).hexdigest()[:12], 16)


def digests_added(one: int, other: int) -> int:
    """The checksum of several chunks, whatever their order."""
    return (one + other) % (1 << 48)


class Packed(msgspec.Struct, frozen=True):
    """An encoded chunk: the index of its first item, the number of items, and the body."""

    first: int
    count: int
    body: bytes


class Chunker:
    """Packs items into chunks; the indexes in a chunk are consecutive."""

    def __init__(self) -> None:
        self.count = 0
        self._bodies: list[bytes] = []
        self._bytes = 0

    def add(self, item: object) -> Packed | None:
        """Add an item; return a chunk when one is full, perhaps without the new item."""
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
        """Count the next item without storing it."""
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


def add_chunk(runs: list[Run], first: int, count: int) -> None:
    """Append a chunk to the runs."""
    if runs:
        start, chunks, each = runs[-1]
        if each == count and start + chunks * each == first:
            runs[-1] = (start, chunks + 1, each)
            return
    runs.append((first, 1, count))


def chunks_in(runs: Iterable[Run]) -> int:
    return sum(chunks for _, chunks, _ in runs)


def spans_of(runs: Iterable[Run]) -> tuple[Span, ...]:
    return merged((first, chunks * each) for first, chunks, each in runs)


def span_of_gap(runs: Iterable[Run], gap: Gap) -> Span:
    """The range of items that a gap covers."""
    number, offset, count = gap
    for first, chunks, each in runs:
        if number < chunks:
            left = each - offset
            return first + number * each + offset, left if count < 0 else min(count, left)
        number -= chunks
    return 0, 0


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sort ranges and join those that touch."""
    joined: list[Span] = []
    for first, count in sorted(spans):
        if joined and first <= joined[-1][0] + joined[-1][1]:
            start, length = joined[-1]
            joined[-1] = start, max(length, first + count - start)
        elif count:
            joined.append((first, count))
    return tuple(joined)


def without(spans: Iterable[Span], taken: Iterable[Span]) -> tuple[Span, ...]:
    """The items of `spans` that are not in `taken`."""
    left = list(merged(spans))
    for start, length in taken:
        pieces = []
        for first, count in left:
            before = min(max(start - first, 0), count)
            after = min(max(first + count - start - length, 0), count)
            pieces += [(first, before), (first + count - after, after)]
        left = [piece for piece in pieces if piece[1] > 0]
    return merged(left)


def total(spans: Iterable[Span]) -> int:
    return sum(count for _, count in spans)


def named(spans: Sequence[Span]) -> str:
    """For a message: "7, 1,000 to 1,999 and 3 more ranges"."""
    words = [
        f"{first:,}" if count == 1 else f"{first:,} to {first + count - 1:,}"
        for first, count in spans[:NAMED_MAX]
    ]
    if len(spans) > NAMED_MAX:
        words.append(f"{len(spans) - NAMED_MAX} more ranges")
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


class Cursor:
    """Tests whether spans contain an index; indexes must be passed in rising order."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = iter(spans)
        self._first, self._end = 0, 0
        self._advance()

    def _advance(self) -> None:
        first, count = next(self._spans, (1 << 62, 1))
        self._first, self._end = first, first + count

    def has(self, index: int) -> bool:
        while index >= self._end:
            self._advance()
        return index >= self._first
