"""A fleet on virtual time: production consumers, a queue in memory, and services to call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from heatsink.bulk.actions import Actions, Context, RateLimited
from heatsink.bulk.batch import Batch
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.scaling.load import Law, WorkerRules
from heatsink.bulk.scaling.policy import POLICIES, WorkerPolicy
from heatsink.bulk.settings import BulkSettings, ConsumerSettings
from heatsink.bulk.store import PartitionLoad
from heatsink.bulk.work.consumer import Consumer
from heatsink.coordinator.loops import Leader
from heatsink.coordinator.workers import QueueWatch
from heatsink.primitives.clock import Clock
from heatsink.registry.decisions import Decision
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import SkewedClock

Handler = Callable[[Any, Context], Awaitable[None]]
ACTION = "call"
WORKERS_MAX = 256
TURN_S = 1.0
RECENT = 200


class AlwaysLeading:
    """Stands in for the coordinator that a `QueueWatch` needs: it always leads."""

    term = 1

    async def publish(self, decisions: list[Decision]) -> list[Decision]:
        return decisions


@dataclass(frozen=True)
class WorkerFleet:
    """The partitions and workers of a `LabWorld`.

    If neither `policy` nor `law` is set, the number of workers is fixed.
    """

    partitions: int = 1
    workers: int = 8
    policy: str = ""
    rules: WorkerRules = field(default_factory=WorkerRules)
    seed: int = 1
    law: Callable[[WorkerRules], Law] | None = None
    """A scaling law of an experiment, instead of a policy."""


class LabWorld:
    def __init__(self, fleet: WorkerFleet, handler: Handler, clock: SkewedClock) -> None:
        self.fleet = fleet
        self.clock = clock
        self.server = MemoryQueueServer(clock)
        actions, stores = Actions(), self.server.stores()
        actions.action(ACTION)(handler)
        settings = BulkSettings(partitions=fleet.partitions)
        self.bulk = Bulk(stores, settings, clock, Random(fleet.seed))
        self.consumer = Consumer(
            stores,
            self.bulk,
            actions,
            ConsumerSettings(fleet.workers, WORKERS_MAX),
            "lab",
            clock,
            Random(fleet.seed + 1),
        )

    def now_s(self) -> float:
        return self.clock.monotonic_s()

    def watch(self) -> QueueWatch:
        fleet = self.fleet
        policy = (
            WorkerPolicy(fleet.law, fleet.rules)
            if fleet.law
            else POLICIES[fleet.policy](fleet.rules)
        )
        leading = cast("Leader", AlwaysLeading())
        return QueueWatch(self.server.stores(), self.bulk, policy, leading, self.clock)

    async def load(self, partition: int = 0) -> PartitionLoad:
        return await self.server.queue.load(partition)

    async def until_run(self, batch: Batch) -> None:
        """Wait until all items of the batch are done, to the millisecond.

        `Bulk.wait` polls less often.
        """
        while (await self.bulk.status(batch.id)).done < batch.items:
            await self.clock.sleep(0.001)

    async def until_owned(self) -> None:
        while len(self.consumer.partitions) < self.fleet.partitions:
            await self.clock.sleep(0.1)

    async def every(self, pause_s: float, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            await work()
            await self.clock.sleep(pause_s)

    @asynccontextmanager
    async def looking(self, look: Callable[[LabWorld], Awaitable[object]]) -> AsyncIterator[None]:
        """Call `look` once a second during the block."""
        looking = asyncio.ensure_future(self.every(TURN_S, lambda: look(self)))
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


@asynccontextmanager
async def world(
    fleet: WorkerFleet, handler: Handler, clock: SkewedClock
) -> AsyncIterator[LabWorld]:
    """Yield a world with a running consumer.

    If the fleet has a scaling policy or a scaling law, a coordinator sets the number of workers.
    """
    made = LabWorld(fleet, handler, clock)
    rounds = [asyncio.ensure_future(made.consumer.run())]
    if fleet.policy or fleet.law:
        rounds.append(asyncio.ensure_future(made.every(TURN_S, made.watch().run_once)))
    try:
        await made.until_owned()
        yield made
    finally:
        for task in rounds:
            task.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)


@dataclass
class Saturating:
    """A service that saturates at `full` concurrent calls. With more calls, each takes longer."""

    clock: Clock
    service_s: float
    full: int
    in_flight: int = 0
    _recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def p95_s(self) -> float:
        """Return the 95th percentile of the durations of the last RECENT calls."""
        ordered = sorted(self._recent_s)
        return ordered[len(ordered) * 95 // 100] if ordered else 0.0

    async def call(self, *_: object) -> None:
        self.in_flight += 1
        try:
            took_s = self.service_s * max(self.in_flight / self.full, 1.0)
            self._recent_s.append(took_s)
            await self.clock.sleep(took_s)
        finally:
            self.in_flight -= 1


@dataclass
class StrictDownstream:
    """A service that accepts at most `per_s` calls in any second, and refuses all others."""

    clock: Clock
    per_s: float
    answer_s: float = 0.05
    calls: int = 0
    refused: int = 0
    _taken_s: deque[float] = field(default_factory=deque)

    async def call(self, *_: object) -> None:
        self.calls += 1
        now_s = self.clock.monotonic_s()
        while self._taken_s and self._taken_s[0] <= now_s - 1:
            self._taken_s.popleft()
        is_taken = len(self._taken_s) < self.per_s
        if is_taken:
            self._taken_s.append(now_s)
        await self.clock.sleep(self.answer_s)
        if not is_taken:
            self.refused += 1
            raise RateLimited
