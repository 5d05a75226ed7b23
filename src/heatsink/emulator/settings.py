"""Settings of the emulator: limits, partitions, replica lag and latency."""

from __future__ import annotations

from msgspec.structs import replace

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import CheckedStruct, check_number, check_text, check_whole
from heatsink.primitives.connections import LOOPBACK_NAMES, ConnectionLimits

from .capacity.limits import START_S, SplitSettings

HOST = "127.0.0.1"
PORT = 8322
PORT_MAX = 65_535
TOKEN_LENGTH_MAX = 1_000
PARTITIONS_MAX = 10_000
UNITS_MIN, UNITS_MAX = 0.001, 1e9
SECONDS_MAX = 1e6


class EngineSettings(CheckedStruct, frozen=True, kw_only=True):
    """The settings of the emulator, `heatsink dynamo`.

    `write_limit` and `read_limit` are the units per second of one partition. A partition can save
    up the unused throughput of at most `burst_s` seconds. With `full_burst`, a new provisioned
    table begins with this whole amount. Otherwise it begins with the throughput of one second.
    Reads that are not strongly consistent return data that is `replica_lag_s` old. A change of an
    item reaches a global index after a random time of at most `index_lag_s`. Items are deleted
    `ttl_lag_s` after their time to live is over. Each answer is delayed by `latency_s`.

    With `adaptive`, partitions behave as DynamoDB's do. No partition exceeds its limit. Within this
    limit, a partition of a provisioned table may use saved units and unused capacity of other
    partitions. A partition that stays hot for `split_after_s` is split. The new partitions do not
    change for `cool_down_s`. Neighbours that stay calm for `merge_after_s` are merged; None means
    never.

    Without `adaptive`, partitions are never split or merged. A partition may exceed its limit with
    units that it has saved up.

    With `token`, a request must be signed with the token as the secret key, or have the token in
    the header `Authorization: Bearer`. An address that other machines can reach needs a token.

    With `data`, all tables are in this file, which survives restarts and `kill -9`.

    The server accepts requests to this machine's host names and to `allow_hosts`. `connections`
    limits the number of connections, the size of headers and idle times.
    """

    host: str = HOST
    port: int = PORT
    token: str | None = None
    data: str | None = None
    write_limit: float = 1_000.0
    read_limit: float = 3_000.0
    burst_s: float = 300.0
    full_burst: bool = True
    partitions: int = 4
    adaptive: bool = True
    split_after_s: float = 600.0
    cool_down_s: float = 60.0
    merge_after_s: float | None = None
    replica_lag_s: float = 0.0
    index_lag_s: float = 0.0
    ttl_lag_s: float = 10.0
    latency_s: float = 0.0
    allow_hosts: tuple[str, ...] = ()
    connections: ConnectionLimits = ConnectionLimits(idle_s=60.0)

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK_NAMES and self.token is None:
            raise InvalidSetting(
                f"host {self.host!r} can be reached from other machines: set a token, which "
                "clients then use as their secret key",
                field="host",
            )
        if self.token is not None:
            check_text("token", self.token, TOKEN_LENGTH_MAX)
        check_whole("port", self.port, 0, PORT_MAX)
        check_whole("partitions", self.partitions, 1, PARTITIONS_MAX)
        for name in ("write_limit", "read_limit"):
            check_number(name, getattr(self, name), UNITS_MIN, UNITS_MAX)
        for name in ("burst_s", "replica_lag_s", "index_lag_s", "ttl_lag_s", "latency_s"):
            check_number(name, getattr(self, name), 0, SECONDS_MAX)
        self.of_partitions()

    def of_partitions(self) -> SplitSettings:
        """Return the settings of each table's partitions.

        Without `adaptive`, a partition may spend all its burst capacity at once.
        """
        limits = SplitSettings(
            write_units=self.write_limit,
            read_units=self.read_limit,
            burst_s=self.burst_s,
            saved_s=self.burst_s if self.full_burst else START_S,
            split_after_s=self.split_after_s if self.adaptive else None,
            cool_down_s=self.cool_down_s,
            merge_after_s=self.merge_after_s if self.adaptive else None,
        )
        return limits if self.adaptive else replace(limits, ceiling_s=self.burst_s)
