"""The last minutes, for whoever opens a dashboard now. Taken from memory alone: nobody is asked."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime

import msgspec

from heatsink.client.heatsink import Heatsink
from heatsink.clock import Clock
from heatsink.service.api.metrics import Metrics
from heatsink.service.api.routes import Call, Reply
from heatsink.service.api.shapes import NoQuery, ReadActivity, Requests

from .operations import heat_of, reads_of

EVERY_S = 2.0
SAMPLES = 150
KEYS = 50


class Sample(msgspec.Struct, frozen=True):
    """Heat of the hottest keys together; what waits and who works in each queue partition."""

    time: datetime
    write_units_s: float
    reads_s: float
    throttles_s: float
    requests: Requests
    reads: ReadActivity
    waiting: list[int]
    workers: list[int]
    finished: int


class RecentAnswer(msgspec.Struct, frozen=True):
    """The oldest first; `now` is the server's time."""

    now: datetime
    samples: list[Sample]


class Recent:
    def __init__(self, hs: Heatsink, metrics: Metrics, clock: Clock) -> None:
        self._hs = hs
        self._metrics = metrics
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    async def run(self) -> None:
        while True:
            self._samples.append(await self._look())
            await self._clock.sleep(EVERY_S)

    def answer(self) -> RecentAnswer:
        return RecentAnswer(self._now(), list(self._samples))

    async def _look(self) -> Sample:
        keys = (await heat_of(self._hs, KEYS)).keys
        watch = self._hs.queue_watch
        readings = watch.latest.partitions if watch and watch.latest else {}
        loads = {number: reading.load for number, reading in readings.items()}
        numbers = range(max(loads, default=-1) + 1)
        return Sample(
            time=self._now(),
            write_units_s=round(sum(key.write_units_s for key in keys), 1),
            reads_s=round(sum(key.reads_s for key in keys), 1),
            throttles_s=round(sum(key.throttles_s for key in keys), 1),
            requests=self._metrics.totals(),
            reads=reads_of(self._hs),
            waiting=[
                load.runnable + load.limited + load.delayed if (load := loads.get(n)) else 0
                for n in numbers
            ],
            workers=[load.workers if (load := loads.get(n)) else 0 for n in numbers],
            finished=sum(load.done + load.failed for load in loads.values()),
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_s(), UTC)


async def recent(call: Call[NoQuery, None]) -> Reply:
    return Reply(call.service.recent())
