"""Scenarios about tenants that operators pause, and the bug that each of them finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from heatsink.bulk.controls import Controls
from heatsink.bulk.store import ClaimRequest
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import ManualClock
from tests.bulk.driver import LEASE_MS, PARTITION, Driver

PAUSED = Controls("registry", 5, tenants=frozenset({"ada"}))
RESUMED = Controls("registry", 6)


class Partition:
    """A partition with items of a tenant, and the processes that own it in turn."""

    def __init__(self) -> None:
        self.server = MemoryQueueServer(ManualClock())
        self.driver = Driver(self.server.stores(), ManualClock())
        self.claims = 0

    async def control(self, controls: Controls) -> None:
        while await self.driver.stores.queue.control(PARTITION, controls):
            pass

    async def claimed(self, process: str, controls: Controls) -> int:
        """How many items a process gets that has just become the owner and knows these controls."""
        stores, self.claims = self.driver.stores, self.claims + 1
        await stores.fleet.own(PARTITION, process, 60_000)
        request = ClaimRequest(process, f"{self.claims}", 10, LEASE_MS, controls=controls)
        found = await stores.queue.claim(PARTITION, request)
        if not found.controlled:
            await self.control(controls)
        await stores.fleet.disown(PARTITION, process)
        return sum(each.count for each in found.slices)

    def lose_controls(self) -> None:
        """The server comes back from before the pause."""
        queue = self.server.queue.held(PARTITION)
        queue.controls, held = Controls(), list(queue.shares.values())
        for share in held:
            queue._put(share, 0.0)


async def a_paused_tenant_that_the_next_owner_serves() -> None:
    partition = Partition()
    await partition.driver.submit("a", [3])
    await partition.control(PAUSED)
    partition.lose_controls()
    assert await partition.claimed("next", PAUSED) == 0
    assert await partition.claimed("without a registry", Controls()) == 0


async def a_resume_that_a_late_process_undoes() -> None:
    partition = Partition()
    await partition.driver.submit("a", [3])
    await partition.control(PAUSED)
    await partition.control(RESUMED)
    assert await partition.claimed("late", PAUSED) == 3, "it still believes in the pause"
    await partition.driver.submit("b", [2])
    assert await partition.claimed("next", RESUMED) == 2


async def a_resume_that_wakes_nobody() -> None:
    partition = Partition()
    await partition.driver.submit("a", [3])
    await partition.control(PAUSED)
    assert await partition.claimed("one", PAUSED) == 0
    await partition.control(RESUMED)
    assert await partition.claimed("one", RESUMED) == 3


CONTROL_SCENARIOS: dict[str, Callable[[], Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (
        a_paused_tenant_that_the_next_owner_serves,
        a_resume_that_a_late_process_undoes,
        a_resume_that_wakes_nobody,
    )
}
