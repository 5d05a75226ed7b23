"""Settings of the emulator: limits, partitions, replica lag and latency."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from heatsink.primitives.checks import check_number, check_whole
from heatsink.primitives.connections import ConnectionLimits

from .capacity.limits import SplitSettings

HOST = "127.0.0.1"
PORT = 8322
PORT_MAX = 65_535
PARTITIONS_MAX = 10_000
UNITS_MIN, UNITS_MAX = 0.001, 1e9
SECONDS_MAX = 1e6


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the emulator, `heatsink dynamo`.

    `write_limit` and `read_limit` are the units per second of one partition. A partition can save
    up the unused throughput of at most `burst_s` seconds; a new one starts with one second's worth.
    Reads that are not strongly consistent are `replica_lag_s` out of date.

    With `adaptive`, partitions behave as DynamoDB's do. The limit is a ceiling, and a partition
    saves up or borrows a share of the table's capacity. A partition that stays hot for
    `split_after_s` is split. The new partitions do not change for `cool_down_s`. Without
    `adaptive`, partitions never change, and each may save up its limit. Partitions that stay calm
    for `merge_after_s` are merged; `None` is never.

    The server accepts this machine's host names and `allow_hosts`. `connections` limits its
    connections.
    """

    port: int = PORT
    write_limit: float = 1_000.0
    read_limit: float = 3_000.0
    burst_s: float = 300.0
    partitions: int = 4
    adaptive: bool = True
    split_after_s: float = 600.0
    cool_down_s: float = 60.0
    merge_after_s: float | None = None
    replica_lag_s: float = 0.0
    latency_s: float = 0.0
    allow_hosts: tuple[str, ...] = ()
    connections: ConnectionLimits = ConnectionLimits(idle_s=60.0)

    def __post_init__(self) -> None:
        check_whole("port", self.port, 0, PORT_MAX)
        check_whole("partitions", self.partitions, 1, PARTITIONS_MAX)
        for name in ("write_limit", "read_limit"):
            check_number(name, getattr(self, name), UNITS_MIN, UNITS_MAX)
        for name in ("burst_s", "replica_lag_s", "latency_s"):
            check_number(name, getattr(self, name), 0, SECONDS_MAX)
        self.of_partitions()

    def of_partitions(self) -> SplitSettings:
        """The settings of partitions. Without `adaptive` the savings are the only limit."""
        limits = SplitSettings(
            write_units=self.write_limit,
            read_units=self.read_limit,
            burst_s=self.burst_s,
            split_after_s=self.split_after_s if self.adaptive else None,
            cool_down_s=self.cool_down_s,
            merge_after_s=self.merge_after_s if self.adaptive else None,
        )
        return limits if self.adaptive else replace(limits, ceiling_s=self.burst_s)
