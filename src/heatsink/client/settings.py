"""What an application may choose. Every wrong value is refused here, by name."""

from __future__ import annotations

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.ids import IdScheme, Uuid7
from heatsink.spread.backoff import Retries
from heatsink.spread.counter import TOKEN_TTL_S
from heatsink.spread.policy import BucketRules


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

    @property
    def alarm_units(self) -> int:
        """Half of what a bucket carries in a window: from there on a key is watched closely."""
        return max(int(self.rules.bucket_units_s * self.window_s / 2), 1)

    def __post_init__(self) -> None:
        if self.token_ttl_s < 60:
            raise InvalidSetting(f"token_ttl_s must be at least 60, not {self.token_ttl_s}")
        if self.lease_s <= 0:
            raise InvalidSetting(f"lease_s must be positive, not {self.lease_s}")
