"""Pauses and weights of tenants and actions that operators change while workers run."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from heatsink.bulk import BulkSettings, Context, Limit
from heatsink.bulk.controls import Controls

from .test_limits import announced
from .world import Running, World, on_virtual_time

SOON_S = 0.5


@dataclass
class Operator:
    """Changes controls, as the registry does: every process that runs follows it."""

    world: World
    workers: list[Running]
    now: Controls = Controls("registry", 1)  # noqa: RUF009 - a frozen struct

    def start(self, name: str, **settings: Any) -> Running:
        worker = self.world.start(name, **settings)
        self.workers.append(worker)
        self._tell(worker)
        return worker

    async def pause(self, *tenants: str, actions: tuple[str, ...] = ()) -> None:
        """Pause these, and nothing else. Wait until the workers follow."""
        await self.set(tenants=frozenset(tenants), actions=frozenset(actions))

    async def set(self, **changed: Any) -> None:
        self.now = Controls(self.now.incarnation, self.now.version + 1, **changed)
        for worker in self.workers:
            self._tell(worker)
        await asyncio.sleep(SOON_S)

    def _tell(self, worker: Running) -> None:
        worker.consumer._bulk.adopt(BulkSettings(partitions=self.world.partitions), self.now)


def world_of(partitions: int = 4) -> tuple[World, Operator, Counter[str]]:
    """A world whose action `slow` counts the starts of each tenant."""
    world, starts = World(partitions), Counter[str]()

    @world.action()
    async def slow(_item: Any, context: Context) -> None:
        starts[context.tenant] += 1
        await asyncio.sleep(0.1)

    return world, Operator(world, []), starts


@on_virtual_time
async def test_a_paused_tenant_stands_still_and_holds_up_nobody() -> None:
    world, operator, starts = world_of()
    worker = operator.start("one", workers=2)
    ada = await world.bulk.submit("slow", range(200), tenant="ada")
    bob = await world.bulk.submit("slow", range(200), tenant="bob")
    await asyncio.sleep(1.0)
    await operator.pause("ada")
    stood = starts["ada"]
    assert (await world.bulk.wait(bob.id, 20.0)).done == 200
    await asyncio.sleep(60.0)
    progress = await world.bulk.status(ada.id)
    assert (starts["ada"], progress.running) == (stood, 0)
    assert (progress.state, progress.reason) == ("running", "the tenant 'ada' is paused")
    await operator.pause()
    assert starts["ada"] > stood, "a resume wakes the workers at once"
    assert (await world.bulk.wait(ada.id, 60.0)).done == 200
    await worker.stop()


@on_virtual_time
async def test_a_paused_action_gives_back_what_has_not_started() -> None:
    """One handler runs at a time, so other claimed items wait in the process."""
    world, operator, starts = world_of(partitions=1)
    worker = operator.start("one", workers=4, concurrency=1)
    batch = await world.bulk.submit("slow", range(50))
    await asyncio.sleep(1.0)
    await operator.pause(actions=("slow",))
    progress, stood = await world.bulk.status(batch.id), starts.total()
    assert (progress.running, progress.reason) == (0, "the action 'slow' is paused")
    other = await world.bulk.submit("note", range(5))
    assert (await world.bulk.wait(other.id, 5.0)).done == 5
    assert starts.total() == stood
    await operator.pause()
    assert (await world.bulk.wait(batch.id, 60.0)).done == 50
    assert starts.total() == 50
    await worker.stop()


@on_virtual_time
async def test_another_owner_of_a_partition_follows_the_same_pauses() -> None:
    world, operator, starts = world_of()
    first = operator.start("one")
    await world.bulk.submit("slow", range(2_000), tenant="ada")
    await asyncio.sleep(1.0)
    await operator.pause("ada")
    first.kill()
    operator.workers.remove(first)
    stood = starts["ada"]
    blind = world.start("two")  # it follows no registry
    await asyncio.sleep(60.0)
    assert starts["ada"] == stood
    third = operator.start("three")
    await operator.pause()
    await asyncio.sleep(10.0)
    assert starts["ada"] > stood
    for worker in (blind, third):
        await worker.stop()


@on_virtual_time
async def test_a_paused_tenant_holds_no_place_at_a_limit() -> None:
    world, operator, starts = world_of()
    one = Limit("one", running=1)

    @world.action(limits=[one])
    async def limited(_item: Any, context: Context) -> None:
        starts[context.tenant] += 1
        await asyncio.sleep(0.1)

    worker = operator.start("one")
    await announced(world)
    ada = await world.bulk.submit("limited", range(100), tenant="ada")
    bob = await world.bulk.submit("limited", range(50), tenant="bob")
    await asyncio.sleep(1.0)
    await operator.pause("ada")
    stood = starts["ada"]
    progress = await world.bulk.wait(bob.id, 10.0)
    assert (progress.done, starts["ada"]) == (50, stood)
    await asyncio.sleep(2.0)
    uses = await world.server.places.use("one", 5)
    assert all((use.running, use.waiting) == (0, 0) for use in uses)
    await operator.pause()
    assert (await world.bulk.wait(ada.id, 30.0)).done == 100
    await worker.stop()


@on_virtual_time
async def test_a_weight_that_changes_holds_for_running_batches() -> None:
    world, operator, starts = world_of(partitions=1)
    worker = operator.start("one", workers=2)
    for tenant in ("ada", "bob"):
        await world.bulk.submit("slow", range(1_000), tenant=tenant)
    await asyncio.sleep(5.0)
    assert 0.8 < starts["ada"] / starts["bob"] < 1.25
    await operator.set(weights={"ada": 4.0})
    starts.clear()
    await asyncio.sleep(15.0)
    assert 3.0 < starts["ada"] / starts["bob"] < 5.0
    await worker.stop()
