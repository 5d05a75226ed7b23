"""The state of one process, for health checks and metrics."""

from __future__ import annotations

import msgspec

from heatsink.coordinator.lease import Leadership
from heatsink.primitives.subjects import subject_of
from heatsink.registry.registry import Registry


class Status(msgspec.Struct, frozen=True):
    """The state of one process."""

    name: str
    """Name of this process in the registry."""
    leads: bool
    """Whether this process is the leader."""
    term: int
    """The leader's term."""
    version: int
    """The registry's version that this process has read."""
    horizon_s: float
    """Seconds by which the view's horizon is ahead of now. Below 0, writes have to wait."""
    servers: int
    """Number of servers that report heat."""
    spread_keys: int
    """Number of keys with more than one bucket."""
    extra_buckets: int
    """Number of buckets of all keys, without the first bucket of each key."""
    pinned_keys: int
    """Number of keys that an operator has pinned."""
    leader: str = ""
    """The leader, as far as this process knows. Empty if there is none: nothing is decided."""
    leaderless_s: float = 0.0
    """Seconds without a leader: 0 while there is a leader, infinite if there never was one."""

    news_lost: str | None = None
    """Why the Redis for news does not answer. None while it answers, and for clients without
    `news`."""

    @property
    def ready(self) -> bool:
        """Whether the process's view is fresh, so that the process can take traffic."""
        return self.horizon_s > 0


def status_of(
    name: str, registry: Registry, leads: bool, found: Leadership, news_lost: str | None
) -> Status:
    view = registry.view
    spread = [
        layout.buckets
        for key, layout in view.layouts.items()
        if layout.buckets > 1 and subject_of(key).has_rows
    ]
    return Status(
        name=name,
        leads=leads,
        term=registry.meta.term,
        version=view.version,
        horizon_s=(view.horizon_ms - registry.now_ms()) / 1000,
        servers=registry.servers,
        spread_keys=len(spread),
        extra_buckets=sum(spread) - len(spread),
        pinned_keys=sum(pin.subject.has_rows for pin in view.pins.values()),
        leader=found.leader,
        leaderless_s=found.leaderless_s,
        news_lost=news_lost,
    )
