"""One table: its keys, rows, lagging replica and limits, and how its partitions adapt."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.keys import Key, Schema
from heatsink.stores.dynamodb.wire.values import Item

from .adaptation import Adaptation, TableReport
from .capacity.limits import CapacityVerdict
from .expiry import Expiry, Walk
from .indexes import BACKFILLED_AT_ONCE, GlobalIndex, IndexChange, LocalIndex, change_of
from .rows import Rows, StoredItem, token_of
from .streams import Stream
from .units import Operation, TableLimits, Throughput


class TableSpec(msgspec.Struct, frozen=True):
    """The properties of a new table. The properties in `description` may change later."""

    name: str
    arn: str
    id: str
    schema: Schema
    limits: TableLimits
    description: dict[str, Any]


class Replica:
    """Shows the rows as they were `lag_s` seconds ago, for eventually consistent reads."""

    def __init__(self, lag_s: float, clock: Clock) -> None:
        self._rows = Rows()
        self._coming: deque[tuple[float, Key, StoredItem | None]] = deque()
        self._lag_s = lag_s
        self._clock = clock

    def send(self, key: Key, row: StoredItem | None) -> None:
        self._coming.append((self._clock.monotonic_s() + self._lag_s, key, row))

    def rows(self) -> Rows:
        now_s = self._clock.monotonic_s()
        while self._coming and self._coming[0][0] <= now_s:
            _, key, row = self._coming.popleft()
            _store(self._rows, key, row)
        return self._rows


class Backfill:
    """Fills a new global index with the items of its table, some at a time."""

    def __init__(self, index: GlobalIndex, walk: Walk) -> None:
        self.index = index
        self._walk = walk

    def step(self) -> bool:
        """Add the next items to the index. Returns whether it now has all items and is active."""
        if not self._walk.is_done:
            for key, row in self._walk.step(BACKFILLED_AT_ONCE):
                change = change_of(self.index, key, None, row)
                if change is not None:
                    self.index.apply(None, change.added, change.row)
            return False
        if self.index.is_settled:
            self.index.status = "ACTIVE"
        return self.index.status == "ACTIVE"


Note = Callable[["EngineTable", Key, StoredItem | None, StoredItem | None], None]


class EngineTable:
    """One table: its rows, its limits, its partitions, its indexes, its stream and its expiry."""

    def __init__(self, spec: TableSpec, clock: Clock, replica_lag_s: float) -> None:
        self.spec = spec
        self.schema = spec.schema
        self.description = dict(spec.description)
        self.rows = Rows(spec.limits.partitions)
        self.throughput = Throughput(spec.limits, spec.arn, clock)
        self.adaptation = Adaptation(self.throughput.adaptive, self.rows, clock)
        self.indexes: dict[str, LocalIndex | GlobalIndex] = {}
        self.leaving: list[GlobalIndex] = []
        self.stream: Stream | None = None
        self.expiry: Expiry | None = None
        self.tags: dict[str, str] = {}
        self.note: Note | None = None
        """Called before each write, to append the write to a journal."""
        self._clock = clock
        self._backfills: list[Backfill] = []
        self._replica = Replica(replica_lag_s, clock) if replica_lag_s else None

    def add(self, indexes: Iterable[LocalIndex | GlobalIndex]) -> None:
        """Add indexes to a table that has no items yet."""
        self.indexes.update((index.spec.name, index) for index in indexes)

    def backfill(self, index: GlobalIndex) -> None:
        """Add a global index and fill it while the table serves requests."""
        index.status = "CREATING"
        self.add([index])
        self._backfills.append(Backfill(index, self.walk()))

    def drop(self, index: GlobalIndex) -> None:
        """Remove an index. Descriptions show it as DELETING for a moment."""
        index.status = "DELETING"
        del self.indexes[index.spec.name]
        self.leaving.append(index)

    def walk(self) -> Walk:
        return Walk(self.rows, self.schema)

    @property
    def status(self) -> str:
        is_busy = self._backfills or self.leaving or self.adaptation.is_growing
        return "UPDATING" if is_busy else "ACTIVE"

    def global_indexes(self) -> list[GlobalIndex]:
        return [index for index in self.indexes.values() if isinstance(index, GlobalIndex)]

    def local_indexes(self) -> list[LocalIndex]:
        return [index for index in self.indexes.values() if isinstance(index, LocalIndex)]

    def read_from(self, consistent: bool) -> Rows:
        return self.rows if consistent or self._replica is None else self._replica.rows()

    def check_scalars(self, nested: frozenset[str]) -> None:
        """Raise if an expression reaches into a key attribute, which is never a map or a list."""
        keys = [("Key", name) for name in self.schema.names]
        keys += [("IndexKey", name) for one in self.indexes.values() for name in one.schema.names]
        for kind, name in keys:
            if name in nested:
                raise ValidationFailed(
                    "Key attributes must be scalars; list random access '[]' and map lookup '.' "
                    f"are not allowed: {kind}: {name}"
                )

    def check_index_keys(self, new: Item, old: Item | None) -> None:
        """Raise if a write gives a key attribute of an index a value that no key can have."""
        for index in self.indexes.values():
            index.spec.check(new, old)

    def changes(
        self, key: Key, old: StoredItem | None, new: StoredItem | None
    ) -> tuple[IndexChange, ...]:
        """Return what a write changes in the table's indexes."""
        found = (change_of(index, key, old, new) for index in self.indexes.values())
        return tuple(change for change in found if change is not None)

    def write(
        self,
        key: Key,
        old: StoredItem | None,
        new: StoredItem | None,
        changes: tuple[IndexChange, ...] = (),
        by_service: bool = False,
    ) -> None:
        """Store a row, or remove it if it is None. `changes` are the changes of the indexes.

        With `by_service`, the stream says that the table deleted the row because it expired.
        """
        if self.note is not None:
            self.note(self, key, old, new)
        _store(self.rows, key, new)
        if self._replica is not None:
            self._replica.send(key, new)
        for change in changes:
            change.target.apply(change.removed, change.added, change.row)
        if self.stream is not None:
            self.stream.record(token_of(key.hash), old, new, by_service)
        if self.expiry is not None:
            self.expiry.follow(key, new)

    def take(self, operation: Operation, key: Key, units: float) -> CapacityVerdict:
        return self.throughput.take(operation, token_of(key.hash), units)

    def start_key(self, key: Item) -> Key:
        return self.schema.key_of(key)

    def token(self, item: Item) -> int:
        """Return the token of a stored item."""
        return token_of(self.schema.key_of(self.schema.key_values(item)).hash)

    def partition_of(self, key: Key) -> int:
        return self.throughput.adaptive.map.find(token_of(key.hash)).number

    def tend(self) -> None:
        """Do what happens between requests: adapt partitions, fill indexes, delete items."""
        self.adaptation.tend()
        for index in self.global_indexes():
            index.tend()
        self._backfills = [job for job in self._backfills if not job.step()]
        self.leaving.clear()
        if self.expiry is not None:
            for key, row in self.expiry.over(self.rows, self._clock.now_s()):
                self.write(key, row, None, self.changes(key, row, None), by_service=True)

    def reports(self) -> list[TableReport]:
        """Return reports on the partitions of the table and of its global indexes."""
        name = self.spec.name
        return [
            self.adaptation.report(name),
            *(one.adaptation.report(name, one.spec.name) for one in self.global_indexes()),
        ]

    def describe(self) -> dict[str, Any]:
        count, size = self.rows.size()
        described = {
            **self.description,
            "TableArn": self.spec.arn,
            "TableId": self.spec.id,
            "TableStatus": self.status,
            "ItemCount": count,
            "TableSizeBytes": size,
        }
        lists: tuple[tuple[str, list[Any]], ...] = (
            ("LocalSecondaryIndexes", self.local_indexes()),
            ("GlobalSecondaryIndexes", [*self.global_indexes(), *self.leaving]),
        )
        for field, indexes in lists:
            if indexes:
                described[field] = [index.describe() for index in indexes]
        if self.stream is not None:
            described |= {
                "StreamSpecification": {
                    "StreamEnabled": True,
                    "StreamViewType": self.stream.spec.view,
                },
                "LatestStreamArn": self.stream.spec.arn,
                "LatestStreamLabel": self.stream.spec.label,
            }
        return described


def _store(rows: Rows, key: Key, row: StoredItem | None) -> None:
    if row is None:
        rows.remove(key)
    else:
        rows.put(key, row)
