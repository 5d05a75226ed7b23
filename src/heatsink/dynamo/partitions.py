"""Which partition holds a partition key: ranges over the space of its 64-bit hashes.

The map owns the ranges and nothing else. What a partition may do per second is `capacity`'s; to
split one means to replace it in the map by two that share its range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Generic, TypeVar

from heatsink.hashing import seeded_hash

from .values import Native

TOKENS = 1 << 64
P = TypeVar("P")

_hash = seeded_hash(b"")


def token_of(key: Native) -> int:
    """Where a partition key lies: the same in every run, even for keys that differ by one."""
    if isinstance(key, str):
        return _hash(key.encode())
    return _hash(str(key).encode() if isinstance(key, Decimal) else key)


class PartitionMap(Generic[P]):
    """Equal ranges at first. Every token lies in exactly one partition."""

    def __init__(self, count: int, make: Callable[[], P]) -> None:
        self._starts = [number * TOKENS // count for number in range(count)]
        self._partitions = [make() for _ in range(count)]

    def at(self, token: int) -> P:
        return self._partitions[bisect_right(self._starts, token) - 1]

    def number_at(self, token: int) -> int:
        return bisect_right(self._starts, token) - 1

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[P]:
        return iter(self._partitions)
