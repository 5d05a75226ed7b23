"""What a scaling policy sees of a partition: a reading, and what two of them say together."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from heatsink.bulk.store import PartitionLoad


class PartitionReading(msgspec.Struct, frozen=True):
    """A partition at one moment. `limited_per_s` is what its rate-limited lanes are granted.

    None if that is not known: then limited items count for no more than they use already.
    """

    load: PartitionLoad
    workers: int
    limited_per_s: float | None = None


class Observation(msgspec.Struct, frozen=True):
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


class Meter:
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
