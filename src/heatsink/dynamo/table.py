"""One table: its items, the replica that lags behind them, its limits and its description."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from heatsink.clock import Clock

from .capacity import Limits, Operation, Throughput
from .items import Items, Key, Row
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
    """The items as they were `lag_s` ago: what a read that is not consistent may see."""

    def __init__(self, lag_s: float, clock: Clock) -> None:
        self._items = Items()
        self._coming: deque[tuple[float, Key, Row | None]] = deque()
        self._lag_s = lag_s
        self._clock = clock

    def send(self, key: Key, row: Row | None) -> None:
        self._coming.append((self._clock.monotonic_s() + self._lag_s, key, row))

    def items(self) -> Items:
        now_s = self._clock.monotonic_s()
        while self._coming and self._coming[0][0] <= now_s:
            _, key, row = self._coming.popleft()
            _store(self._items, key, row)
        return self._items


class Table:
    def __init__(self, spec: TableSpec, clock: Clock, replica_lag_s: float) -> None:
        self.spec = spec
        self.schema = spec.schema
        self.items = Items()
        self.throughput = Throughput(spec.limits, spec.arn, clock)
        self.ttl_attribute: str | None = None
        self._replica = Replica(replica_lag_s, clock) if replica_lag_s else None

    def read_from(self, consistent: bool) -> Items:
        return self.items if consistent or self._replica is None else self._replica.items()

    def write(self, key: Key, row: Row | None) -> None:
        _store(self.items, key, row)
        if self._replica is not None:
            self._replica.send(key, row)

    def take(self, operation: Operation, key: Key, units: float) -> None:
        self.throughput.take(operation, self.items.token(key.hash), units)

    def describe(self) -> dict[str, Any]:
        return {
            **self.spec.description,
            "TableStatus": "ACTIVE",
            "ItemCount": self.items.count,
            "TableSizeBytes": self.items.bytes,
        }


def _store(items: Items, key: Key, row: Row | None) -> None:
    if row is None:
        items.remove(key)
    else:
        items.put(key, row)
