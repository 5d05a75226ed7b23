"""The items of a table, each partition key's sorted by sort key. Pure: no time, no limits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from .partitions import TOKENS, token_of
from .values import Item, Native

BINS = 1_024


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

    __slots__ = ("rows", "sorts", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.sorts: list[Any] = []
        self.rows: dict[Native | None, Row] = {}

    def put(self, sort: Native | None, row: Row) -> None:
        if sort not in self.rows:
            if self.sorts and sort < self.sorts[-1]:
                insort(self.sorts, sort)
            else:
                self.sorts.append(sort)
        self.rows[sort] = row

    def remove(self, sort: Native | None) -> None:
        if self.rows.pop(sort, None) is not None:
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
    """Collections by partition key, and in the order of their tokens for scans."""

    def __init__(self) -> None:
        self._collections: dict[Native, Collection] = {}
        self._bins: list[list[tuple[int, Any]]] = [[] for _ in range(BINS)]
        self.count = 0
        self.bytes = 0

    def token(self, hash_: Native) -> int:
        collection = self._collections.get(hash_)
        return token_of(hash_) if collection is None else collection.token

    def get(self, key: Key) -> Row | None:
        collection = self._collections.get(key.hash)
        return None if collection is None else collection.rows.get(key.sort)

    def put(self, key: Key, row: Row) -> None:
        collection = self._collections.get(key.hash)
        if collection is None:
            collection = self._collections[key.hash] = Collection(token_of(key.hash))
            insort(self._bin(collection.token), (collection.token, key.hash))
        old = collection.rows.get(key.sort)
        self.count += old is None
        self.bytes += row.size - (old.size if old else 0)
        collection.put(key.sort, row)

    def remove(self, key: Key) -> None:
        collection = self._collections.get(key.hash)
        old = None if collection is None else collection.rows.get(key.sort)
        if collection is None or old is None:
            return
        collection.remove(key.sort)
        self.count -= 1
        self.bytes -= old.size
        if not collection.rows:
            del self._collections[key.hash]
            self._bin(collection.token).remove((collection.token, key.hash))

    def query(
        self, hash_: Native, bounds: Bounds, forward: bool = True, after: Key | None = None
    ) -> Iterator[Row]:
        collection = self._collections.get(hash_)
        return iter(()) if collection is None else collection.between(bounds, forward, after)

    def scan(self, first: int = 0, until: int = TOKENS, after: Key | None = None) -> Iterator[Row]:
        """Rows whose tokens are in [first, until), in the order of tokens, then of sort keys."""
        start: tuple[Any, ...] = (first,)
        if after is not None:
            token = token_of(after.hash)
            yield from self.query(after.hash, EVERYTHING, True, after)
            start = (token, after.hash)
        for bin_ in islice(self._bins, start[0] * BINS // TOKENS, None):
            position = bisect_left(bin_, start) if after is None else bisect_right(bin_, start)
            for token, hash_ in bin_[position:]:
                if token >= until:
                    return
                yield from self._collections[hash_].between(EVERYTHING, True, None)

    def _bin(self, token: int) -> list[tuple[int, Any]]:
        return self._bins[token * BINS // TOKENS]
