"""Streams: the changes of a table's items, in order, in shards that follow the partitions.

A shard holds the changes of a range of hashes. When a partition splits, each shard whose range is
cut is closed, and gets children that cover its range. So all changes of an item are in one line of
shards. A consumer that reads parents before children reads these changes in order. A merge closes
no shard, since a shard can have only one parent. So the merged partition has two shards.

    parent   ──●──●──●─┐ closed            SequenceNumbers grow over the whole stream
    children           ├──●──●──           records are kept for 24 hours
                       └──●──
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb.wire.errors import ServiceRefused, not_found
from heatsink.stores.dynamodb.wire.keys import Schema
from heatsink.stores.dynamodb.wire.values import Item, admit_item

from .capacity.table import PartitionMap
from .rows import StoredItem

KEPT_S = 24 * 3_600.0
SHARD_S = 4 * 3_600.0
TRIM_S = 1.0
FIRST_NUMBER = 10**20
SERVICE_IDENTITY = {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}


class Change(NamedTuple):
    """A change of one item. With `by_service`, the service deleted it, since it had expired."""

    number: int
    at_s: float
    old: StoredItem | None
    new: StoredItem | None
    by_service: bool


class Shard:
    """The changes of all items whose hash is in [start, end), while the shard was open."""

    def __init__(self, id_: str, parent: str | None, bounds: tuple[int, int], first: int) -> None:
        self.id = id_
        self.parent = parent
        self.start, self.end = bounds
        self.first = first
        self.last: int | None = None
        self.closed_s: float | None = None
        self.trimmed_to = first
        self.changes: list[Change] = []

    def since(self, number: int) -> list[Change]:
        """Return the changes with this sequence number or a higher one."""
        return self.changes[bisect_left(self.changes, (number,)) :]

    def trim(self, until_s: float) -> bool:
        """Drop changes from before `until_s`. Returns whether anything may still be read here."""
        count = next((n for n, one in enumerate(self.changes) if one.at_s >= until_s), None)
        if count is None:
            count = len(self.changes)
        if count:
            self.trimmed_to = self.changes[count - 1].number + 1
            del self.changes[:count]
        return bool(self.changes) or self.closed_s is None or self.closed_s >= until_s

    def describe(self) -> dict[str, Any]:
        numbers = {"StartingSequenceNumber": str(self.first)}
        if self.last is not None:
            numbers["EndingSequenceNumber"] = str(self.last)
        parent = {} if self.parent is None else {"ParentShardId": self.parent}
        return {"ShardId": self.id, **parent, "SequenceNumberRange": numbers}


class StreamSpec(msgspec.Struct, frozen=True):
    """The properties of a stream, which never change."""

    arn: str
    label: str
    table: str
    view: str
    schema: Schema
    key_schema: Any
    region: str


class Stream:
    """The stream of one table. `partitions` is the partition map of the table's limits."""

    def __init__(self, spec: StreamSpec, partitions: PartitionMap[Any], clock: Clock) -> None:
        self.spec = spec
        self.created_s = clock.now_s()
        self.closed_s: float | None = None
        self._clock = clock
        self._partitions = partitions
        self._version = partitions.version
        self._next = FIRST_NUMBER
        self._made = 0
        self._rolled_s = self._trimmed_s = clock.monotonic_s()
        self._shards: dict[str, Shard] = {}
        self._open = PartitionMap(self._opened(None, one.start, one.end) for one in partitions)

    def record(
        self, token: int, old: StoredItem | None, new: StoredItem | None, by_service: bool
    ) -> None:
        """Append the change of an item. A write that changes nothing leaves no record."""
        if old is new or (old is not None and new is not None and old.item == new.item):
            return
        if self._version != self._partitions.version:
            self._follow()
        change = Change(self._next, self._clock.now_s(), old, new, by_service)
        self._open.find(token).changes.append(change)
        self._next += 1

    def _follow(self) -> None:
        """Split the open shards at the bounds of the partitions."""
        self._version = self._partitions.version
        for shard in list(self._open):
            inside = self._partitions.between(shard.start, shard.end)
            cuts = [one.start for one in inside if one.start > shard.start]
            if cuts:
                self._replace(shard, [shard.start, *cuts, shard.end])

    def _replace(self, shard: Shard, edges: list[int]) -> None:
        shard.last = max(self._next - 1, shard.first)
        self._next = max(self._next, shard.last + 1)
        shard.closed_s = self._clock.now_s()
        children = [self._opened(shard.id, *bounds) for bounds in pairwise(edges)]
        self._open.replace([shard], children)

    def _opened(self, parent: str | None, start: int, end: int) -> Shard:
        self._made += 1
        id_ = f"shardId-{int(self._clock.now_s() * 1_000):020}-{self._made:08x}"
        shard = self._shards[id_] = Shard(id_, parent, (start, end), self._next)
        return shard

    def tend(self) -> None:
        """Follow the partitions, replace shards after four hours, and drop old records."""
        now_s = self._clock.monotonic_s()
        if self._version != self._partitions.version:
            self._follow()
        if now_s - self._rolled_s >= SHARD_S and self.closed_s is None:
            self._rolled_s = now_s
            for shard in list(self._open):
                if shard.changes:
                    self._replace(shard, [shard.start, shard.end])
        if now_s - self._trimmed_s >= TRIM_S:
            self._trimmed_s = now_s
            until_s = self._clock.now_s() - KEPT_S
            self._shards = {
                id_: shard for id_, shard in self._shards.items() if shard.trim(until_s)
            }

    def close(self) -> None:
        """End the stream. Its records can still be read for 24 hours."""
        self.closed_s = self._clock.now_s()
        for shard in self._open:
            shard.last = max(self._next - 1, shard.first)
            shard.closed_s = self.closed_s

    @property
    def is_over(self) -> bool:
        """Whether the stream was closed so long ago that all its records are dropped."""
        return self.closed_s is not None and self._clock.now_s() - self.closed_s >= KEPT_S

    @property
    def latest(self) -> int:
        return self._next

    def shards(self) -> list[Shard]:
        if self._version != self._partitions.version and self.closed_s is None:
            self._follow()
        return list(self._shards.values())

    def shard(self, id_: str) -> Shard:
        shard = self._shards.get(id_)
        if shard is None:
            raise not_found(f"Requested resource not found: Shard: {id_} not found")
        return shard

    def shown(self, change: Change) -> dict[str, Any]:
        """Return a change as GetRecords returns it, with the images of the stream's view type."""
        row = change.new or change.old
        assert row is not None
        keys = self.spec.schema.key_values(row.item)
        images: dict[str, Item] = {}
        if change.new is not None and self.spec.view in ("NEW_IMAGE", "NEW_AND_OLD_IMAGES"):
            images["NewImage"] = change.new.item
        if change.old is not None and self.spec.view in ("OLD_IMAGE", "NEW_AND_OLD_IMAGES"):
            images["OldImage"] = change.old.item
        size = sum(map(admit_item, (keys, *images.values())))
        return {
            "eventID": f"{change.number:032x}",
            "eventName": _event(change),
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": self.spec.region,
            "dynamodb": {
                "ApproximateCreationDateTime": int(change.at_s),
                "Keys": keys,
                **images,
                "SequenceNumber": str(change.number),
                "SizeBytes": size,
                "StreamViewType": self.spec.view,
            },
            **({"userIdentity": SERVICE_IDENTITY} if change.by_service else {}),
        }


def _event(change: Change) -> str:
    if change.old is None:
        return "INSERT"
    return "REMOVE" if change.new is None else "MODIFY"


def trimmed() -> ServiceRefused:
    return ServiceRefused(
        "TrimmedDataAccessException",
        "The requested sequence number is older than the oldest record of the shard: records are "
        "kept for 24 hours",
    )
