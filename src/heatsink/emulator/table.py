"""One table: its keys, rows, lagging replica and limits, and how its partitions adapt."""

from __future__ import annotations

from collections import deque
from decimal import Decimal
from typing import Any

import msgspec

from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.values import (
    Item,
    Native,
    Value,
    admit,
    kind_of,
    native,
    text_size,
)

from .capacity.limits import CapacityVerdict
from .capacity.partition import PartitionState
from .capacity.policy import Change, Isolate, Merge, Split
from .capacity.table import AdaptiveTable, edges_after
from .rows import Key, Move, Row, Rows, token_of
from .units import Operation, TableLimits, Throughput

HASH_BYTES_MAX = 2_048
SORT_BYTES_MAX = 1_024
MISMATCH = "The provided key element does not match the schema"
MOVED_AT_ONCE = 500
EVENTS_KEPT = 200


class KeyPart(msgspec.Struct, frozen=True):
    name: str
    kind: str


class Schema(msgspec.Struct, frozen=True):
    hash: KeyPart
    sort: KeyPart | None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.hash.name,) if self.sort is None else (self.hash.name, self.sort.name)

    def key_of_item(self, item: Item) -> Key:
        """Return the primary key of an item to put. The item's values must already be checked."""
        hash_ = _put_part(item, self.hash, HASH_BYTES_MAX)
        if self.sort is None:
            return Key(hash_, None)
        return Key(hash_, _put_part(item, self.sort, SORT_BYTES_MAX))

    def key_of(self, key: Item) -> Key:
        """Return the primary key in the field `Key` of a request.

        Raises unless `key` has exactly the key's attributes, with the right types.
        """
        if len(key) != len(self.names):
            raise ValidationFailed(MISMATCH)
        hash_ = self.part(key.get(self.hash.name), self.hash)
        return Key(
            hash_, None if self.sort is None else self.part(key.get(self.sort.name), self.sort)
        )

    def part(self, value: Value | None, part: KeyPart) -> Native:
        if value is None or type(value) is not dict:
            raise ValidationFailed(MISMATCH)
        admit(value)
        if kind_of(value) != part.kind:
            raise ValidationFailed(MISMATCH)
        most = HASH_BYTES_MAX if part is self.hash else SORT_BYTES_MAX
        return _checked(value, part, most)

    def key_values(self, item: Item) -> Item:
        return {name: item[name] for name in self.names}


def _put_part(item: Item, part: KeyPart, most: int) -> Native:
    value = item.get(part.name)
    if value is None:
        raise ValidationFailed(
            f"One or more parameter values were invalid: Missing the key {part.name} in the item"
        )
    if part.kind not in value:
        raise ValidationFailed(
            f"One or more parameter values were invalid: Type mismatch for key {part.name} "
            f"expected: {part.kind} actual: {kind_of(value)}"
        )
    return _checked(value, part, most)


def _checked(value: Value, part: KeyPart, most: int) -> Native:
    content: Any = native(value)
    if part.kind == "N":
        return content  # type: ignore[no-any-return]
    if not content:
        raise ValidationFailed(
            f"One or more parameter values are not valid. The AttributeValue for a key attribute "
            f"cannot contain an empty {'string' if part.kind == 'S' else 'binary'} value. "
            f"Key: {part.name}"
        )
    if (text_size(content) if part.kind == "S" else len(content)) > most:
        raise ValidationFailed(
            f"One or more parameter values were invalid: Size of hashkey has exceeded the maximum "
            f"size limit of{HASH_BYTES_MAX} bytes"
            if most == HASH_BYTES_MAX
            else f"One or more parameter values were invalid: Aggregated size of all range keys "
            f"has exceeded the size limit of {SORT_BYTES_MAX} bytes"
        )
    return content  # type: ignore[no-any-return]


class PartitionEvent(msgspec.Struct, frozen=True):
    """An entry in a table's list of changes to its partitions.

    `what` is the kind of change, such as "Split". `partition` is the number of the changed
    partition. With `done=False` the entry says that the table decided on the change. With
    `done=True` it says that all rows have moved and the change is in force.
    """

    at_s: float
    what: str
    partition: int
    reason: str
    done: bool = False


class PartitionReport(msgspec.Struct, frozen=True):
    """A report on one partition, for people and tests.

    `hottest` is the partition key with the most heat. While rows move out of the partition, `moved`
    is the number of rows that have moved so far. At other times `moved` is None.
    """

    state: PartitionState
    rows: int
    bytes: int
    hottest: str | None
    moved: int | None


class TableReport(msgspec.Struct, frozen=True):
    """A report on all partitions of a table, in the order of their hash ranges.

    `version` is the version of the partition map. `throttles` counts throttled requests by limit.
    """

    table: str
    version: int
    throttles: dict[str, int]
    partitions: list[PartitionReport]
    events: list[PartitionEvent]


class RowMove:
    """Moves the rows of one split, isolation or merge to their new partitions.

    `cuts` are the hashes at which partitions are divided or joined. They are handled one by one.
    """

    def __init__(self, change: Split | Isolate | Merge, cuts: list[int], rows: Rows) -> None:
        self.change = change
        self._cuts = cuts
        self._rows = rows
        self._move = self._begin()

    def _begin(self) -> Move:
        at = self._cuts[0]
        is_merge = isinstance(self.change, Merge)
        return self._rows.begin_merge(at) if is_merge else self._rows.begin_split(at)

    def step(self) -> bool:
        """Move some rows. Return True when all rows are in their new partitions."""
        if not self._move.step(MOVED_AT_ONCE):
            return False
        at = self._cuts.pop(0)
        if isinstance(self.change, Merge):
            self._rows.end_merge(at)
        else:
            self._rows.end_split(at)
        if self._cuts:
            self._move = self._begin()
        return not self._cuts


class Adaptation:
    """Carries out the partition changes that a table's capacity model decides on.

    The model decides on a split, an isolation or a merge. Then the rows move, a few at a time,
    while the table serves requests. When all rows have moved, the new partitions get their own
    limits. The emulator calls `tend` every 20 ms.
    """

    def __init__(self, adaptive: AdaptiveTable, rows: Rows, clock: Clock) -> None:
        self._adaptive = adaptive
        self._rows = rows
        self._clock = clock
        self._jobs: list[RowMove] = []
        self._events: deque[PartitionEvent] = deque(maxlen=EVENTS_KEPT)

    def tend(self) -> None:
        """Move some rows of each pending change. Once a second, decide on new changes."""
        now_s = self._clock.monotonic_s()
        for job in [job for job in self._jobs if job.step()]:
            self._jobs.remove(job)
            self._adaptive.apply(job.change, now_s)
            self._tell(job.change, done=True)
        for change in self._adaptive.decide(now_s):
            self.begin(change)

    def begin(self, change: Change) -> None:
        """Add the change to the events. If the change moves rows, start to move them."""
        self._tell(change)
        if isinstance(change, Split | Isolate | Merge):
            self._jobs.append(RowMove(change, self._cuts(change), self._rows))

    def _cuts(self, change: Split | Isolate | Merge) -> list[int]:
        old = self._adaptive.partition(change.partition)
        if isinstance(change, Merge):
            return [old.end]
        return edges_after(change, old.start, old.end)[1:-1]

    def _tell(self, change: Change, done: bool = False) -> None:
        what = type(change).__name__
        self._events.append(
            PartitionEvent(self._clock.now_s(), what, change.partition, change.reason, done)
        )

    def report(self, name: str) -> TableReport:
        return TableReport(
            name,
            self._adaptive.map.version,
            {str(limit): count for limit, count in self._adaptive.throttles.items()},
            [self._report(state) for state in self._adaptive.partitions()],
            list(self._events),
        )

    def _report(self, state: PartitionState) -> PartitionReport:
        key = None if state.hottest is None else self._rows.key_at(state.hottest)
        move = self._rows.map.find(state.start).move
        rows, bytes_ = self._rows.size(state.start, state.end)
        moved = None if move is None else move.moved
        return PartitionReport(state, rows, bytes_, None if key is None else _text(key), moved)


def _text(key: Any) -> str:
    return str(key) if isinstance(key, str | Decimal) else key.hex()


class TableSpec(msgspec.Struct, frozen=True):
    """The properties of a table that never change."""

    name: str
    arn: str
    id: str
    schema: Schema
    limits: TableLimits
    description: dict[str, Any]


class Replica:
    """Holds the rows as they were `lag_s` seconds ago, for eventually consistent reads."""

    def __init__(self, lag_s: float, clock: Clock) -> None:
        self._rows = Rows()
        self._coming: deque[tuple[float, Key, Row | None]] = deque()
        self._lag_s = lag_s
        self._clock = clock

    def send(self, key: Key, row: Row | None) -> None:
        self._coming.append((self._clock.monotonic_s() + self._lag_s, key, row))

    def rows(self) -> Rows:
        now_s = self._clock.monotonic_s()
        while self._coming and self._coming[0][0] <= now_s:
            _, key, row = self._coming.popleft()
            _store(self._rows, key, row)
        return self._rows


class EngineTable:
    """One table: its rows, its limits and its partitions."""

    def __init__(self, spec: TableSpec, clock: Clock, replica_lag_s: float) -> None:
        self.spec = spec
        self.schema = spec.schema
        self.rows = Rows(spec.limits.partitions)
        self.throughput = Throughput(spec.limits, spec.arn, clock)
        self.adaptation = Adaptation(self.throughput.adaptive, self.rows, clock)
        self.ttl_attribute: str | None = None
        self._replica = Replica(replica_lag_s, clock) if replica_lag_s else None

    def read_from(self, consistent: bool) -> Rows:
        return self.rows if consistent or self._replica is None else self._replica.rows()

    def write(self, key: Key, row: Row | None) -> None:
        _store(self.rows, key, row)
        if self._replica is not None:
            self._replica.send(key, row)

    def take(self, operation: Operation, key: Key, units: float) -> CapacityVerdict:
        return self.throughput.take(operation, token_of(key.hash), units)

    def partition_of(self, key: Key) -> int:
        return self.throughput.adaptive.map.find(token_of(key.hash)).number

    def describe(self) -> dict[str, Any]:
        count, size = self.rows.size()
        return {
            **self.spec.description,
            "TableStatus": "ACTIVE",
            "ItemCount": count,
            "TableSizeBytes": size,
        }


def _store(rows: Rows, key: Key, row: Row | None) -> None:
    if row is None:
        rows.remove(key)
    else:
        rows.put(key, row)
