"""What an application may choose. Every wrong value is refused here, by name."""

from __future__ import annotations

import msgspec

from heatsink.absorb.policy import NearRules
from heatsink.absorb.settings import ReadSettings
from heatsink.bulk.bulk import BulkSettings
from heatsink.bulk.scaling.policy import POLICIES
from heatsink.bulk.scaling.rules import WorkerRules
from heatsink.checks import check_kind, check_number, check_text
from heatsink.errors import InvalidSetting
from heatsink.ids import IdScheme, Uuid7
from heatsink.isolate.settings import TimelineSettings
from heatsink.spread.backoff import Retries
from heatsink.spread.counter import TOKEN_TTL_S
from heatsink.spread.policy import BucketRules

NAME_MAX = 128


class Settings(msgspec.Struct, frozen=True):
    """How one process takes part. `coordinate=False` leaves deciding to other processes."""

    ids: IdScheme = msgspec.field(default_factory=Uuid7)
    rules: BucketRules = BucketRules()
    retries: Retries = Retries()
    window_s: float = 1.0
    token_ttl_s: float = TOKEN_TTL_S
    coordinate: bool = True
    lease_s: float = 3.0
    name: str = ""
    bulk: BulkSettings = msgspec.field(default_factory=BulkSettings)
    scaling: str = "littles_law"
    timelines: TimelineSettings = TimelineSettings()
    workers: WorkerRules = WorkerRules()
    reads: ReadSettings = ReadSettings()
    near: NearRules = NearRules()

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
