"""How one process is doing, for health checks and metrics."""

from __future__ import annotations

import msgspec

from heatsink.coordinator.lease import Leadership
from heatsink.primitives.subjects import subject_of
from heatsink.registry.registry import Registry


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
    leader: str = ""
    """Who leads, as far as this process knows; empty: nobody does, so nothing is decided."""
    leaderless_s: float = 0.0
    """For how long nobody has led: 0 while somebody does, infinite if nobody ever did."""

    @property
    def ready(self) -> bool:
        """Whether its view is fresh: send it traffic."""
        return self.horizon_s > 0


def status_of(name: str, registry: Registry, leads: bool, found: Leadership) -> Status:
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
    )
