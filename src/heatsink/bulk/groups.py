"""Chunks of items that have the same limit keys, for batches whose limits count fields of items.

All items of a part need the same limits, so `submit` makes one part for each set of keys. An item's
index is its place in the order of submission, and a chunk of a group carries the indexes of its
items. The batch's record counts items in *stored order* instead: the order in which chunks are
closed. This order follows from the items alone. So a repeated submission can tell which items the
queue's servers have lost.

If the batch keeps results, a chunk ends where the keys change. Then the stored order is the order
of submission, in which results are read.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import each

from .batch import (
    CHUNK_BYTES_MAX,
    CHUNK_ITEMS_MAX,
    ITEMS_MAX,
    Batch,
    Cursor,
    Packed,
    encoded,
    plain,
)
from .batch import packed as packed_chunk
from .limits import Counting, lane_with, needs_of

GROUPS_MAX = 20_000  # each is a part of the batch: every command on a batch calls all parts
OPEN_BYTES_MAX = 8 << 20

Grouped = tuple[str, Packed]
"""The lane of a chunk, and the chunk."""


class Group:
    __slots__ = ("bodies", "bytes", "indexes")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.indexes: list[int] = []
        self.bytes = 0


class Grouper:
    """Packs items into chunks. All items of a chunk need places at the same limit keys.

    With `wanted`, only the items at these indexes are packed: those that an accepted batch has
    lost.
    """

    def __init__(self, batch: Batch, wanted: Cursor | None = None) -> None:
        self.count = 0
        self._batch = batch
        self._wanted = wanted
        self._stored = 0
        self._open: dict[str, Group] = {}
        self._open_bytes = 0
        self._lanes: set[str] = set()

    async def chunks(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        note: Callable[[object], None] | None = None,
    ) -> AsyncIterator[Grouped]:
        """Yield the chunks of these items. `note` is called with each item."""
        async for given in each("items", items):
            item = given if type(given) is dict else plain(given)
            for chunk in self.add(item):
                yield chunk
            if note is not None:
                note(item)
        for chunk in self.rest():
            yield chunk

    def add(self, item: object) -> list[Grouped]:
        """Add an item. Returns the chunks that are full now."""
        batch, body = self._batch, encoded(self.count, item)
        needs = needs_of(counting(batch), batch.action, batch.tenant, item)
        lane = lane_with(batch.lane, needs)
        self._lanes.add(lane)
        if len(self._lanes) > GROUPS_MAX:
            raise InvalidSetting(
                f"the items have more than {GROUPS_MAX:,} different keys of limits: submit them "
                "in several batches",
                field="items",
            )
        full: list[Grouped] = []
        if (batch.result_bytes or batch.then) and self._open and lane not in self._open:
            full += self.rest()
        group = self._open.setdefault(lane, Group())
        if group.bytes + len(body) > CHUNK_BYTES_MAX and group.bodies:
            full += self._close(lane)
            group = self._open.setdefault(lane, Group())
        group.bodies.append(body)
        group.indexes.append(self.count)
        group.bytes += len(body)
        self._open_bytes += len(body)
        self.count += 1
        if self.count > ITEMS_MAX:
            raise InvalidSetting(f"a batch has at most {ITEMS_MAX:,} items: submit several batches")
        if len(group.bodies) == CHUNK_ITEMS_MAX:
            full += self._close(lane)
        while self._open_bytes > OPEN_BYTES_MAX:
            full += self._close(next(iter(self._open)))
        return full

    def rest(self) -> list[Grouped]:
        """Return the chunks that are not full."""
        return [chunk for lane in list(self._open) for chunk in self._close(lane)]

    def _close(self, lane: str) -> list[Grouped]:
        group = self._open.pop(lane)
        self._open_bytes -= group.bytes
        first, self._stored = self._stored, self._stored + len(group.bodies)
        return [
            (lane, self._packed(group, first, start, end))
            for start, end in self._kept(first, len(group.bodies))
        ]

    def _kept(self, first: int, count: int) -> Iterable[tuple[int, int]]:
        """Return the ranges of a group's items that are stored."""
        if self._wanted is None:
            return [(0, count)]
        kept: list[tuple[int, int]] = []
        for offset in range(count):
            if not self._wanted.has(first + offset):
                continue
            if kept and kept[-1][1] == offset:
                kept[-1] = kept[-1][0], offset + 1
            else:
                kept.append((offset, offset + 1))
        return kept

    def _packed(self, group: Group, first: int, start: int, end: int) -> Packed:
        indexes = group.indexes[start:end]
        body = packed_chunk(first + start, group.bodies[start:end], indexes)
        return Packed(first + start, end - start, body)


def counting(batch: Batch) -> tuple[Counting, ...]:
    return tuple(Counting(*limit) for limit in batch.limits)


def is_grouped(batch: Batch) -> bool:
    """Return whether items of the batch may need places at different keys of limits."""
    return any(limit.key for limit in counting(batch))


def common_lane(batch: Batch) -> str:
    """Return the lane that all items of a batch have.

    If the batch is grouped by limits, return the batch's own lane: the items' lanes may differ.
    """
    if is_grouped(batch):
        return batch.lane
    return lane_with(batch.lane, needs_of(counting(batch), batch.action, batch.tenant, None))


def of_group(hand: Sequence[int], lane: str) -> int:
    """Return the partition for a group. `hand` are the batch's partitions, `lane` the group's lane.

    All items of the group go to this one partition.
    """
    return hand[int.from_bytes(blake2b(lane.encode(), digest_size=4).digest(), "big") % len(hand)]
