"""Scenarios about processes with different actions, and the bug that each of them finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from heatsink.bulk import Actions
from heatsink.errors import Overloaded
from tests.bulk.world import Running, World

WAIT_S = 60.0
PARTITIONS = 4


async def processes(*first: str) -> tuple[World, list[Running]]:
    """Two processes that share the partitions: the first has these actions, the second `note`."""
    world = World(PARTITIONS)
    full, world.actions = world.actions, Actions()
    for name in first:
        world.actions.action(name)(world.note)
    running = [world.start("first")]
    await world.clock.sleep(5.0)
    world.actions = full
    running.append(world.start("second"))
    await world.clock.sleep(5.0)
    return world, running


async def all_done_within(world: World, seconds: float) -> None:
    """Submit a batch into each partition, and expect their ends in this time."""
    batches = [await world.bulk.submit("note", [n], spread=False) for n in range(4 * PARTITIONS)]
    until_s = world.clock.monotonic_s() + seconds
    for batch in batches:
        left_s = max(until_s - world.clock.monotonic_s(), 0.0)
        try:
            progress = await world.bulk.wait(batch.id, left_s)
        except Overloaded as error:
            raise AssertionError(f"an item waits for a worker: {error}") from error
        assert progress.done == 1


async def an_item_that_waits_for_the_wrong_worker() -> None:
    world, running = await processes("other")
    await all_done_within(world, WAIT_S)
    for each in running:
        await each.stop()


async def a_worker_without_actions_that_takes_its_share() -> None:
    """No item waits at all: nothing is postponed."""
    world, running = await processes()
    await all_done_within(world, 1.0)
    for each in running:
        await each.stop()


DIVISION_SCENARIOS: dict[str, Callable[[], Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (
        an_item_that_waits_for_the_wrong_worker,
        a_worker_without_actions_that_takes_its_share,
    )
}
