"""What an application may choose. Every wrong value is refused here, by name."""

from __future__ import annotations

import msgspec

from heatsink.bulk.bulk import BulkSettings
from heatsink.bulk.scaling.load import WorkerRules
from heatsink.bulk.scaling.policy import POLICIES
from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import check_kind, check_number, check_text
from heatsink.primitives.ids import IdScheme, Uuid7
from heatsink.reads.near_cache import ReadSettings
from heatsink.reads.policy import NearRules
from heatsink.spread.backoff import Retries
from heatsink.spread.counters import TOKEN_TTL_S
from heatsink.spread.policy import BucketRules
from heatsink.timelines.policy import TimelineSettings

NAME_MAX = 128


class Settings(msgspec.Struct, frozen=True):
    """How one process takes part. `coordinate=False` leaves deciding to other processes."""

    ids: IdScheme = msgspec.field(default_factory=Uuid7)
    """`Uuid7()`, `Ulid()` or `Snowflake(epoch_ms=…)`: one kind for a whole store."""
    rules: BucketRules = BucketRules()
    """When keys get more buckets, and fewer."""
    retries: Retries = Retries()
    """How long a call goes on trying."""
    window_s: float = 1.0
    """Over how many seconds heat is counted: 0.1 to 60."""
    token_ttl_s: float = TOKEN_TTL_S
    """For how many seconds counters remember tokens: at least 60."""
    coordinate: bool = True
    """Take part in leading; `False` is the data plane alone."""
    lease_s: float = 3.0
    """For how many seconds a silent leader keeps the lead."""
    name: str = ""
    """What this process is called in the registry; left out, its host."""
    bulk: BulkSettings = msgspec.field(default_factory=BulkSettings)
    """The queue of bulk actions."""
    scaling: str = "littles_law"
    """`littles_law`, `time_decay`, `congestion` or `exponential`: how workers are scaled."""
    timelines: TimelineSettings = TimelineSettings()
    """From where on posts are pulled, and how fresh homes are."""
    workers: WorkerRules = WorkerRules()
    """The numbers of the scaling policies."""
    reads: ReadSettings = ReadSettings()
    """The cache of hot reads in this process."""
    near: NearRules = NearRules()
    """Which keys the whole fleet keeps near."""

    @property
    def alarm_units(self) -> int:
        """Half of what a bucket carries in a window: from there on a key is watched closely."""
        return max(int(self.rules.bucket_units_s * self.window_s / 2), 1)

    def __post_init__(self) -> None:
        check_kind("ids", self.ids, IdScheme)
        check_kind("rules", self.rules, BucketRules)
        check_kind("retries", self.retries, Retries)
        check_kind("bulk", self.bulk, BulkSettings)
        check_kind("workers", self.workers, WorkerRules)
        check_kind("timelines", self.timelines, TimelineSettings)
        check_kind("reads", self.reads, ReadSettings)
        check_kind("near", self.near, NearRules)
        if self.scaling not in POLICIES:
            raise InvalidSetting(f"scaling must be one of {', '.join(POLICIES)}")
        check_kind("coordinate", self.coordinate, bool)
        check_number("window_s", self.window_s, 0.1, 60)
        check_number("token_ttl_s", self.token_ttl_s, 60)
        check_number("lease_s", self.lease_s, 0.1, 3600)
        if self.name != "":
            check_text("name", self.name, NAME_MAX)
