"""What a scaling policy sees of a partition: a reading, and what two of them say together.

The knobs of the scaling policies, and what a law for one partition is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from heatsink.bulk.store import PartitionLoad
from heatsink.primitives.checks import check_number, check_whole


class PartitionReading(msgspec.Struct, frozen=True):
    """A partition at one moment. `limited_per_s` is what its rate-limited lanes are granted.

    None if that is not known: then limited items count for no more than they use already.
    """

    load: PartitionLoad
    workers: int
    limited_per_s: float | None = None


class WorkerObservation(msgspec.Struct, frozen=True):
    time_s: float
    partitions: Mapping[int, PartitionReading]


class Load(msgspec.Struct, frozen=True):
    """A partition over the time since it was last read.

    `settled` items have taken `used_s` in all. `service_s` is 0 until it is known.
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
    limited_per_s: float | None = None

    @property
    def depth(self) -> float:
        """Runnable items per worker."""
        return self.runnable / max(self.workers, 1)

    @property
    def work_s(self) -> float:
        """Seconds of work that wait for nothing but a worker."""
        return self.runnable * self.service_s


class LoadMeter:
    """Turns one partition's readings into loads."""

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
            limited_per_s=reading.limited_per_s,
        )


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
