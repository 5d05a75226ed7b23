"""One table: its keys, rows, lagging replica and limits, and how its partitions adapt."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from heatsink.primitives.clock import Clock

from .adaptation import Adaptation
from .capacity.limits import CapacityVerdict
from .rows import Key, Row, Rows, token_of
from .schema import Schema
from .units import Operation, TableLimits, Throughput


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
