"""One seeded run of results, follow-up batches and schedules, while processes die.

Workers and coordinators are killed and started again, most of them at the worst moment: just after
a batch of Heatsink's own was accepted. The link to the store loses calls and answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

from heatsink.bulk import Context, Next, Retry
from heatsink.bulk.schedules import BATCH_ID, Schedules, utc
from heatsink.coordinator.lease import Lease
from heatsink.coordinator.loops import Leader
from heatsink.coordinator.schedules import ScheduleWatch
from heatsink.errors import HeatsinkError
from heatsink.primitives.owner import Owner
from heatsink.registry.registry import Registry
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.testing import run_on_virtual_time
from tests.bulk.process import Process
from tests.bulk.world import Running, World
from tests.registry.test_registry import FOUNDING

from .history import Violation

BATCHES = 4
SINGLES = 3  # after each batch
ITEMS = 30
EVERY_S = 3
TROUBLE_S = 14.0
CALM_S = 20.0
LEASE_S = 1.0
SLOW_S = (0.01, 0.06)
THEN = ":then:"


class Coordinator:
    """A process that leads if it can, and starts schedules while it does."""

    def __init__(self, world: Flows, name: str) -> None:
        self.process = Process(name, Random(world.rng.random()), SLOW_S)
        clock = self.process.clock
        registry = Registry(world.registry, clock)
        self._lease = Lease(world.registry, name, clock, LEASE_S)
        self._leader = Leader(registry, self._lease)
        bulk = world.bulk_of(self.process, deadline_s=3.0)
        self._watch = ScheduleWatch(registry, lambda: bulk, self._leader, clock)
        self._registry = registry
        self.schedules = Schedules(registry, name, Owner())
        self.process.run(self._run())

    async def _run(self) -> None:
        await self._registry.open(FOUNDING)
        while True:
            with suppress(HeatsinkError):
                await self._lease.hold()
                if self._leader.leads:
                    await self._registry.renew()
                    await self._watch.run_once()
            await self.process.clock.sleep(0.1)

    @property
    def leads(self) -> bool:
        return self._leader.leads and not self.process.is_dead


class Flows(World):
    def __init__(self, seed: int) -> None:
        super().__init__(partitions=4)
        self.rng = Random(seed)
        self.registry = MemoryRegistry(self.clock)
        self.action(max_attempts=5, backoff_s=0.05)(self.work)
        self.action(max_attempts=5)(self.follow)
        self.action(max_attempts=5)(self.tick)
        self.lives = 0
        self.workers: list[Running] = []
        self.coordinators: list[Coordinator] = []
        self.seen: set[str] = set()
        self.events: Counter[str] = Counter()

    async def work(self, item: int, context: Context) -> list[Any]:
        await asyncio.sleep(self.rng.choice((0.0, 0.01, 0.2)))
        if self.rng.random() < 0.1:
            raise Retry(after=0.1)
        return [context.batch, item]

    async def follow(self, item: dict[str, Any], context: Context) -> None:
        self.ran.append((context.batch, item["index"], context.attempt))
        if item["result"][-1] != item["item"]:
            raise Violation(f"{context.batch}: item {item['index']} follows with another result")

    async def tick(self, item: dict[str, str], context: Context) -> None:
        self.ran.append((context.batch, item["at"], context.attempt))

    # -- processes ---------------------------------------------------------------------------

    def start_worker(self) -> None:
        self.lives += 1
        running = self.start(f"worker-{self.lives}", lease_s=LEASE_S, member_s=1.0, workers=4)
        faults = running.process.faults
        faults.lost, faults.answer_lost = self.rng.uniform(0, 0.1), self.rng.uniform(0, 0.15)
        self.workers.append(running)

    def start_coordinator(self) -> None:
        self.lives += 1
        self.coordinators.append(Coordinator(self, f"coordinator-{self.lives}"))

    async def trouble(self) -> None:
        """Kill a worker after a follow-up was accepted, or the leader after a start."""
        end_s = self.clock.monotonic_s() + TROUBLE_S
        while self.clock.monotonic_s() < end_s:
            await asyncio.sleep(0.01)
            accepted = {b.id for b in self.server.batches._batches.values() if b.is_sealed}
            fresh, self.seen = accepted - self.seen, accepted
            for id in sorted(fresh):
                if id.startswith(BATCH_ID) and self.rng.random() < 0.6:
                    await self._kill_leader()
                elif THEN in id and self.rng.random() < 0.8:
                    self._kill_workers()
            if self.rng.random() < 0.004:
                self._kill_workers()

    async def _kill_leader(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, 0.1))
        for coordinator in [one for one in self.coordinators if one.leads]:
            coordinator.process.kill()
            self.coordinators.remove(coordinator)
            self.start_coordinator()
            self.events["fail-overs"] += 1

    def _kill_workers(self) -> None:
        for running in self.workers:
            running.kill()
        self.events["killed"] += len(self.workers)
        self.workers.clear()
        for _ in range(2):
            self.start_worker()

    # -- the run -----------------------------------------------------------------------------

    async def run(self) -> Counter[str]:
        for _ in range(2):
            self.start_worker()
            self.start_coordinator()
        await asyncio.sleep(0.5)
        schedules = self.coordinators[0].schedules
        await schedules.set("tick", "tick", every=EVERY_S, missed="once")
        began_s = self.clock.now_s()
        trouble = asyncio.ensure_future(self.trouble())
        ids = [f"b{number}" for number in range(BATCHES)]
        for id in ids:
            then = Next("follow")
            await self.bulk.submit("work", range(ITEMS), id=id, then=then)
            for number in range(SINGLES):
                await self.bulk.enqueue("work", 0, id=f"{id}s{number}", then=then)
                await asyncio.sleep(self.rng.uniform(0.0, 4.0 / SINGLES))
        await trouble
        for running in self.workers:
            running.process.faults.lost = running.process.faults.answer_lost = 0.0
        for id in ids:
            await self.check_flow(id, ITEMS)
            for number in range(SINGLES):
                await self.check_flow(f"{id}s{number}", 1)
        await asyncio.sleep(CALM_S)
        await self.check_schedule(began_s)
        for coordinator in self.coordinators:
            coordinator.process.kill()
        for running in self.workers:
            running.kill()
        return self.events

    async def check_flow(self, id: str, items: int) -> None:
        progress = await self.bulk.wait(id, 120.0)
        results = [(one.index, one.value) async for one in self.bulk.results(id)]
        done = {index for index, _ in results}
        failed = await self.failed_by_deaths(id)
        if done | failed != {*range(items)} or {progress.done, len(results)} != {
            len(done - failed)
        }:
            raise Violation(f"{progress.done} items of {id} are done, with results of {done}")
        if any(value != [id, index] for index, value in results):
            raise Violation(f"{id} has the result of another item")
        try:
            follows = await self.bulk.wait(f"{id}{THEN}0", 120.0)
        except HeatsinkError as error:
            raise Violation(f"nothing follows {id}: {error}") from None
        known = self.server.batches._batches.values()
        ids = sorted(b.id for b in known if b.id.startswith(f"{id}{THEN}") and b.is_sealed)
        ran = {index for batch, index, _ in self.ran if batch == follows.id}
        died = await self.failed_by_deaths(follows.id)
        if len(ids) != 1 or follows.accepted != len(done) or not ran <= done:
            raise Violation(f"{ids} follow {id}, with {follows.accepted} items")
        if follows.done != len(done) - len(died):
            raise Violation(f"{follows.done} items of {follows.id} are done")
        self.events["flows"] += 1

    async def failed_by_deaths(self, id: str) -> set[int]:
        """The items that failed, as they should, because three workers died with each."""
        found = [failure async for failure in self.bulk.failures(id)]
        if any(not one.reason.startswith("the worker died 3 times") for one in found):
            raise Violation(f"an item of {id} failed: {found[0].reason}")
        return {one.index for one in found}

    async def check_schedule(self, began_s: float) -> None:
        """Each time has started one batch, and the last times, in calm, all have started."""
        starts: dict[str, set[str]] = {}
        for batch, at, _ in self.ran:
            if batch.startswith(BATCH_ID):
                starts.setdefault(str(at), set()).add(batch)
        for at, batches in starts.items():
            if len(batches) > 1:
                raise Violation(f"the schedule started {sorted(batches)} for {at}")
        step_ms = EVERY_S * 1000
        last = int((self.clock.now_s() - 2.0) * 1000) // step_ms * step_ms
        for time_ms in (last, last - step_ms, last - 2 * step_ms):  # nobody was killed any more
            if utc(time_ms) not in starts:
                raise Violation(f"the schedule did not start for {utc(time_ms)}")
        self.events["starts"] += len(starts)
        if last / 1000 < began_s:
            raise Violation("the run was too short")


def simulate(seed: int) -> Counter[str]:
    """Play one seed. Raises `Violation`; returns how often what happened."""

    async def run() -> Counter[str]:
        return await Flows(seed).run()

    return run_on_virtual_time(run())
