"""How the engine behaves: limits, partitions, lag and latency."""

from __future__ import annotations

import msgspec

from heatsink.checks import check_number, check_whole

HOST = "127.0.0.1"
PORT = 8322
PORT_MAX = 65_535
PARTITIONS_MAX = 10_000
UNITS_MIN, UNITS_MAX = 0.001, 1e9
SECONDS_MAX = 1e6


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `heatsink dynamo` accepts.

    `write_limit` and `read_limit` are the units per second of one partition. What it does not use
    it may save up, for `burst_s` seconds at most; a new partition has one second's worth.
    `replica_lag_s` makes every read that is not strongly consistent that much out of date.
    """

    port: int = PORT
    write_limit: float = 1_000.0
    read_limit: float = 3_000.0
    burst_s: float = 300.0
    partitions: int = 4
    replica_lag_s: float = 0.0
    latency_s: float = 0.0
    region: str = "us-east-1"

    def __post_init__(self) -> None:
        check_whole("port", self.port, 0, PORT_MAX)
        check_whole("partitions", self.partitions, 1, PARTITIONS_MAX)
        for name in ("write_limit", "read_limit"):
            check_number(name, getattr(self, name), UNITS_MIN, UNITS_MAX)
        for name in ("burst_s", "replica_lag_s", "latency_s"):
            check_number(name, getattr(self, name), 0, SECONDS_MAX)
