"""The knobs of the scaling policies, and what a law for one partition is."""

from __future__ import annotations

from typing import Protocol

import msgspec

from heatsink.checks import check_number, check_whole

from .load import Load

WORKERS_MAX = 10_000


class WorkerRules(msgspec.Struct, frozen=True):
    """How many workers there may be, and the numbers of the laws that choose."""

    base: int = 8
    """Workers of a partition when there is nothing to do."""
    workers_max: int = 256
    """Workers of any one partition."""
    fleet_max: int = WORKERS_MAX
    """Workers of all partitions together."""
    depth: float = 10.0
    """The seed's policies grow where more runnable items than this wait per worker."""
    cycles: int = 3
    """`time_decay` grows after so many turns in a row."""
    growth_max: float = 8.0
    """`time_decay` grows up to so many times the base."""
    decay_after_s: float = 600.0
    """`time_decay` begins to shrink so long after it last grew."""
    decay_s: float = 60.0
    """`time_decay` shrinks by half every so often."""
    drain_s: float = 30.0
    """Little's law drains what is runnable within this time."""
    margin: float = 1.0
    """Little's law has so many square roots to spare."""
    hold_s: float = 60.0
    """Little's law shrinks after so long with less to do."""
    probe_again_s: float = 120.0
    """Little's law doubts a knee that it has found so long after it, then less often."""

    def __post_init__(self) -> None:
        check_whole("base", self.base, 1, WORKERS_MAX)
        check_whole("workers_max", self.workers_max, self.base, WORKERS_MAX)
        check_whole("fleet_max", self.fleet_max, 1, 1_000_000)
        check_number("depth", self.depth, 0.01, 10**9)
        check_whole("cycles", self.cycles, 1, 1_000)
        check_number("growth_max", self.growth_max, 1, WORKERS_MAX)
        check_number("decay_after_s", self.decay_after_s, 0, 10**6)
        check_number("decay_s", self.decay_s, 0.1, 10**6)
        check_number("drain_s", self.drain_s, 0.1, 10**6)
        check_number("margin", self.margin, 0, 10)
        check_number("hold_s", self.hold_s, 0, 10**6)
        check_number("probe_again_s", self.probe_again_s, 1, 10**6)

    def bounded(self, workers: float) -> int:
        return int(min(max(workers, self.base), self.workers_max))


class Target(msgspec.Struct, frozen=True):
    workers: int
    reason: str


class Law(Protocol):
    """Steers one partition. None: as it is."""

    def target(self, load: Load) -> Target | None: ...
