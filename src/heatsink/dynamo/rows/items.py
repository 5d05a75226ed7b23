"""The items of a range of tokens, each partition key's sorted by sort key. No time, no limits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from heatsink.dynamo.values import Item, Native

BINS = 64


class Key(NamedTuple):
    """A primary key. A table without sort keys has `None` there."""

    hash: Native
    sort: Native | None


class Row(NamedTuple):
    item: Item
    size: int


class Bounds(NamedTuple):
    """Of sort keys. A prefix excludes the rest."""

    low: Native | None = None
    low_included: bool = True
    high: Native | None = None
    high_included: bool = True
    prefix: str | bytes | None = None


EVERYTHING = Bounds()


class Collection:
    """All items of one partition key."""

    __slots__ = ("bytes", "rows", "sorts")

    def __init__(self) -> None:
        self.bytes = 0
        self.sorts: list[Any] = []
        self.rows: dict[Native | None, Row] = {}

    def put(self, sort: Native | None, row: Row) -> None:
        old = self.rows.get(sort)
        if old is not None:
            self.bytes -= old.size
        elif self.sorts and sort < self.sorts[-1]:
            insort(self.sorts, sort)
        else:
            self.sorts.append(sort)
        self.rows[sort] = row
        self.bytes += row.size

    def remove(self, sort: Native | None) -> None:
        old = self.rows.pop(sort, None)
        if old is not None:
            self.bytes -= old.size
            del self.sorts[bisect_left(self.sorts, sort) if sort is not None else 0]

    def between(self, bounds: Bounds, forward: bool, after: Key | None) -> Iterator[Row]:
        """Rows in order, lazily: a page costs what it returns, not what the key holds."""
        first, last = self._range(bounds)
        if after is not None:
            first, last = self._continued(first, last, forward, after.sort)
        positions = range(first, last) if forward else range(last - 1, first - 1, -1)
        return (self.rows[self.sorts[position]] for position in positions)

    def _range(self, bounds: Bounds) -> tuple[int, int]:
        if bounds.prefix is not None:
            length = len(bounds.prefix)
            first = bisect_left(self.sorts, bounds.prefix)
            return first, bisect_right(
                self.sorts, bounds.prefix, lo=first, key=lambda sort: sort[:length]
            )
        first, last = 0, len(self.sorts)
        if bounds.low is not None:
            first = (bisect_left if bounds.low_included else bisect_right)(self.sorts, bounds.low)
        if bounds.high is not None:
            last = (bisect_right if bounds.high_included else bisect_left)(self.sorts, bounds.high)
        return first, last

    def _continued(
        self, first: int, last: int, forward: bool, after: Native | None
    ) -> tuple[int, int]:
        if after is None:
            return last, last
        if forward:
            return max(first, bisect_right(self.sorts, after)), last
        return first, min(last, bisect_left(self.sorts, after))


class Items:
    """Collections by partition key, and in the order of their tokens for scans and moves.

    The range is the one in which most tokens lie; others are kept too, a little slower.
    """

    def __init__(self, start: int, end: int) -> None:
        self._start = start
        self._width = -(-(end - start) // BINS)
        self._bins: list[list[tuple[int, Any]]] = [[] for _ in range(BINS)]
        self.collections: dict[Native, Collection] = {}
        self.count = 0
        self.bytes = 0

    def get(self, key: Key) -> Row | None:
        collection = self.collections.get(key.hash)
        return None if collection is None else collection.rows.get(key.sort)

    def put(self, token: int, key: Key, row: Row) -> None:
        collection = self.collections.get(key.hash)
        if collection is None:
            collection = Collection()
            self.attach(token, key.hash, collection)
        count, bytes_ = len(collection.rows), collection.bytes
        collection.put(key.sort, row)
        self.count += len(collection.rows) - count
        self.bytes += collection.bytes - bytes_

    def remove(self, token: int, key: Key) -> None:
        collection = self.collections.get(key.hash)
        if collection is None or key.sort not in collection.rows:
            return
        bytes_ = collection.bytes
        collection.remove(key.sort)
        self.count -= 1
        self.bytes += collection.bytes - bytes_
        if not collection.rows:
            self.detach(token, key.hash)

    def attach(self, token: int, hash_: Native, collection: Collection) -> None:
        """Take over all rows of a partition key at once."""
        self.collections[hash_] = collection
        insort(self._bins[self._bin(token)], (token, hash_))
        self.count += len(collection.rows)
        self.bytes += collection.bytes

    def detach(self, token: int, hash_: Native) -> Collection:
        collection = self.collections.pop(hash_)
        bin_ = self._bins[self._bin(token)]
        del bin_[bisect_left(bin_, (token, hash_))]
        self.count -= len(collection.rows)
        self.bytes -= collection.bytes
        return collection

    def query(
        self, hash_: Native, bounds: Bounds, forward: bool = True, after: Key | None = None
    ) -> Iterator[Row]:
        collection = self.collections.get(hash_)
        return iter(()) if collection is None else collection.between(bounds, forward, after)

    def places(self, after: tuple[Any, ...], until: int) -> Iterator[tuple[int, Any]]:
        """Tokens below `until` and their keys in order, from (token,) on or after (token, key)."""
        for bin_ in islice(self._bins, self._bin(after[0]), None):
            for position in range(bisect_right(bin_, after), len(bin_)):
                if bin_[position][0] >= until:
                    return
                yield bin_[position]

    def _bin(self, token: int) -> int:
        return min(max((token - self._start) // self._width, 0), BINS - 1)
