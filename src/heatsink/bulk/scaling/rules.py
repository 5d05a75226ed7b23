"""The knobs of the scaling policies, and what a law for one partition is."""

from __future__ import annotations

from typing import Protocol

import msgspec

from heatsink.checks import check_number, check_whole

from .load import Load

WORKERS_MAX = 10_000


class WorkerRules(msgspec.Struct, frozen=True):
    """`base` workers when there is nothing to do, at most `workers_max` in any one partition.

    The seed's policies grow where more than `depth` runnable items wait per worker, `time_decay`
    after `cycles` turns in a row and up to `growth_max` times the base; it shrinks by half every
    `decay_s`, `decay_after_s` after the last growth. Little's law drains what is runnable within
    `drain_s`, with `margin` square roots to spare, and shrinks after `hold_s` with less to do.
    `fleet_max` is for all partitions together.
    """

    base: int = 8
    workers_max: int = 256
    fleet_max: int = WORKERS_MAX
    depth: float = 10.0
    cycles: int = 3
    growth_max: float = 8.0
    decay_after_s: float = 600.0
    decay_s: float = 60.0
    drain_s: float = 30.0
    margin: float = 1.0
    hold_s: float = 60.0
    probe_again_s: float = 120.0

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
