"""Scenarios about batches of one item, which are accepted and ended by one call each.

Each scenario finds a bug in what such a batch may have besides its item: a rate, a result, batches
that follow, a time for which its id is kept. Others find bugs in how an idle worker gets it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from unittest.mock import patch

from msgspec.structs import replace

from heatsink.bulk import Context
from heatsink.bulk.batch import KEEP_SINGLE_MS
from heatsink.bulk.store import Handover
from heatsink.stores.memory.queue.homes import MemoryBell
from tests.bulk.world import World

WAIT_S = 60.0
IDLE_S = 0.6  # until a new worker's claim stands
SOON_S = 4.0  # much less than a lease


class Doubles(World):
    """`double` returns twice its item."""

    def __init__(self) -> None:
        super().__init__()
        self.action()(self.double)

    async def double(self, item: int, _: Context) -> int:
        return 2 * item

    @property
    def general(self) -> int:
        """How many batches were accepted in the general way: their parts were staged."""
        shares = [s for q in self.server.queue.partitions.values() for s in q.shares.values()]
        return sum(not share.is_single for share in shares)


async def a_rate_that_nobody_declared() -> None:
    """The first single with a rate declares it, and the others of its lane take the short way."""
    world = Doubles()
    async with world.consumer():
        batches = [await world.bulk.submit("note", [n], rate="2/s") for n in range(7)]
        for batch in batches:
            await world.bulk.wait(batch.id, WAIT_S)
    assert world.general == 1
    starts = sorted(world.starts_s)
    assert all(late - early >= 1.0 for early, late in zip(starts, starts[2:], strict=False))


async def a_result_forgotten_with_its_part() -> None:
    world = Doubles()
    async with world.consumer():
        batch = await world.bulk.enqueue("double", 4, results="keep")
        assert (await world.bulk.wait(batch.id, WAIT_S)).done == 1
        found = [(each.index, each.value) async for each in world.bulk.results(batch.id)]
    assert found == [(0, 8)]
    assert not world.general


async def a_follow_up_that_nobody_submits() -> None:
    """Nobody waits for the batch that follows: who waits for it submits it, too."""
    world = Doubles()
    async with world.consumer():
        await world.bulk.enqueue("double", 4, id="a", then="note")
        await world.clock.sleep(WAIT_S)
    assert world.items_run("a:then:0") == [{"index": 0, "item": 4, "result": 8}]


async def an_item_that_is_gone_when_others_follow() -> None:
    await a_follow_up_that_nobody_submits()


async def a_key_forgotten_within_its_window() -> None:
    """The record of an anonymous single is deleted an hour after its end."""
    world = Doubles()
    day_s = 86_400.0
    world.clock.offset_s += day_s - world.clock.now_s() % day_s + 60.0
    async with world.consumer():
        first = await world.bulk.enqueue("note", 1, unique="a", within=day_s)
        await world.bulk.wait(first.id, WAIT_S)
        world.clock.offset_s += KEEP_SINGLE_MS / 1000 + 60.0
        again = await world.bulk.enqueue("note", 1, unique="a", within=day_s)
        await world.bulk.wait(again.id, WAIT_S)
    assert world.items_run(first.id) == [1]


class Handovers(World):
    """Keeps the handovers that its processes should hear."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.kept: list[tuple[MemoryBell, Handover]] = []
        self.keep = patch.object(MemoryBell, "hand_over", lambda *about: self.kept.append(about))

    async def kept_one(self) -> None:
        """Accept a single that the standing claim of an idle worker gets."""
        await self.clock.sleep(IDLE_S)
        await self.bulk.enqueue("note", 1, id="a")
        assert len(self.kept) == 1

    def hear(self) -> None:
        for bell, handover in self.kept:
            bell._handovers.append(handover)
            bell._wake()


async def a_handover_that_gets_lost() -> None:
    """The next claim takes the item back, long before its lease ends."""
    world = Handovers()
    with world.keep:
        async with world.consumer():
            await world.kept_one()
            await world.clock.sleep(SOON_S)
    assert world.ran == [("a", 1, 1)]


async def a_handover_that_comes_late() -> None:
    """A claim has taken the item back, and it has run."""
    world = Handovers()
    with world.keep:
        async with world.consumer():
            await world.kept_one()
            await world.clock.sleep(SOON_S)
            world.hear()
            await world.clock.sleep(SOON_S)
    assert world.ran == [("a", 1, 1)]


async def a_handover_to_a_worker_that_stops() -> None:
    world = Handovers()
    with world.keep:
        async with world.consumer():
            await world.kept_one()
        async with world.consumer("two"):
            await world.clock.sleep(SOON_S)
    assert world.ran == [("a", 1, 1)]


async def a_handover_for_a_claim_that_is_over() -> None:
    """The server was restored from an older copy, in which another claim stood."""
    world = Handovers()
    async with world.consumer():
        await world.clock.sleep(IDLE_S)
        (queue,) = world.server.queue.partitions.values()
        assert queue.standing is not None
        queue.standing = replace(queue.standing, attempt="over")
        await world.bulk.enqueue("note", 1, id="a")
        assert queue.handed_over.startswith("over:")
        await world.clock.sleep(SOON_S)
    assert world.ran == [("a", 1, 1)]


SINGLE_SCENARIOS: dict[str, Callable[[], Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (
        a_rate_that_nobody_declared,
        a_result_forgotten_with_its_part,
        a_follow_up_that_nobody_submits,
        an_item_that_is_gone_when_others_follow,
        a_key_forgotten_within_its_window,
        a_handover_that_gets_lost,
        a_handover_that_comes_late,
        a_handover_to_a_worker_that_stops,
        a_handover_for_a_claim_that_is_over,
    )
}
