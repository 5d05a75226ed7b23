"""Scenarios about batches of one item, which are accepted and ended by one call each.

Each scenario finds a bug in what such a batch may have besides its item: a rate, a result, batches
that follow, a time for which its id is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from heatsink.bulk import Context
from heatsink.bulk.batch import KEEP_SINGLE_MS
from tests.bulk.world import World

WAIT_S = 60.0


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


SINGLE_SCENARIOS: dict[str, Callable[[], Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (
        a_rate_that_nobody_declared,
        a_result_forgotten_with_its_part,
        a_follow_up_that_nobody_submits,
        an_item_that_is_gone_when_others_follow,
        a_key_forgotten_within_its_window,
    )
}
