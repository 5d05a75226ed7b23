"""Secondary indexes: what an item looks like in an index, what a write costs there, and its rows.

A local index shares the partitions, the limits and the consistency of its table. A global index has
partitions, limits and heat of its own. A write to the table takes units of every index that it
changes, so a hot partition of a global index throttles writes to the table. Reads of a global index
may lag behind the table.

    table   pk │ sk │ city │ …        index on city   city │ pk │ sk │ projected attributes
            the key of an entry is (city, (sort key of the index…, primary key of the table…))
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, Literal, NamedTuple

import msgspec

from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb.wire.errors import DoesNotFit, ValidationFailed
from heatsink.stores.dynamodb.wire.keys import (
    HASH_BYTES_MAX,
    SORT_BYTES_MAX,
    IndexSchema,
    Key,
    KeyPart,
    Part,
    checked,
    natives,
)
from heatsink.stores.dynamodb.wire.values import (
    Item,
    Value,
    admit,
    kind_of,
    text_size,
)

from .adaptation import Adaptation
from .rows import Rows, StoredItem, token_of
from .units import Operation, TableLimits, Throughput, write_units

INVALID = "One or more parameter values were invalid: "
Status = Literal["CREATING", "ACTIVE", "DELETING"]
BACKFILLED_AT_ONCE = 500


class IndexSpec(msgspec.Struct, frozen=True):
    """The definition of an index. `projected` are the attributes of its entries; None means all."""

    name: str
    arn: str
    schema: IndexSchema
    projection: str
    projected: frozenset[str] | None
    description: dict[str, Any]

    def row_of(self, row: StoredItem) -> StoredItem:
        """Return an item's row in the index: its projected attributes."""
        if self.projected is None:
            return row
        item = {name: value for name, value in row.item.items() if name in self.projected}
        size = sum(text_size(name) + admit(value) for name, value in item.items())
        return StoredItem(item, size)

    def missing(self, names: set[str]) -> list[str]:
        """Return those of the attributes `names` that the index does not project."""
        return [] if self.projected is None else sorted(names - self.projected)

    def check(self, new: Item, old: Item | None) -> None:
        """Raise if a write gives a key attribute of the index a value that no key can have.

        An attribute that the write does not change may have any value: the item may be older than
        the index.
        """
        for part in (*self.schema.hash_parts, *self.schema.sort_parts):
            value = new.get(part.name)
            if value is not None and (old is None or old.get(part.name) != value):
                self._check_part(value, part)

    def _check_part(self, value: Value, part: KeyPart) -> None:
        if part.kind not in value:
            raise DoesNotFit(
                f"{INVALID}Type mismatch for Index Key {part.name} Expected: {part.kind} "
                f"Actual: {kind_of(value)} IndexName: {self.name}"
            )
        if not value[part.kind]:
            kind = "string" if part.kind == "S" else "binary"
            raise DoesNotFit(
                "One or more parameter values are not valid. A value specified for a secondary "
                "index key is not supported. The AttributeValue for a key attribute cannot "
                f"contain an empty {kind} value. IndexName: {self.name}, IndexKey: {part.name}"
            )
        most = HASH_BYTES_MAX if part in self.schema.hash_parts else SORT_BYTES_MAX
        checked(value, part, most)


class IndexChange(NamedTuple):
    """What a write to the table does to one index: which entry it removes, and which it adds.

    `removal` is the cost in units of the removed entry, `units` that of the added one.
    """

    target: LocalIndex | GlobalIndex
    removed: Key | None
    added: Key | None
    row: StoredItem | None
    removal: float
    units: float


def change_of(
    index: LocalIndex | GlobalIndex, key: Key, old: StoredItem | None, new: StoredItem | None
) -> IndexChange | None:
    """Return what the change of an item from `old` to `new` changes in an index, or None.

    A write that moves an entry to another key costs a delete and a put, as on DynamoDB.
    """
    spec = index.spec
    before = None if old is None else spec.schema.key_of(key, old.item)
    after = None if new is None else spec.schema.key_of(key, new.item)
    if before is None and after is None:
        return None
    was = spec.row_of(old) if before is not None and old is not None else None
    row = spec.row_of(new) if after is not None and new is not None else None
    if before == after:
        if was is not None and row is not None and was.item == row.item:
            return None
        size = max(was.size if was else 0, row.size if row else 0)
        return IndexChange(index, None, after, row, 0.0, write_units(size))
    removal = 0.0 if was is None else write_units(was.size)
    units = 0.0 if row is None else write_units(row.size)
    return IndexChange(index, before, after, row, removal, units)


def store(rows: Rows, removed: Key | None, added: Key | None, row: StoredItem | None) -> None:
    if removed is not None:
        rows.remove(removed)
    if added is not None and row is not None:
        rows.put(added, row)


class LocalIndex:
    """An index within each partition key of its table. It uses the table's limits."""

    is_global = False

    def __init__(self, spec: IndexSpec, throughput: Throughput, lag_s: float, clock: Clock) -> None:
        self.spec = spec
        self.schema = spec.schema
        self.throughput = throughput
        self.rows = Rows()
        self._replica = _Lagging(Rows(), lag_s, clock) if lag_s else None

    def apply(self, removed: Key | None, added: Key | None, row: StoredItem | None) -> None:
        store(self.rows, removed, added, row)
        if self._replica is not None:
            self._replica.send(removed, added, row)

    def read_from(self, consistent: bool) -> Rows:
        return self.rows if consistent or self._replica is None else self._replica.settled()

    def take(self, operation: Operation, key: Key, units: float) -> None:
        self.throughput.take(operation, token_of(key.hash), units)

    def start_key(self, key: Item) -> Key:
        return self.schema.start_key(key)

    def token(self, item: Item) -> int:
        return token_of(_hash_of(item, self.schema))

    def describe(self) -> dict[str, Any]:
        count, size = self.rows.size()
        return {**self.spec.description, "IndexSizeBytes": size, "ItemCount": count}


class _Lagging:
    """Rows that follow changes in their order, each after a delay of at most `lag_s`.

    With a random source, delays are random. Otherwise every change waits for `lag_s`.
    """

    def __init__(self, rows: Rows, lag_s: float, clock: Clock, rng: Random | None = None) -> None:
        self._rows = rows
        self._lag_s = lag_s
        self._clock = clock
        self._rng = rng
        self._last_s = 0.0
        self._coming: deque[tuple[float, Key | None, Key | None, StoredItem | None]] = deque()

    def send(self, removed: Key | None, added: Key | None, row: StoredItem | None) -> None:
        lag_s = self._lag_s if self._rng is None else self._rng.uniform(0.0, self._lag_s)
        self._last_s = max(self._last_s, self._clock.monotonic_s() + lag_s)
        self._coming.append((self._last_s, removed, added, row))

    def settled(self) -> Rows:
        """Return the rows after all changes whose delay is over."""
        coming, now_s = self._coming, self._clock.monotonic_s()
        while coming and coming[0][0] <= now_s:
            store(self._rows, *coming.popleft()[1:])
        return self._rows

    @property
    def is_settled(self) -> bool:
        return not self._coming


class GlobalIndex:
    """An index over the whole table, with partitions and limits of its own."""

    is_global = True

    def __init__(
        self, spec: IndexSpec, limits: TableLimits, clock: Clock, lag_s: float, rng: Random
    ) -> None:
        self.spec = spec
        self.schema = spec.schema
        self.status: Status = "ACTIVE"
        self.rows = Rows(limits.partitions)
        self.throughput = Throughput(limits, spec.arn, clock, "Index")
        self.adaptation = Adaptation(self.throughput.adaptive, self.rows, clock)
        self._lagging = _Lagging(self.rows, lag_s, clock, rng) if lag_s else None

    def apply(self, removed: Key | None, added: Key | None, row: StoredItem | None) -> None:
        if self._lagging is None:
            store(self.rows, removed, added, row)
        else:
            self._lagging.send(removed, added, row)

    def read_from(self, consistent: bool) -> Rows:
        if consistent:
            raise ValidationFailed("Consistent reads are not supported on global secondary indexes")
        if self.status != "ACTIVE":
            raise ValidationFailed(
                f"Cannot read from backfilling global secondary index: {self.spec.name}"
            )
        return self._settled()

    @property
    def is_settled(self) -> bool:
        return self._lagging is None or self._lagging.is_settled

    def _settled(self) -> Rows:
        return self.rows if self._lagging is None else self._lagging.settled()

    def take(self, operation: Operation, key: Key, units: float) -> None:
        self.throughput.take(operation, token_of(key.hash), units)

    def start_key(self, key: Item) -> Key:
        return self.schema.start_key(key)

    def token(self, item: Item) -> int:
        return token_of(_hash_of(item, self.schema))

    def tend(self) -> None:
        self._settled()
        self.adaptation.tend()

    def describe(self) -> dict[str, Any]:
        count, size = self._settled().size()
        filling = {"Backfilling": True} if self.status == "CREATING" else {}
        return {
            **self.spec.description,
            "IndexStatus": self.status,
            **filling,
            "IndexSizeBytes": size,
            "ItemCount": count,
        }


def _hash_of(item: Item, schema: IndexSchema) -> Part:
    found = natives(item, schema.hash_parts, HASH_BYTES_MAX)
    assert found is not None
    return found[0] if len(found) == 1 else found
