"""How one process is doing, for health checks and metrics."""

from __future__ import annotations

import msgspec


class Status(msgspec.Struct, frozen=True):
    """How one process is doing."""

    name: str
    """What this process is called in the registry."""
    leads: bool
    """Whether it coordinates."""
    term: int
    """The leader's number."""
    version: int
    """How far this process has read the registry."""
    horizon_s: float
    """How far the view's horizon is ahead of now: below 0 writes have to wait."""
    servers: int
    """Servers that report heat."""
    spread_keys: int
    """Keys with more than one bucket."""
    extra_buckets: int
    """Their buckets beyond the first."""
    pinned_keys: int
    """Keys that an operator has pinned."""

    @property
    def ready(self) -> bool:
        """Whether its view is fresh: send it traffic."""
        return self.horizon_s > 0
