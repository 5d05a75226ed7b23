"""The control loop for queue workers, put together: what a coordinator turns while it leads."""

from __future__ import annotations

import asyncio
import logging

from heatsink.bulk.bulk import Bulk
from heatsink.bulk.scaling.advice import Advisor
from heatsink.bulk.scaling.load import Observation, PartitionReading
from heatsink.bulk.scaling.policy import WorkerPolicy
from heatsink.bulk.store import QueueStores
from heatsink.clock import Clock
from heatsink.control.coordinator import Coordinator
from heatsink.control.loop import ControlLoop
from heatsink.registry.decision import Decision

logger = logging.getLogger("heatsink")
TURN_S = 1.0
HEALTH_S = 10.0
REPEAT_S = 30.0


class QueueWatch:
    """Reads every partition's load, decides worker targets, watches the servers below.

    Targets are soft: whoever missed one, or came later, hears all of them again within `REPEAT_S`.
    """

    def __init__(
        self,
        stores: QueueStores,
        bulk: Bulk,
        policy: WorkerPolicy,
        coordinator: Coordinator,
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._bulk = bulk
        self._coordinator = coordinator
        self._clock = clock
        self._loop = ControlLoop(self.observe, policy, self._publish)
        self._advisor = Advisor()
        self._targets: dict[tuple[str, str], Decision] = {}
        self._turned_s = self._examined_s = self._repeated_s = float("-inf")
        self.latest: Observation | None = None

    @property
    def targets(self) -> list[Decision]:
        return list(self._targets.values())

    async def run_once(self) -> list[Decision]:
        """One turn a second, however often the coordinator comes round."""
        now_s = self._clock.monotonic_s()
        if now_s - self._turned_s < TURN_S:
            return []
        self._turned_s = now_s
        decided = await self._loop.run_once()
        if now_s - self._examined_s >= HEALTH_S:
            self._examined_s = now_s
            decided += await self._publish(await self._advice(now_s))
        if now_s - self._repeated_s >= REPEAT_S:
            self._repeated_s = now_s
            await self._say(self.targets)
        return decided

    async def observe(self) -> Observation:
        await self._bulk.open()
        numbers = range((await self._bulk.plan()).high_water)
        loads = await asyncio.gather(*(self._stores.queue.load(number) for number in numbers))
        readings = {
            number: PartitionReading(load, load.workers)
            for number, load in zip(numbers, loads, strict=True)
            if load.workers
        }
        self.latest = Observation(self._clock.monotonic_s(), readings)
        return self.latest

    async def _advice(self, now_s: float) -> list[Decision]:
        partitions = (await self._bulk.plan()).high_water
        advice = self._advisor.advise(now_s, await self._stores.health(partitions))
        for decision in advice:
            logger.warning("%s: %s", decision.subject, decision.reason)
        return advice

    async def _publish(self, decisions: list[Decision]) -> list[Decision]:
        for decision in decisions:
            self._targets[decision.subject, decision.setting] = decision
        await self._say(decisions)
        return decisions

    async def _say(self, decisions: list[Decision]) -> None:
        term = self._coordinator.term
        if decisions and term is not None:
            await self._stores.soft.publish(decisions, term)
