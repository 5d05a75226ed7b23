"""Scenarios about places at limits, and the bug that each of them finds.

Most of them talk to the home of a limit directly, so that they cost little and always play the
same. The others have one worker, on virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from heatsink.bulk import Context, Limit
from heatsink.bulk.batch import Rate
from heatsink.bulk.limits import Ask, HoldRequest, Offer, hold_places
from heatsink.bulk.store import LivePart
from heatsink.bulk.work.places import rule_of
from heatsink.errors import Overloaded
from heatsink.stores.memory.queue.homes import MemoryLimits
from heatsink.stores.memory.queue.places import LimitHome, MemoryPlaces
from heatsink.testing import ManualClock
from tests.bulk.world import World, stubborn_sleep

LEASE_MS = 10_000
ONE = Limit("one", running=1)


class PlaceHome:
    """The home of a limit with one place, and the offers that it has made."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.offers: list[Offer] = []
        self.store = MemoryPlaces(self.clock, self.offers.append)

    async def ask(
        self,
        holder: str,
        turn: int,
        want: int = 0,
        running: int = 0,
        limit: Limit = ONE,
        version: int = 0,
    ) -> int:
        asks = [Ask("", running=running, want=want)]
        rule = rule_of(limit, self.clock.now_s(), ("registry" if version else "", version))
        request = HoldRequest(limit.name, rule, holder, turn, LEASE_MS, asks, bell=ord(holder[0]))
        return (await hold_places(self.store, request)).granted[0].places


async def a_place_given_twice_after_a_fail_over() -> None:
    home = PlaceHome()
    assert await home.ask("a", 1, want=1) == 1
    home.store.homes["one"].keys.clear()  # a replica that lags has not seen the grant
    home.store.server[0] = "the replica"
    assert await home.ask("b", 1, want=1) == 0
    assert await home.ask("a", 2, running=1) == 0
    await home.clock.advance(LEASE_MS / 1000)
    assert await home.ask("a", 3, running=1) == 0
    assert await home.ask("b", 2, want=1) == 0


async def a_grant_that_is_lost_with_its_home() -> None:
    """A server fails before it has made a home durable. The replica does not know the limit."""
    home = PlaceHome()
    confirm, lost = home.store.confirm, list[LimitHome]()

    async def fail_over(limit: str, server: str) -> None:
        if not lost:
            lost.append(home.store.homes.pop(limit))
            home.store.server[0] = "the replica"
        await confirm(limit, server)

    home.store.confirm = fail_over  # type: ignore[method-assign]
    rule = rule_of(ONE, home.clock.now_s())
    answer = await home.store.hold(HoldRequest("one", rule, "a", 1, LEASE_MS, [Ask("", want=1)]))
    before = sum(granted.places for granted in answer.granted)
    await home.store.confirm("one", answer.server)
    assert before + await home.ask("b", 1, want=1) == 1


async def a_promoted_server_without_the_home() -> None:
    """The replica lags, and nobody waited for it: `durability="relaxed"`."""
    home = PlaceHome()
    assert await home.ask("a", 1, want=1) == 1
    home.store.homes.clear()
    home.store.server[0] = "the replica+"
    assert await home.ask("b", 1, want=1) == 0
    await home.clock.advance(LEASE_MS / 3000)
    assert await home.ask("a", 2, running=1) == 0
    await home.clock.advance(LEASE_MS / 1000)
    assert await home.ask("a", 3, running=1) == 0
    assert await home.ask("b", 2, want=1) == 0


async def a_release_that_wakes_nobody() -> None:
    home = PlaceHome()
    await home.ask("a", 1, want=1)
    await home.ask("b", 1, want=1)
    await home.ask("a", 2)
    assert [offer.partition for offer in home.offers] == [ord("b")]


async def a_place_taken_back_by_a_late_call() -> None:
    home = PlaceHome()
    await home.ask("a", 2, want=1)
    await home.ask("a", 1)
    assert await home.ask("b", 1, want=1) == 0


async def a_change_that_a_worker_does_not_hear_of() -> None:
    """An operator lowers the limit while a worker does not reach the registry."""
    home, three = PlaceHome(), Limit("one", running=3)
    assert await home.ask("a", 1, want=1, limit=three, version=1) == 1
    assert await home.ask("b", 1, version=2) == 0
    assert await home.ask("a", 2, running=1, want=1, limit=three, version=1) == 0
    assert await home.ask("a", 3, running=1, want=1, limit=three) == 0
    assert await home.ask("a", 4, running=1, want=1, limit=three, version=3) == 1


async def a_waiting_item_that_holds_up_others() -> None:
    """The first in the line has died: its offer ends, and the next one gets the place."""
    home = PlaceHome()
    await home.ask("a", 1, want=1)
    await home.ask("b", 1, want=1)
    await home.ask("c", 1, want=1)
    await home.ask("a", 2)
    await home.clock.advance(1.0)
    assert await home.ask("c", 2, want=1) == 1


async def a_dead_process_that_costs_a_place_for_each_partition() -> None:
    """All partitions of a dead process wait in the line. One missed offer says that it is dead."""
    home = PlaceHome()
    await home.ask("a/1/x", 1, want=1)
    for partition in range(4):
        await home.ask(f"dead/{partition}/x", 1, want=1)
    await home.ask("b/1/x", 1, want=1)
    await home.ask("a/1/x", 2)
    await home.clock.advance(0.2)
    assert await home.ask("b/1/x", 2, want=1) == 1


async def a_copy_of_the_record_that_groups_do_not_share() -> None:
    """The record is lost, and only parts run that do not carry its copy themselves."""
    world = World(partitions=1)

    @world.action(limits=[Limit("accounts", running=1, key="account")])
    async def send(_item: dict[str, str], _: Context) -> None:
        pass

    async with world.consumer():
        await announced(world)
    items = [{"account": name} for name in "abc"]
    batch = await world.bulk.submit("send", items)
    _carrier, *others = batch.told[0]
    assert len(others) == 2
    world.server.batches._batches.pop(batch.id)
    running = [LivePart(other.id, batch.id) for other in others]
    await world.bulk.reconciler.records.check(0, running)
    found = await world.server.batches.get(batch.id)
    assert found is not None, "it is in the part that carries it"
    assert found.parts == batch.parts


async def announced(world: World) -> None:
    """Wait until a worker has announced its limits."""
    while not (await world.server.places.declared()).limits:
        await world.clock.sleep(0.1)


async def a_pump_that_ends_while_a_handler_runs() -> None:
    """The item's lease is lost, and the worker gives its partition up and gets it again.

    The handler ignores its cancellation.
    """
    world = World(partitions=1)
    now = most = 0

    @world.action(limits=[ONE])
    async def send(_item: int, _: Context) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await stubborn_sleep(20.0)
        now -= 1

    async with world.consumer(lease_s=4.0, workers=1) as consumer:
        await announced(world)
        batch = await world.bulk.submit("send", [1])
        while not now:
            await world.clock.sleep(0.1)
        pump, queue = consumer._pumps[0], world.server.queue.held(0)
        for attempt, lease in list(queue.leases.items()):
            queue._lose(attempt, lease, lease.until_ms)
        while len(pump._ledger):
            await world.clock.sleep(0.1)
        await consumer._hand_off(0)
        assert (await world.bulk.wait(batch.id, timeout_s=120.0)).done == 1
    assert most == 1


async def items_without_places_that_take_up_the_room() -> None:
    """A batch from before any worker waits at a full limit; another batch has its place."""
    world = World(partitions=1)

    @world.action(limits=[ONE])
    async def waits(_item: int, _: Context) -> None:
        pass

    @world.action(limits=[Limit("other", running=1)])
    async def runs(_item: int, _: Context) -> None:
        pass

    rule = rule_of(ONE, world.clock.now_s())
    request = HoldRequest("one", rule, "x", 1, 3_600_000, [Ask("", running=1)], bell=0)
    await hold_places(world.server.places, request)
    await world.bulk.submit("waits", [1])
    async with world.consumer(workers=1):
        await announced(world)
        producer = world.bulk_of(world.process("later"))
        batch = await producer.submit("runs", range(3))
        with suppress(Overloaded):
            await producer.wait(batch.id, timeout_s=30.0)
        assert (await producer.status(batch.id)).done == 3


async def a_rate_that_begins_too_early() -> None:
    """A worker starts items of a lane without a rate, and then the lane gets one."""
    limits = MemoryLimits(ManualClock())
    free = await limits.reserve("send/ada", 5, 0)
    await limits.declare("send/ada", Rate(1))
    booked = await limits.reserve("send/ada", 1, 10_000)
    assert booked.wait_ms[0] >= free.free_ms > 0.0


PLACE_SCENARIOS: dict[str, Callable[[], Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (
        a_place_given_twice_after_a_fail_over,
        a_grant_that_is_lost_with_its_home,
        a_promoted_server_without_the_home,
        a_release_that_wakes_nobody,
        a_place_taken_back_by_a_late_call,
        a_change_that_a_worker_does_not_hear_of,
        a_waiting_item_that_holds_up_others,
        a_dead_process_that_costs_a_place_for_each_partition,
        a_copy_of_the_record_that_groups_do_not_share,
        a_pump_that_ends_while_a_handler_runs,
        items_without_places_that_take_up_the_room,
        a_rate_that_begins_too_early,
    )
}
