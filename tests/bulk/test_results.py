"""Results of items: kept once, with the item's outcome, and read in the order of the items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from heatsink.bulk import Context, Fail, Retry
from heatsink.bulk.store import Outcome, QueueStores
from heatsink.errors import Conflict, InvalidSetting, NotFound

from .driver import LEASE_MS, PARTITION, Driver
from .world import World, on_virtual_time

DAY_S = 86_400.0


async def kept(stores: QueueStores, part: str, *sizes: int) -> list[Any]:
    chunks = list(enumerate(sizes))
    return [chunk.results for chunk in await stores.queue.results(PARTITION, part, chunks, False)]


async def settle(
    driver: Driver, attempt: str, marks: str, results: list[tuple[int, bytes]]
) -> list[str]:
    outcome = Outcome(attempt, marks, 1_000, [], results)
    return await driver.stores.queue.settle(PARTITION, [outcome], [], LEASE_MS)


async def test_a_result_is_kept_when_its_item_is_first_marked_as_done(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("kept", [3], result_bytes=100)
    (item,) = await driver.slices()
    await settle(driver, item.attempt, "d.r", [(0, b"a"), (1, b"early"), (2, b"retried")])
    assert await kept(stores, "kept", 3) == [[(0, 0, b"a")]]
    await settle(driver, item.attempt, "ddr", [(0, b"other"), (1, b"b")])
    assert await kept(stores, "kept", 3) == [[(0, 0, b"a"), (1, 0, b"b")]]


async def test_a_worker_whose_lease_is_lost_changes_no_result(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("kept", [1], result_bytes=100)
    (late,) = await driver.lose()
    (item,) = await driver.slices()
    assert await settle(driver, late.attempt, "d", [(0, b"late")]) == [late.attempt]
    assert await kept(stores, "kept", 1) == [[]]
    assert await settle(driver, item.attempt, "d", [(0, b"right")]) == []
    assert await settle(driver, late.attempt, "d", [(0, b"late")]) == [late.attempt]
    assert await kept(stores, "kept", 1) == [[(0, 0, b"right")]]


async def test_a_part_without_results_keeps_none(driver: Driver, stores: QueueStores) -> None:
    await driver.submit("plain", [1])
    (item,) = await driver.slices()
    await settle(driver, item.attempt, "d", [(0, b"a")])
    assert await kept(stores, "plain", 1) == [[]]
    assert await kept(stores, "nobody", 1) == []


async def test_the_items_of_results_are_kept_if_the_part_keeps_items(
    driver: Driver, stores: QueueStores
) -> None:
    for part, keeps in (("with", True), ("without", False)):
        await driver.submit(part, [2, 1], result_bytes=100, keeps_items=keeps)
    for item in await driver.slices():
        await settle(driver, item.attempt, "d" * item.count, [(0, b"a")])
    found = await stores.queue.results(PARTITION, "with", [(0, 2), (1, 1)], True)
    assert [chunk.body for chunk in found] == [b"with/0", b"with/1"]
    found = await stores.queue.results(PARTITION, "without", [(0, 2)], True)
    assert [chunk.body for chunk in found] == [b""]


async def test_large_results_are_read_in_several_pages(driver: Driver, stores: QueueStores) -> None:
    await driver.submit("large", [1] * 5, result_bytes=1 << 20)
    for item in await driver.slices():
        await settle(driver, item.attempt, "d", [(0, b"x" * 600_000)])
    chunks = [(number, 1) for number in range(5)]
    found = await stores.queue.results(PARTITION, "large", chunks, False)
    assert [chunk.number for chunk in found] == [0, 1]


async def results(world: World, id: str, after: int = -1) -> list[tuple[int, Any]]:
    return [(each.index, each.value) async for each in world.bulk.results(id, after)]


@on_virtual_time
async def test_results_are_read_in_the_order_of_the_items() -> None:
    world = World(partitions=16)

    @world.action()
    async def square(item: int, context: Context) -> dict[str, int]:
        if item == 777 and context.attempt == 1:
            raise Retry(after=1.0)
        if item % 1_000 == 13:
            raise Fail("unlucky")
        return {"square": item * item}

    async with world.consumer():
        batch = await world.bulk.submit("square", range(5_000), results="keep")
        progress = await world.bulk.wait(batch.id, 300.0)
    expected = [(n, {"square": n * n}) for n in range(5_000) if n % 1_000 != 13]
    assert progress.done == len(expected)
    assert await results(world, batch.id) == expected
    assert await results(world, batch.id, after=2_500) == expected[2_498:]
    assert len({place.partition for place in batch.parts}) > 1


@on_virtual_time
async def test_handlers_that_take_items_together_return_a_list_of_results() -> None:
    world = World()

    @world.action(together=10, max_attempts=1)
    async def pairs(items: list[int], _: list[Context]) -> list[Any]:
        return [ValueError("odd") if item % 2 else item * 2 for item in items]

    async with world.consumer():
        batch = await world.bulk.submit("pairs", range(40), results="keep")
        await world.bulk.wait(batch.id, 60.0)
        plain = await world.bulk.submit("pairs", range(40))
        await world.bulk.wait(plain.id, 60.0)
    assert await results(world, batch.id) == [(n, n * 2) for n in range(0, 40, 2)]
    failure = await anext(world.bulk.failures(plain.id))
    assert "the handler must return None, or a list with None or an exception" in failure.reason


@dataclass
class Receipt:
    total: int


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({1, 2}, "the value is a set"),
        ({"id": UUID(int=1)}, "the value['id'] is a UUID"),
        (object(), "the result cannot be kept"),
        ([float("nan")], "the result cannot be kept (nan is not a JSON value)"),
        ("x" * 101, "it has 103 bytes, more than 100"),
    ],
)
def test_a_result_that_cannot_be_kept_fails_its_item(value: Any, why: str) -> None:
    @on_virtual_time
    async def run() -> None:
        world = World()

        @world.action()
        async def give(item: int, _: Context) -> Any:
            return value if item else Receipt(7)

        async with world.consumer():
            batch = await world.bulk.submit("give", [0, 1], results="keep", result_bytes=100)
            progress = await world.bulk.wait(batch.id, 60.0)
        assert (progress.done, progress.failed) == (1, 1)
        assert await results(world, batch.id) == [(0, {"total": 7})]
        failure = await anext(world.bulk.failures(batch.id))
        assert why in failure.reason
        assert failure.attempts == 1

    run()


@on_virtual_time
async def test_results_are_deleted_with_the_batch_after_its_days() -> None:
    world = World()
    async with world.consumer():
        batch = await world.bulk.submit("note", [1], results="keep", result_days=2)
        await world.bulk.wait(batch.id, 60.0)
        await world.clock.sleep(5.0)  # until the consumer has recorded the end
    await world.clock.sleep(DAY_S)
    assert await results(world, batch.id) == [(0, None)]
    await world.clock.sleep(DAY_S)
    with pytest.raises(NotFound):
        await results(world, batch.id)


@on_virtual_time
async def test_a_batch_without_results_says_so() -> None:
    world = World()
    batch = await world.bulk.submit("note", [1])
    with pytest.raises(Conflict, match="submit it with results='keep'"):
        await results(world, batch.id)
    with pytest.raises(InvalidSetting, match="results must be 'keep'"):
        await world.bulk.submit("note", [1], results="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="result_days needs results='keep'"):
        await world.bulk.submit("note", [1], result_days=3)
    with pytest.raises(InvalidSetting, match="result_bytes"):
        await world.bulk.submit("note", [1], results="keep", result_bytes=0)
