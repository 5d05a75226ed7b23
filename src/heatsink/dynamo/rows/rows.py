"""The rows of a table, each in the partition that holds it, also while they move to another.

A move takes collections over in the order of their tokens, a few at a time. What lies before its
frontier is in the target, the rest still in the source, so every key is in exactly one place at any
time and a scan, which goes by tokens, meets each row once.

    source   start ──────── move.start ≈≈≈≈≈≈ frontier ──────── end
             stays          gone to the target                  not yet
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from heatsink.dynamo.values import Native
from heatsink.split.map import SPACE, PartitionMap, equal_ranges

from .items import EVERYTHING, Bounds, Items, Key, Row
from .tokens import token_of


class Shelf:
    """The rows of the tokens in [start, end)."""

    __slots__ = ("end", "items", "move", "start")

    def __init__(self, start: int, end: int, items: Items | None = None) -> None:
        self.start = start
        self.end = end
        self.items = items or Items(start, end)
        self.move: Move | None = None

    def held(self) -> list[Items]:
        """A partition that is being split still answers for what has moved."""
        is_split = self.move is not None and self.move.start > self.start
        return [self.items, self.move.target] if is_split and self.move else [self.items]


class Move:
    """Takes the rows from `start` on out of a shelf, into the items of another partition."""

    __slots__ = ("_end", "_source", "frontier", "moved", "start", "target")

    def __init__(self, source: Shelf, start: int, target: Items) -> None:
        self._source = source.items
        self._end = source.end
        self.start = self.frontier = start
        self.target = target
        self.moved = 0

    def step(self, rows: int) -> bool:
        """Move about so many rows; True when all have moved. A key's rows move together."""
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
    """All rows of a table, or of a replica of it."""

    def __init__(self, partitions: int = 1) -> None:
        self.map = PartitionMap(Shelf(*bounds) for bounds in equal_ranges(partitions))

    def get(self, key: Key) -> Row | None:
        return self._items_at(token_of(key.hash)).get(key)

    def put(self, key: Key, row: Row) -> None:
        token = token_of(key.hash)
        self._items_at(token).put(token, key, row)

    def remove(self, key: Key) -> None:
        token = token_of(key.hash)
        self._items_at(token).remove(token, key)

    def query(
        self, hash_: Native, bounds: Bounds, forward: bool = True, after: Key | None = None
    ) -> Iterator[Row]:
        return self._items_at(token_of(hash_)).query(hash_, bounds, forward, after)

    def scan(self, first: int = 0, until: int = SPACE, after: Key | None = None) -> Iterator[Row]:
        """Rows whose tokens are in [first, until), in the order of tokens, then of sort keys."""
        start: tuple[Any, ...] = (first,)
        if after is not None:
            start = (token_of(after.hash), after.hash)
            yield from self.query(after.hash, EVERYTHING, True, after)
        for items, low, high in self._pieces(start[0], until):
            for _, hash_ in items.places(max(start, (low,)), min(until, high)):
                yield from items.query(hash_, EVERYTHING)

    def key_at(self, token: int) -> Native | None:
        """A partition key by its token, if there are rows of it."""
        found = self._items_at(token).places((token,), token + 1)
        return next((hash_ for _, hash_ in found), None)

    def begin_split(self, at: int) -> Move:
        shelf = self.map.find(at)
        shelf.move = Move(shelf, at, Items(at, shelf.end))
        return shelf.move

    def end_split(self, at: int) -> None:
        old = self.map.find(at)
        assert old.move is not None
        new = [Shelf(old.start, at, old.items), Shelf(at, old.end, old.move.target)]
        self.map.replace([old], new)

    def begin_merge(self, at: int) -> Move:
        """The partition that begins at `at` goes into the one before."""
        right = self.map.find(at)
        right.move = Move(right, at, self.map.find(at - 1).items)
        return right.move

    def end_merge(self, at: int) -> None:
        left, right = self.map.find(at - 1), self.map.find(at)
        self.map.replace([left, right], [Shelf(left.start, right.end, left.items)])

    def size(self, start: int = 0, end: int = SPACE) -> tuple[int, int]:
        """How many rows the partitions of a range hold, and how many bytes."""
        held = [items for shelf in self.map.between(start, end) for items in shelf.held()]
        return sum(items.count for items in held), sum(items.bytes for items in held)

    def _items_at(self, token: int) -> Items:
        shelf = self.map.find(token)
        move = shelf.move
        if move is not None and move.start <= token < move.frontier:
            return move.target
        return shelf.items

    def _pieces(self, first: int, until: int) -> Iterator[tuple[Items, int, int]]:
        """Where the rows of [first, until) are, in order, and which tokens of it each piece has."""
        for shelf in self.map.between(first, until):
            move = shelf.move
            if move is None:
                yield shelf.items, shelf.start, shelf.end
            else:
                yield shelf.items, shelf.start, move.start
                yield move.target, move.start, move.frontier
                yield shelf.items, move.frontier, shelf.end
