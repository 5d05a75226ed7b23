"""How one process is doing, for health checks and metrics."""

from __future__ import annotations

import msgspec


class Status(msgspec.Struct, frozen=True):
    """`horizon_s` is how far the view's horizon is ahead of now: below 0 writes have to wait."""

    name: str
    leads: bool
    term: int
    version: int
    horizon_s: float
    servers: int
    spread_keys: int
    extra_buckets: int
    pinned_keys: int

    @property
    def ready(self) -> bool:
        return self.horizon_s > 0
