"""Scenarios about remote workers, and the bug that each of them finds.

Servers and workers are processes on virtual time, which can be killed. A worker here calls a `Desk`
as it would over HTTP.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from heatsink.bulk import Limit
from heatsink.bulk.settings import ConsumerSettings
from heatsink.bulk.work.consumer import Consumer
from heatsink.bulk.work.remote import (
    Desk,
    Handed,
    ItemOutcome,
    WaitingClaim,
    remote_action,
    remote_actions,
)
from heatsink.errors import Overloaded
from tests.bulk.process import Process
from tests.bulk.world import World

from .place_scenarios import announced

LEASE_S = 2.0
ONE = Limit("one", running=1)


class RemoteWorld:
    """One queue, with servers for remote workers. `most` items ran at a time."""

    def __init__(self, takes_s: float, *limits: Limit) -> None:
        self.world = World(partitions=2)
        self.takes_s = takes_s
        self.actions = {"send": remote_action("send", limits=limits)}
        self.ran: Counter[int] = Counter()
        self.now = self.most = 0

    def serve(self, name: str) -> tuple[Process, Desk]:
        process = self.world.process(name)
        bulk, stores = self.world.bulk_of(process), process.stores(self.world.server)
        desk = Desk(stores, bulk, process.clock, process.rng)
        desk.offer(self.actions)
        chosen = ConsumerSettings(lease_s=LEASE_S, member_s=1.0)
        about = chosen, name, process.clock, process.rng
        consumer = Consumer(stores, bulk, remote_actions(self.actions.values()), *about)
        consumer.hand_over_at(desk)
        process.run(consumer.run())
        return process, desk

    def work(self, name: str, claims: Desk, others: Desk | None = None) -> Process:
        """Start a worker that claims at one server. It renews and reports at `others`."""
        process = self.world.process(name)
        process.run(self._work(claims, others or claims))
        return process

    async def _work(self, claims: Desk, others: Desk) -> None:
        while True:
            waiting = WaitingClaim(self.actions, 4, int(LEASE_S * 1000))
            for item in await claims.claim(waiting, 5.0, asyncio.Event().wait):
                asyncio.get_running_loop().create_task(self._run(item, others))

    async def _run(self, item: Handed, desk: Desk) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        self.ran[item.index] += 1
        try:
            for _ in range(int(self.takes_s / (LEASE_S / 4))):
                await asyncio.sleep(LEASE_S / 4)
                if await desk.renew([item.lease.token]):
                    return
        finally:
            self.now -= 1
        await desk.report([ItemOutcome(item.lease.token, "done")])

    async def submit(self, count: int) -> str:
        return (await self.world.bulk.submit("send", range(count))).id

    async def is_done(self, batch: str, count: int) -> bool:
        with suppress(Overloaded):
            await self.world.bulk.wait(batch, timeout_s=120.0)
        return (await self.world.bulk.status(batch)).done == count

    async def runs(self) -> None:
        """Wait until an item runs."""
        while not self.now:
            await self.world.clock.sleep(0.1)


async def a_place_kept_for_the_next_item() -> None:
    """An item that was handed over still runs, so its place is not free."""
    remote = RemoteWorld(LEASE_S / 2, ONE)
    _, desk = remote.serve("server")
    remote.work("worker", desk)
    await announced(remote.world)
    assert await remote.is_done(await remote.submit(6), 6)
    assert remote.most == 1


async def a_renewal_without_the_place() -> None:
    """Items run for several leases, and another server than theirs renews them."""
    remote = RemoteWorld(3 * LEASE_S, ONE)
    (_, first), (_, second) = remote.serve("first"), remote.serve("second")
    remote.work("one", first, second)
    remote.work("other", second, first)
    await announced(remote.world)
    assert await remote.is_done(await remote.submit(3), 3)
    assert remote.most == 1
    assert set(remote.ran.values()) == {1}


async def a_lease_that_items_share() -> None:
    remote = RemoteWorld(0.0)
    _, desk = remote.serve("server")
    remote.work("worker", desk)
    assert await remote.is_done(await remote.submit(20), 20)
    assert remote.ran == Counter(range(20))


async def a_dead_worker_whose_server_lives() -> None:
    """The server must not go on renewing what it has handed over."""
    remote = RemoteWorld(LEASE_S)
    _, desk = remote.serve("server")
    worker = remote.work("worker", desk)
    batch = await remote.submit(4)
    await remote.runs()
    worker.kill()
    remote.work("another", desk)
    assert await remote.is_done(batch, 4)


async def a_server_that_dies_with_items_elsewhere() -> None:
    """The worker goes on at another server, and nothing runs twice."""
    remote = RemoteWorld(2 * LEASE_S)
    (dying, first), (_, second) = remote.serve("first"), remote.serve("second")
    remote.work("worker", first, second)
    batch = await remote.submit(8)
    await remote.runs()
    ran = sorted(remote.ran)
    dying.kill()
    remote.work("another", second)
    assert await remote.is_done(batch, 8)
    assert all(remote.ran[index] == 1 for index in ran)


REMOTE_SCENARIOS: dict[str, Callable[[], Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (
        a_place_kept_for_the_next_item,
        a_renewal_without_the_place,
        a_lease_that_items_share,
        a_dead_worker_whose_server_lives,
        a_server_that_dies_with_items_elsewhere,
    )
}
