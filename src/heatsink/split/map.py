"""Which partition holds a hash: ranges over the space of 64-bit hashes, and a version.

The map owns the ranges and nothing else. Every hash lies in exactly one range; a change replaces
neighbours by others that cover the same range, and raises the version.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

SPACE = 1 << 64


class Ranged(Protocol):
    """Something that holds the hashes in [start, end)."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


P = TypeVar("P", bound=Ranged)


def equal_ranges(count: int) -> list[tuple[int, int]]:
    """The whole space in `count` ranges of one size."""
    bounds = [number * SPACE // count for number in range(count + 1)]
    return list(pairwise(bounds))


class PartitionMap(Generic[P]):
    def __init__(self, partitions: Iterable[P]) -> None:
        self._partitions = list(partitions)
        self._starts = [one.start for one in self._partitions]
        assert _cover(self._partitions, 0, SPACE)
        self.version = 1

    def find(self, hash_: int) -> P:
        return self._partitions[bisect_right(self._starts, hash_) - 1]

    def replace(self, old: Iterable[P], new: Iterable[P]) -> None:
        """Neighbours by others over the same range: a split, an isolation or a merge."""
        leaving, coming = list(old), list(new)
        first = bisect_right(self._starts, leaving[0].start) - 1
        last = first + len(leaving)
        assert self._partitions[first:last] == leaving
        assert _cover(coming, leaving[0].start, leaving[-1].end)
        self._partitions[first:last] = coming
        self._starts[first:last] = [one.start for one in coming]
        self.version += 1

    def between(self, first: int, until: int) -> Iterator[P]:
        """The partitions that hold hashes of [first, until), in order."""
        position = bisect_right(self._starts, first) - 1
        while position < len(self._partitions) and self._starts[position] < until:
            yield self._partitions[position]
            position += 1

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[P]:
        return iter(self._partitions)


def _cover(partitions: list[P], start: int, end: int) -> bool:
    edges = [start, *(one.end for one in partitions)]
    return edges[-1] == end and all(
        one.start == edge < one.end for one, edge in zip(partitions, edges, strict=False)
    )
