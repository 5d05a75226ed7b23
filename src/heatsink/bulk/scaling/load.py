"""The input of scaling policies: a partition's load from two readings, and the rules.

A scaling law maps the load of one partition to its number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from heatsink.bulk.store import PartitionLoad
from heatsink.primitives.checks import CheckedStruct, check_number, check_whole

WORKERS_MAX = 10_000


class WorkerRules(CheckedStruct, frozen=True):
    """How many workers there may be, and the parameters of the scaling laws."""

    base: int = 8
    """Workers of an idle partition."""
    workers_max: int = 256
    """Maximum number of workers of one partition."""
    fleet_max: int = WORKERS_MAX
    """Maximum number of workers of all partitions together."""
    depth: float = 10.0
    """`exponential`, `congestion` and `time_decay` add workers above this many runnable items per
    worker."""
    cycles: int = 3
    """`time_decay` adds workers after this many turns above `depth` in a row."""
    growth_max: float = 8.0
    """`time_decay` adds workers up to this multiple of `base`."""
    decay_after_s: float = 600.0
    """`time_decay` starts to remove workers this long after the last turn above `depth`."""
    decay_s: float = 60.0
    """While `time_decay` removes workers, it halves them at this interval."""
    drain_s: float = 10.0
    """`littles_law` provides enough workers to run all runnable items within this time."""
    margin: float = 1.0
    """`littles_law` adds `margin` × √n workers as a reserve, if arriving items need n workers."""
    hold_s: float = 60.0
    """`littles_law` removes workers that were not needed for this long."""
    probe_again_s: float = 120.0
    """`littles_law` measures a knee again after 30 s. Then the interval doubles up to this time."""

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


class PartitionReading(msgspec.Struct, frozen=True):
    """A partition at one moment."""

    load: PartitionLoad
    workers: int
    is_fresh: bool = True
    """False if the partition was idle, and was not read in this turn."""


class WorkerObservation(msgspec.Struct, frozen=True):
    time_s: float
    partitions: Mapping[int, PartitionReading]


class Load(msgspec.Struct, frozen=True):
    """A partition's load, computed from two readings.

    `settled` and `used_s` are running totals: the `settled` items took `used_s` seconds in total.
    The two rates are averages since the last reading. `service_s`, the time per item, is 0 until
    known.
    """

    time_s: float
    workers: int
    runnable: int = 0
    limited: int = 0
    in_flight: int = 0
    settled: int = 0
    used_s: float = 0.0
    service_s: float = 0.0
    arrival_per_s: float = 0.0
    done_per_s: float = 0.0

    @property
    def depth(self) -> float:
        """Runnable items per worker."""
        return self.runnable / max(self.workers, 1)

    @property
    def work_s(self) -> float:
        """How many seconds one worker would need for all runnable items."""
        return self.runnable * self.service_s


class LoadMeter:
    """Computes loads from one partition's readings."""

    def __init__(self) -> None:
        self._time_s: float | None = None
        self._present = 0
        self._done = 0
        self._service_s = 0.0

    def read(self, reading: PartitionReading, time_s: float) -> Load:
        seen = reading.load
        done = seen.done + seen.failed
        present = seen.runnable + seen.limited + seen.delayed + seen.in_flight
        elapsed_s = time_s - self._time_s if self._time_s is not None else 0.0
        finished = max(done - self._done, 0)
        arrived = max(present - self._present + finished, 0)
        if done and seen.service_us:
            self._service_s = seen.service_us / 1e6
        if reading.is_fresh:
            self._time_s, self._present, self._done = time_s, present, done
        return Load(
            time_s=time_s,
            workers=reading.workers,
            runnable=seen.runnable,
            limited=seen.limited,
            in_flight=seen.in_flight,
            settled=done + seen.retried,
            used_s=seen.used_us / 1e6,
            service_s=self._service_s,
            arrival_per_s=arrived / elapsed_s if elapsed_s > 0 else 0.0,
            done_per_s=finished / elapsed_s if elapsed_s > 0 else 0.0,
        )


class Target(msgspec.Struct, frozen=True):
    workers: int
    reason: str


class Law(Protocol):
    """A scaling law for one partition. `target` returns None if the workers should not change."""

    def target(self, load: Load) -> Target | None: ...
