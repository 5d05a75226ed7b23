"""One table: its rows, the replica that lags behind them, its limits and its description."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from heatsink.clock import Clock
from heatsink.split.capacity import Verdict

from .adaptation import Adaptation
from .capacity import Limits, Operation, Throughput
from .rows.items import Key, Row
from .rows.rows import Rows
from .rows.tokens import token_of
from .schema import Schema


class TableSpec(msgspec.Struct, frozen=True):
    """What a table is made of, and does not change."""

    name: str
    arn: str
    id: str
    schema: Schema
    limits: Limits
    description: dict[str, Any]


class Replica:
    """The rows as they were `lag_s` ago: what a read that is not consistent may see."""

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


class Table:
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

    def take(self, operation: Operation, key: Key, units: float) -> Verdict:
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
