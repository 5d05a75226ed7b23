"""Units as DynamoDB counts them, and the limits of partitions and tables in units per second.

A write costs a unit per KB of the larger of the old and the new item, a read one per 4 KB, half of
it unless strongly consistent; transactions cost double. A failed condition costs as a write does.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from heatsink.clock import Clock

from .errors import Throttled
from .partitions import PartitionMap

WRITE_UNIT_BYTES = 1_024
READ_UNIT_BYTES = 4_096
TRANSACTION_FACTOR = 2
START_S = 1.0

Operation = Literal["Read", "Write"]


def write_units(size: int, factor: int = 1) -> float:
    return float(max(-(-size // WRITE_UNIT_BYTES), 1) * factor)


def read_units(size: int, consistent: bool, factor: int = 1) -> float:
    units = max(-(-size // READ_UNIT_BYTES), 1) * factor
    return float(units) if consistent else units / 2


class Budget:
    """A token bucket. What is larger than it can ever hold passes when it is full, on credit."""

    __slots__ = ("_level", "_most", "_rate", "_since_s")

    def __init__(self, rate: float, burst_s: float, now_s: float) -> None:
        self._rate = rate
        self._most = max(rate * burst_s, 1.0)
        self._level = min(max(rate * START_S, 1.0), self._most)
        self._since_s = now_s

    def covers(self, units: float, now_s: float) -> bool:
        refilled = self._level + (now_s - self._since_s) * self._rate
        self._level = min(refilled, self._most)
        self._since_s = now_s
        return self._level >= min(units, self._most)

    def take(self, units: float) -> None:
        self._level -= units


class Rates(msgspec.Struct, frozen=True):
    """Units per second; without a number there is no such limit."""

    reads: float | None
    writes: float | None


class Limits(msgspec.Struct, frozen=True):
    """What a table is held to. `kind` names the table's own limit in the reasons."""

    on_demand: bool
    kind: str
    table: Rates
    partition: Rates
    partitions: int
    burst_s: float


class Partition:
    """The budgets of one partition."""

    __slots__ = ("budgets",)

    def __init__(self, limits: Limits, now_s: float) -> None:
        self.budgets = _budgets(limits.partition, limits.burst_s, now_s)


def _budgets(rates: Rates, burst_s: float, now_s: float) -> dict[str, Budget | None]:
    both = {"Read": rates.reads, "Write": rates.writes}
    return {
        operation: None if rate is None else Budget(rate, burst_s, now_s)
        for operation, rate in both.items()
    }


class Throughput:
    """Admits requests to one table, or throttles them and says which limit it was."""

    def __init__(self, limits: Limits, resource: str, clock: Clock) -> None:
        now_s = clock.monotonic_s()
        self._limits = limits
        self._resource = resource
        self._clock = clock
        self._table = _budgets(limits.table, limits.burst_s, now_s)
        self.partitions = PartitionMap(limits.partitions, lambda: Partition(limits, now_s))

    def take(self, operation: Operation, token: int, units: float) -> None:
        """Take units of the table and of the partition that holds `token`: all or nothing."""
        now_s = self._clock.monotonic_s()
        table = self._table[operation]
        partition = self.partitions.at(token).budgets[operation]
        if table is not None and not table.covers(units, now_s):
            raise self._throttled(operation, self._limits.kind)
        if partition is not None and not partition.covers(units, now_s):
            raise self._throttled(operation, "KeyRangeThroughputExceeded")
        for budget in (table, partition):
            if budget is not None:
                budget.take(units)

    def give_back(self, operation: Operation, token: int, units: float) -> None:
        """Undo a `take`, for a transaction of which another action was throttled."""
        for budget in (self._table[operation], self.partitions.at(token).budgets[operation]):
            if budget is not None:
                budget.take(-units)

    def _throttled(self, operation: Operation, limit: str) -> Throttled:
        return Throttled(f"Table{operation}{limit}", self._resource, self._limits.on_demand)
