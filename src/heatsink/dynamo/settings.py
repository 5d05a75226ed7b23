"""How the engine behaves: limits, partitions, lag and latency."""

from __future__ import annotations

import msgspec

from heatsink.errors import InvalidSetting

HOST = "127.0.0.1"
PORT = 8322


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
        for name in ("write_limit", "read_limit", "burst_s", "partitions"):
            if not getattr(self, name) > 0:
                raise InvalidSetting(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("replica_lag_s", "latency_s"):
            if not getattr(self, name) >= 0:
                raise InvalidSetting(f"{name} must not be negative, not {getattr(self, name)}")
        if not 0 <= self.port <= 65_535:
            raise InvalidSetting(f"port must be between 0 and 65535, not {self.port}")
