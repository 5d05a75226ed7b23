"""Capacity units as DynamoDB counts them, and the throughput of one table.

A write costs one unit per KB, counted on the larger of the old and the new item. A strongly
consistent read costs one unit per 4 KB, an eventually consistent read half a unit. Transactions
cost double. A write whose condition fails costs as much as a write.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb.wire.errors import Throttled

from .capacity.limits import BY_KEY, CapacityVerdict, SplitSettings, TableCapacity
from .capacity.table import AdaptiveTable

WRITE_UNIT_BYTES = 1_024
READ_UNIT_BYTES = 4_096
TRANSACTION_FACTOR = 2

Operation = Literal["Read", "Write"]


def write_units(size: int, factor: int = 1) -> float:
    return float(max(-(-size // WRITE_UNIT_BYTES), 1) * factor)


def read_units(size: int, consistent: bool, factor: int = 1) -> float:
    units = max(-(-size // READ_UNIT_BYTES), 1) * factor
    return float(units) if consistent else units / 2


class TableLimits(msgspec.Struct, frozen=True):
    """The limits of a table.

    `table` is the maximum for the whole table; `kind` is its name in throttling errors. The table
    starts with `partitions` partitions.
    """

    on_demand: bool
    kind: str
    table: TableCapacity
    partitions: int
    settings: SplitSettings


class Throughput:
    """Accepts or throttles the requests to one table or to one global index.

    `resource` is the ARN of the table or index. `noun` is "Table" or "Index": the reasons of
    throttled requests begin with this word.
    """

    def __init__(
        self, limits: TableLimits, resource: str, clock: Clock, noun: str = "Table"
    ) -> None:
        self._limits = limits
        self._resource = resource
        self._noun = noun
        self._clock = clock
        self.forced: dict[int, float] = {}
        """Tokens that are throttled whatever the limits say, and until when."""
        self.adaptive = AdaptiveTable(
            limits.settings, limits.table, limits.partitions, clock.monotonic_s()
        )

    @property
    def limits(self) -> TableLimits:
        return self._limits

    def change(self, limits: TableLimits) -> None:
        """Change the capacity or the billing mode. The number of partitions stays."""
        self._limits = limits
        self.adaptive.resize(limits.table, self._clock.monotonic_s())

    def take(self, operation: Operation, token: int, units: float) -> CapacityVerdict:
        """Take `units` from the limits of the table and of the partition that holds `token`.

        If a limit throttles the request, take nothing and raise `Throttled`.
        """
        writes, reads = (units, 0.0) if operation == "Write" else (0.0, units)
        if self.forced and self._is_forced(token):
            verdict = BY_KEY
            self.adaptive.record(token, writes, reads, verdict)
        else:
            verdict = self.adaptive.charge(token, writes, reads, self._clock.monotonic_s())
        if not verdict.accepted:
            raise self.refusal(operation, verdict)
        return verdict

    def judge(self, operation: Operation, token: int, units: float) -> CapacityVerdict:
        """Return whether the limits would accept the request. Takes no units.

        A transaction judges all its actions before it takes any units.
        """
        if self.forced and self._is_forced(token):
            return BY_KEY
        writes, reads = (units, 0.0) if operation == "Write" else (0.0, units)
        return self.adaptive.judge(token, writes, reads, self._clock.monotonic_s())

    def _is_forced(self, token: int) -> bool:
        until_s = self.forced.get(token)
        if until_s is not None and until_s <= self._clock.monotonic_s():
            del self.forced[token]
            return False
        return until_s is not None

    def record(
        self, operation: Operation, token: int, units: float, verdict: CapacityVerdict
    ) -> None:
        """Take the units if `verdict` accepts the request, or count the request as throttled."""
        writes, reads = (units, 0.0) if operation == "Write" else (0.0, units)
        self.adaptive.record(token, writes, reads, verdict)

    def refusal(self, operation: Operation, verdict: CapacityVerdict) -> Throttled:
        limit = self._limits.kind if verdict.limit == "table" else "KeyRangeThroughputExceeded"
        return Throttled(f"{self._noun}{operation}{limit}", self._resource, self._limits.on_demand)

    def give_back(
        self, operation: Operation, token: int, units: float, taken: CapacityVerdict
    ) -> None:
        """Give back the units of an accepted action, because another action was throttled."""
        writes, reads = (units, 0.0) if operation == "Write" else (0.0, units)
        self.adaptive.refund(token, writes, reads, taken)


class Charge(NamedTuple):
    """The units that a request takes from one table or index."""

    throughput: Throughput
    token: int
    units: float


def take_together(operation: Operation, charges: list[Charge]) -> Throttled | None:
    """Take the units of all charges. If one is refused, take none and return the first refusal.

    Each charge is judged as if it were the only one, so together they may exceed a limit. A
    throttled charge counts as heat.
    """
    judged = [(one, one.throughput.judge(operation, one.token, one.units)) for one in charges]
    refused = [(one, verdict) for one, verdict in judged if not verdict.accepted]
    for one, verdict in refused or judged:
        one.throughput.record(operation, one.token, one.units, verdict)
    if not refused:
        return None
    one, verdict = refused[0]
    return one.throughput.refusal(operation, verdict)
