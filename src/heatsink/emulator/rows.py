"""The rows of a table. Each row is in one partition at any time, even during a move.

A collection holds all items of one partition key. The hash of that key is the collection's token. A
move takes a few collections at a time, in the order of their tokens. Collections between the start
of the move and its frontier are in the target partition. All other collections are in the source
partition. So every key is in exactly one partition. A scan follows the tokens, so it returns each
row once.

    source   start ──────── move.start ≈≈≈≈≈≈ frontier ──────── end
             stays          gone to the target                  not yet
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from heatsink.primitives.keys import seeded_hash
from heatsink.stores.dynamodb.wire.expressions.key_conditions import EVERYTHING, Bounds
from heatsink.stores.dynamodb.wire.keys import Key, Part
from heatsink.stores.dynamodb.wire.values import Item

from .capacity.table import SPACE, PartitionMap, equal_ranges

BINS = 64
KNOWN_MAX = 1 << 16
_hash = seeded_hash(b"")


class StoredItem(NamedTuple):
    item: Item
    size: int


class Collection:
    """All items of one partition key."""

    __slots__ = ("bytes", "rows", "sorts")

    def __init__(self) -> None:
        self.bytes = 0
        self.sorts: list[Any] = []
        self.rows: dict[Part | None, StoredItem] = {}

    def put(self, sort: Part | None, row: StoredItem) -> None:
        old = self.rows.get(sort)
        if old is not None:
            self.bytes -= old.size
        elif self.sorts and sort < self.sorts[-1]:
            insort(self.sorts, sort)
        else:
            self.sorts.append(sort)
        self.rows[sort] = row
        self.bytes += row.size

    def remove(self, sort: Part | None) -> None:
        old = self.rows.pop(sort, None)
        if old is not None:
            self.bytes -= old.size
            del self.sorts[bisect_left(self.sorts, sort) if sort is not None else 0]

    def between(self, bounds: Bounds, forward: bool, after: Key | None) -> Iterator[StoredItem]:
        """Yield the rows within `bounds`, by sort key, ascending if `forward`.

        `after` is the last key of the previous page. Rows are read lazily, so a page costs only the
        rows that it returns.
        """
        first, last = self._range(bounds)
        if after is not None:
            first, last = self._continued(first, last, forward, after.sort)
        positions = range(first, last) if forward else range(last - 1, first - 1, -1)
        return (self.rows[self.sorts[position]] for position in positions)

    def _range(self, bounds: Bounds) -> tuple[int, int]:
        if bounds.prefix is not None:
            return self._beginning_with(bounds.prefix)
        first, last = 0, len(self.sorts)
        if bounds.low is not None:
            first = (bisect_left if bounds.low_included else _after_all)(self.sorts, bounds.low)
        if bounds.high is not None:
            last = (_after_all if bounds.high_included else bisect_left)(self.sorts, bounds.high)
        return first, max(first, last)

    def _beginning_with(self, prefix: Any) -> tuple[int, int]:
        first = bisect_left(self.sorts, prefix)
        if type(prefix) is not tuple:
            length = len(prefix)
            return first, bisect_right(self.sorts, prefix, lo=first, key=lambda s: s[:length])
        at, length = len(prefix) - 1, len(prefix[-1])
        return first, bisect_right(
            self.sorts, prefix, lo=first, key=lambda s: (*s[:at], s[at][:length])
        )

    def _continued(
        self, first: int, last: int, forward: bool, after: Part | None
    ) -> tuple[int, int]:
        if after is None:
            return last, last
        if forward:
            return max(first, bisect_right(self.sorts, after)), last
        return first, min(last, bisect_left(self.sorts, after))


def _after_all(sorts: list[Any], bound: Any) -> int:
    """Return the position behind all sort keys that are up to `bound` or begin with it."""
    if type(bound) is not tuple:
        return bisect_right(sorts, bound)
    length = len(bound)
    return bisect_right(sorts, bound, key=lambda sort: sort[:length])


class Items:
    """Rows by partition key, ordered by the keys' tokens (hashes).

    Access is fastest for tokens in [start, end). Tokens outside that range are allowed, too.
    """

    def __init__(self, start: int, end: int) -> None:
        self._start = start
        self._width = -(-(end - start) // BINS)
        self._bins: list[list[tuple[int, Any]]] = [[] for _ in range(BINS)]
        self.collections: dict[Part, Collection] = {}
        self.count = 0
        self.bytes = 0

    def get(self, key: Key) -> StoredItem | None:
        collection = self.collections.get(key.hash)
        return None if collection is None else collection.rows.get(key.sort)

    def put(self, token: int, key: Key, row: StoredItem) -> None:
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

    def attach(self, token: int, hash_: Part, collection: Collection) -> None:
        """Add the collection of the partition key `hash_`."""
        self.collections[hash_] = collection
        insort(self._bins[self._bin(token)], (token, hash_))
        self.count += len(collection.rows)
        self.bytes += collection.bytes

    def detach(self, token: int, hash_: Part) -> Collection:
        collection = self.collections.pop(hash_)
        bin_ = self._bins[self._bin(token)]
        del bin_[bisect_left(bin_, (token, hash_))]
        self.count -= len(collection.rows)
        self.bytes -= collection.bytes
        return collection

    def query(
        self, hash_: Part, bounds: Bounds, forward: bool = True, after: Key | None = None
    ) -> Iterator[StoredItem]:
        collection = self.collections.get(hash_)
        return iter(()) if collection is None else collection.between(bounds, forward, after)

    def places(self, after: tuple[Any, ...], until: int) -> Iterator[tuple[int, Any]]:
        """Yield (token, partition key) in order, up to the token `until`, which is excluded.

        With `after=(token,)`, start with that token. With `after=(token, key)`, start after that
        key.
        """
        for bin_ in islice(self._bins, self._bin(after[0]), None):
            for position in range(bisect_right(bin_, after), len(bin_)):
                if bin_[position][0] >= until:
                    return
                yield bin_[position]

    def _bin(self, token: int) -> int:
        return min(max((token - self._start) // self._width, 0), BINS - 1)


@lru_cache(KNOWN_MAX)
def token_of(key: Part) -> int:
    """Return the token of a partition key: a hash that is the same in every run."""
    if isinstance(key, str):
        return _hash(key.encode())
    if isinstance(key, tuple):
        return _hash(b"".join(token_of(part).to_bytes(8) for part in key))
    return _hash(str(key).encode() if isinstance(key, Decimal) else key)


class RowShelf:
    """The rows of one partition, which holds the tokens in [start, end)."""

    __slots__ = ("end", "items", "move", "start")

    def __init__(self, start: int, end: int, items: Items | None = None) -> None:
        self.start = start
        self.end = end
        self.items = items or Items(start, end)
        self.move: RowsMove | None = None

    def held(self) -> list[Items]:
        """Return the items that hold this partition's rows.

        During a split, these are the partition's own items and those of the new partition. Until
        the split is complete, rows that have moved still belong to this partition.
        """
        is_split = self.move is not None and self.move.start > self.start
        return [self.items, self.move.target] if is_split and self.move else [self.items]


class RowsMove:
    """Moves the rows of a partition whose tokens are `start` or higher to another partition."""

    __slots__ = ("_end", "_source", "frontier", "moved", "start", "target")

    def __init__(self, source: RowShelf, start: int, target: Items) -> None:
        self._source = source.items
        self._end = source.end
        self.start = self.frontier = start
        self.target = target
        self.moved = 0

    def step(self, rows: int) -> bool:
        """Move about `rows` rows. Return True when all rows have moved.

        All rows of a partition key move in the same step.
        """
        places: list[tuple[int, Any]] = []
        moving, frontier = 0, self._end
        for place in self._source.places((self.frontier,), self._end):
            if moving >= rows and place[0] != places[-1][0]:
                frontier = place[0]
                break
            places.append(place)
            moving += len(self._source.collections[place[1]].rows)
        for token, hash_ in places:
            self.target.attach(token, hash_, self._source.detach(token, hash_))
        self.frontier = frontier
        self.moved += moving
        return frontier == self._end


class Rows:
    """All rows of a table, or of its lagging replica."""

    def __init__(self, partitions: int = 1) -> None:
        self.map = PartitionMap(RowShelf(*bounds) for bounds in equal_ranges(partitions))

    def get(self, key: Key) -> StoredItem | None:
        return self._items_at(token_of(key.hash)).get(key)

    def put(self, key: Key, row: StoredItem) -> None:
        token = token_of(key.hash)
        self._items_at(token).put(token, key, row)

    def remove(self, key: Key) -> None:
        token = token_of(key.hash)
        self._items_at(token).remove(token, key)

    def query(
        self, hash_: Part, bounds: Bounds, forward: bool = True, after: Key | None = None
    ) -> Iterator[StoredItem]:
        return self._items_at(token_of(hash_)).query(hash_, bounds, forward, after)

    def scan(
        self, first: int = 0, until: int = SPACE, after: Key | None = None
    ) -> Iterator[StoredItem]:
        """Yield the rows whose tokens are in [first, until), by token and then by sort key.

        `after` is the last key of the previous page.
        """
        start: tuple[Any, ...] = (first,)
        if after is not None:
            start = (token_of(after.hash), after.hash)
            yield from self.query(after.hash, EVERYTHING, True, after)
        for items, low, high in self._pieces(start[0], until):
            for _, hash_ in items.places(max(start, (low,)), min(until, high)):
                yield from items.query(hash_, EVERYTHING)

    def bytes_of(self, hash_: Part) -> int:
        """Return the size of all items with this partition key."""
        collection = self._items_at(token_of(hash_)).collections.get(hash_)
        return 0 if collection is None else collection.bytes

    def key_at(self, token: int) -> Part | None:
        """Return the partition key with this token. None if the table has no rows of it."""
        found = self._items_at(token).places((token,), token + 1)
        return next((hash_ for _, hash_ in found), None)

    def begin_split(self, at: int) -> RowsMove:
        shelf = self.map.find(at)
        shelf.move = RowsMove(shelf, at, Items(at, shelf.end))
        return shelf.move

    def end_split(self, at: int) -> None:
        old = self.map.find(at)
        assert old.move is not None
        new = [RowShelf(old.start, at, old.items), RowShelf(at, old.end, old.move.target)]
        self.map.replace([old], new)

    def begin_merge(self, at: int) -> RowsMove:
        """Start to move the rows of the partition at `at` to the partition before it."""
        right = self.map.find(at)
        right.move = RowsMove(right, at, self.map.find(at - 1).items)
        return right.move

    def end_merge(self, at: int) -> None:
        left, right = self.map.find(at - 1), self.map.find(at)
        self.map.replace([left, right], [RowShelf(left.start, right.end, left.items)])

    def size(self, start: int = 0, end: int = SPACE) -> tuple[int, int]:
        """Return the number of rows and of bytes in the partitions that overlap [start, end)."""
        held = [items for shelf in self.map.between(start, end) for items in shelf.held()]
        return sum(items.count for items in held), sum(items.bytes for items in held)

    def _items_at(self, token: int) -> Items:
        shelf = self.map.find(token)
        move = shelf.move
        if move is not None and move.start <= token < move.frontier:
            return move.target
        return shelf.items

    def _pieces(self, first: int, until: int) -> Iterator[tuple[Items, int, int]]:
        """Yield (items, low, high) in order: `items` hold all tokens in [low, high).

        While rows move, one partition's tokens are in several of these. The ranges together cover
        all tokens from `first` up to `until`.
        """
        for shelf in self.map.between(first, until):
            move = shelf.move
            if move is None:
                yield shelf.items, shelf.start, shelf.end
            else:
                yield shelf.items, shelf.start, move.start
                yield move.target, move.start, move.frontier
                yield shelf.items, move.frontier, shelf.end
