"""The settings of a client. An invalid value raises `InvalidSetting`, which names the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TypedDict

import msgspec

from heatsink.bulk.scaling.load import WorkerRules
from heatsink.bulk.scaling.policy import POLICIES
from heatsink.bulk.settings import BulkSettings
from heatsink.cluster.rules import SlotSettings
from heatsink.errors import InvalidSetting
from heatsink.heat.report import ReportSettings
from heatsink.primitives.checks import CheckedStruct, check_kind, check_number, check_text, shown
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import Hook
from heatsink.primitives.ids import IdScheme, Uuid7
from heatsink.reads.near_cache import ReadSettings
from heatsink.reads.policy import NearRules
from heatsink.spread.backoff import Retries
from heatsink.spread.counters import TOKEN_TTL_S
from heatsink.spread.policy import BucketRules
from heatsink.stores.throttled import PartitionLimit
from heatsink.timelines.policy import TimelineSettings

NAME_MAX = 128


class Options(TypedDict, total=False):
    """The settings as arguments of `connect`, for type checkers; `Settings` explains each."""

    ids: IdScheme
    rules: BucketRules
    retries: Retries
    window_s: float
    report_floor: float
    report_alarm: float
    token_ttl_s: float
    coordinate: bool
    dedicated: bool
    lease_s: float
    name: str
    bulk: BulkSettings
    scaling: str
    timelines: TimelineSettings
    workers: WorkerRules
    reads: ReadSettings
    near: NearRules
    cluster: str
    slots: SlotSettings


class ConnectOptions(Options, total=False):
    """All arguments of `connect` but its URL."""

    news: str | None
    queue: str | None
    limit: PartitionLimit | None
    clock: Clock | None
    rng: Random | None
    hooks: Sequence[Hook]
    settings: Mapping[str, Any] | None


class WorkerOptions(TypedDict, total=False):
    """The settings of `hs.worker`, for type checkers; `ConsumerSettings` explains each."""

    workers: int
    workers_max: int
    lease_s: float
    member_s: float
    grace_s: float
    partitioned: bool
    concurrency: int | None
    handler_processes: int | None
    mark: str


class Settings(CheckedStruct, frozen=True):
    """The settings of one process, passed to `connect` by name: `connect(url, lease_s=5.0)`."""

    ids: IdScheme = msgspec.field(default_factory=Uuid7)
    """`Uuid7()`, `Ulid()` or `Snowflake(epoch_ms=…)`: one kind for a whole store."""
    rules: BucketRules = BucketRules()
    """When keys get more or fewer buckets."""
    retries: Retries = Retries()
    """How often and how long a call is retried."""
    window_s: float = 1.0
    """Length of the windows in which heat is counted, 0.1 to 60 seconds."""
    report_floor: float = 0.1
    """Below this share of `rules.bucket_units_s` on all servers together, a key is not listed.

    Servers sample cold keys: a key with exactly this load gets five samples a window on average.
    With a smaller share, the rates of cold keys are more accurate, but reports are larger.
    """
    report_alarm: float = 0.5
    """A server reports a key before the window ends once the key has this share of the write units
    that a bucket should get in a window."""
    token_ttl_s: float = TOKEN_TTL_S
    """How long counters remember tokens, at least 60 seconds."""
    coordinate: bool = True
    """Whether this process may become leader."""
    dedicated: bool = False
    """Whether this process does nothing but coordinate, as `heatsink coordinator` does.

    With a Redis for news, a standby in a large fleet checks the leader's lease rarely, since every
    process may be a standby. A dedicated coordinator checks the lease ten times a second, so it
    takes over within seconds. Run two or three of them.
    """
    lease_s: float = 3.0
    """Lease of the leader in seconds. If the leader does not renew it, another process may lead."""
    name: str = ""
    """Name of this process in the registry; by default its host name."""
    bulk: BulkSettings = msgspec.field(default_factory=BulkSettings)
    """The queue of bulk actions."""
    scaling: str = "littles_law"
    """How workers are scaled: `littles_law`, `time_decay`, `congestion` or `exponential`."""
    timelines: TimelineSettings = TimelineSettings()
    """When posts are pulled instead of pushed, and how fresh home timelines are."""
    workers: WorkerRules = WorkerRules()
    """Parameters of the scaling laws."""
    reads: ReadSettings = ReadSettings()
    """The cache of hot reads in this process."""
    near: NearRules = NearRules()
    """When a key becomes near, so that all processes that read it cache it in memory."""
    cluster: str = ""
    """URL of a Redis or Valkey Cluster (`redis+cluster://…`) that this process watches while it
    leads; empty for none."""
    slots: SlotSettings = SlotSettings()
    """Whether and how the leader moves slots of the cluster that it watches."""

    @property
    def alarm_units(self) -> int:
        """How many write units in a window make a server report a key before the window ends."""
        return max(int(self.rules.bucket_units_s * self.window_s * self.report_alarm), 1)

    @property
    def report(self) -> ReportSettings:
        """Which keys this process reports, and how often."""
        return ReportSettings(
            self.window_s, self.rules.bucket_units_s, self.report_floor, self.near.hot_reads_s
        )

    def __post_init__(self) -> None:
        if isinstance(self.ids, type) or not isinstance(self.ids, IdScheme):
            raise InvalidSetting(
                f"ids must be Uuid7(), Ulid() or Snowflake(epoch_ms=…), not {shown(self.ids)}",
                field="ids",
            )
        check_kind("rules", self.rules, BucketRules)
        check_kind("retries", self.retries, Retries)
        check_kind("bulk", self.bulk, BulkSettings)
        check_kind("workers", self.workers, WorkerRules)
        check_kind("timelines", self.timelines, TimelineSettings)
        check_kind("reads", self.reads, ReadSettings)
        check_kind("near", self.near, NearRules)
        check_kind("cluster", self.cluster, str)
        check_kind("slots", self.slots, SlotSettings)
        if self.scaling not in POLICIES:
            raise InvalidSetting(f"scaling must be one of {', '.join(POLICIES)}", field="scaling")
        check_kind("coordinate", self.coordinate, bool)
        check_kind("dedicated", self.dedicated, bool)
        check_number("window_s", self.window_s, 0.1, 60)
        check_number("report_floor", self.report_floor, 0.001, 1)
        check_number("report_alarm", self.report_alarm, 0.01, 100)
        check_number("token_ttl_s", self.token_ttl_s, 60)
        check_number("lease_s", self.lease_s, 0.1, 3600)
        if self.name != "":
            check_text("name", self.name, NAME_MAX)
