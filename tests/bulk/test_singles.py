"""Batches of one item: accepted in one call, with everything that batches can do."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from heatsink.bulk import Fail
from heatsink.bulk.batch import KEEP_MS, KEEP_SINGLE_MS
from heatsink.bulk.singles import CALLS_MAX, GROUP_MAX
from heatsink.errors import Conflict, IdReused, InvalidBody, InvalidSetting, NotFound, Overloaded

from .world import World, on_virtual_time


def calls_of(world: World) -> Counter[str]:
    """The calls that the producer makes from now on."""
    calls: Counter[str] = Counter()
    send = world.link_of_producer.call

    async def count(method: Any, *arguments: Any) -> Any:
        calls[method.__name__] += 1
        return await send(method, *arguments)

    world.link_of_producer.call = count  # type: ignore[method-assign]
    return calls


@on_virtual_time
async def test_an_item_runs_and_its_batch_is_done() -> None:
    world = World()
    async with world.consumer():
        batch = await world.bulk.enqueue("note", {"to": "ada"})
        progress = await world.bulk.wait(batch.id, 60.0)
    assert (progress.state, progress.done, progress.accepted) == ("done", 1, 1)
    assert world.items_run(batch.id) == [{"to": "ada"}]
    assert [each.id for each in await world.bulk.list()] == [batch.id]


@on_virtual_time
async def test_a_list_a_tuple_and_a_view_of_one_item_are_singles() -> None:
    world = World()
    async with world.consumer():
        for items in ([1], (1,), {1: 2}.keys(), {1}):
            batch = await world.bulk.submit("note", items)
            await world.bulk.wait(batch.id, 60.0)
            assert world.items_run(batch.id) == [1]
    kept = [share for queue in world.server.queue.partitions.values() for share in queue.shares]
    assert not kept, "the part is forgotten with its end"


@on_virtual_time
async def test_what_waits_at_the_same_moment_shares_a_call() -> None:
    world = World()
    async with world.consumer():
        await world.bulk.enqueue("note", 0)
        calls = calls_of(world)
        await asyncio.gather(*(world.bulk.enqueue("note", n) for n in range(GROUP_MAX)))
    assert calls["accept"] <= 4
    assert sum(calls.values()) <= 6


@on_virtual_time
async def test_a_caller_that_submits_again_while_all_calls_end_is_served() -> None:
    world, gate, arrived = World(), asyncio.Event(), []
    send = world.link_of_producer.call

    async def hold(method: Any, *arguments: Any) -> Any:
        answer = await send(method, *arguments)
        if method.__name__ == "accept":
            arrived.append(answer)
            await gate.wait()
        return answer

    async def twice() -> None:
        await world.bulk.enqueue("note", 1)
        await world.bulk.enqueue("note", 2)

    async with world.consumer():
        world.link_of_producer.call = hold  # type: ignore[method-assign]
        callers = []
        for call in (twice(), world.bulk.enqueue("note", 3)):
            callers.append(asyncio.ensure_future(call))
            while len(arrived) < len(callers):
                await asyncio.sleep(0.01)
        gate.set()
        async with asyncio.timeout(60.0):
            await asyncio.gather(*callers)


@on_virtual_time
async def test_a_cancelled_caller_leaves_its_call_to_those_that_wait() -> None:
    world, gate, arrived = World(), asyncio.Event(), []
    send = world.link_of_producer.call

    async def hold(method: Any, *arguments: Any) -> Any:
        answer = await send(method, *arguments)
        if method.__name__ == "accept":
            arrived.append(answer)
            await gate.wait()
        return answer

    async with world.consumer():
        await world.bulk.enqueue("note", 0)
        world.link_of_producer.call = hold  # type: ignore[method-assign]
        callers = []
        for number in (1, 2, 3):
            callers.append(asyncio.ensure_future(world.bulk.enqueue("note", number)))
            while len(arrived) < min(number, CALLS_MAX):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert len(arrived) == CALLS_MAX, "the third waits"
        callers[0].cancel()
        async with asyncio.timeout(60.0):
            while len(arrived) < 3:
                await asyncio.sleep(0.01)
        gate.set()
        batches = await asyncio.gather(*callers[1:])
        for batch in batches:
            await world.bulk.wait(batch.id, 60.0)
    assert [world.items_run(batch.id) for batch in batches] == [[2], [3]]


@on_virtual_time
async def test_an_id_is_one_batch_however_often_it_is_enqueued() -> None:
    world = World()
    async with world.consumer():
        together = [world.bulk.enqueue("note", 7, id="x") for _ in range(5)]
        batches = await asyncio.gather(*together)
        await world.bulk.wait("x", 60.0)
        again = await world.bulk.submit("note", iter([7]), id="x")
    assert {batch.generation for batch in [*batches, again]} == {again.generation}
    assert world.items_run("x") == [7]


@on_virtual_time
async def test_an_id_is_one_batch_across_a_repartition() -> None:
    world = World(2)
    other = world.bulk_of(world.process("other"))
    async with world.consumer():
        first = await world.bulk.enqueue("note", 7, id="x")
        await other.repartition(7)
        second = await other.enqueue("note", 7, id="x")
        await world.bulk.wait("x", 60.0)
        third = await other.enqueue("note", 7, id="x")
    assert first.generation == second.generation == third.generation
    assert world.items_run("x") == [7]


@on_virtual_time
async def test_an_id_is_for_its_item_and_options_alone() -> None:
    world = World()
    await world.bulk.enqueue("note", {"a": 1, "b": 2}, id="x", priority=1)
    await world.bulk.enqueue("note", {"b": 2, "a": 1}, id="x", priority=1)
    for item, priority in (({"a": 1}, 1), ({"a": 1, "b": 2}, 0)):
        with pytest.raises(IdReused):
            await world.bulk.enqueue("note", item, id="x", priority=priority)
    with pytest.raises(IdReused):
        await world.bulk.submit("note", [{"a": 1, "b": 2}, 3], id="x", priority=1)
    with pytest.raises(Conflict, match="tenant"):
        await world.bulk.enqueue("note", {"a": 1, "b": 2}, id="x", tenant="bob")


@on_virtual_time
async def test_a_single_waits_for_its_start_its_pause_and_its_cancel() -> None:
    world = World()
    async with world.consumer():
        later = await world.bulk.enqueue("note", 1, delay=100.0)
        paused = await world.bulk.enqueue("note", 2, delay=5.0)
        dropped = await world.bulk.enqueue("note", 3, delay=5.0)
        await world.bulk.pause(paused.id)
        await world.bulk.cancel(dropped.id)
        await asyncio.sleep(50.0)
        assert not world.ran
        await world.bulk.resume(paused.id)
        assert (await world.bulk.wait(paused.id, 60.0)).state == "done"
        assert (await world.bulk.wait(dropped.id, 60.0)).state == "cancelled"
        assert (await world.bulk.wait(later.id, 120.0)).state == "done"
    assert [item for _, item, _ in world.ran] == [2, 1]


@on_virtual_time
async def test_a_single_that_failed_is_listed_and_can_be_retried() -> None:
    world = World()
    fails = [True]

    @world.action()
    async def moody(item: Any, _: Any) -> None:
        if fails:
            raise Fail(f"not today, {item}{'' if fails.pop() else '?'}")

    async with world.consumer():
        batch = await world.bulk.enqueue("moody", "x")
        assert (await world.bulk.wait(batch.id, 60.0)).state == "failed"
        found = [failure async for failure in world.bulk.failures(batch.id)]
        assert [(each.index, each.item, each.reason) for each in found] == [
            (0, "x", "not today, x")
        ]
        await world.bulk.retry_failed(batch.id)
        progress = await world.bulk.wait(batch.id, 60.0)
    assert (progress.state, progress.done, progress.failed) == ("done", 1, 0)


@on_virtual_time
async def test_the_callback_of_a_single_runs_once() -> None:
    world = World()
    async with world.consumer():
        batch = await world.bulk.enqueue("note", 1, on_done="note")
        await world.bulk.wait(batch.id, 60.0)
        await asyncio.sleep(5.0)
    told = [item for id, item, _ in world.ran if id != batch.id]
    assert [(item["batch"], item["state"], item["done"]) for item in told] == [
        (batch.id, "done", 1)
    ]


@on_virtual_time
async def test_a_single_respects_the_rate_of_its_lane() -> None:
    world = World()
    async with world.consumer():
        first = await world.bulk.submit("note", range(2), rate="2/s")
        await world.bulk.wait(first.id, 60.0)
        world.starts_s.clear()
        rest = await asyncio.gather(*(world.bulk.enqueue("note", n) for n in range(6)))
        for batch in rest:
            await world.bulk.wait(batch.id, 60.0)
    starts = sorted(world.starts_s)
    assert all(late - early >= 1.0 for early, late in zip(starts, starts[2:], strict=False))


@on_virtual_time
async def test_a_wrong_item_or_option_is_refused_alone() -> None:
    world = World()
    async with world.consumer():
        await world.bulk.enqueue("note", 0)
        good = [world.bulk.enqueue("note", n) for n in range(3)]
        bad = [world.bulk.enqueue("note", {1, 2}), world.bulk.enqueue("nope", 1)]
        found = await asyncio.gather(*good, *bad, return_exceptions=True)
    assert [type(each) for each in found[3:]] == [InvalidBody, InvalidSetting]
    assert not any(isinstance(each, BaseException) for each in found[:3])


@on_virtual_time
async def test_a_single_whose_answer_is_lost_runs_once() -> None:
    world = World()
    world.link_of_producer.faults.answer_lost = 0.6
    async with world.consumer():
        batches = [await world.bulk.enqueue("note", n) for n in range(20)]
        world.link_of_producer.faults.heal()
        for batch in batches:
            await world.bulk.wait(batch.id, 60.0)
    assert sorted(item for _, item, _ in world.ran) == list(range(20))


@on_virtual_time
async def test_an_unreachable_queue_names_the_id_to_enqueue_again() -> None:
    world = World(deadline_s=2.0)
    await world.bulk.enqueue("note", 0)
    world.link_of_producer.faults.cut = True
    with pytest.raises(Overloaded, match="submit again with id='x'"):
        await world.bulk.enqueue("note", 1, id="x")


@on_virtual_time
async def test_records_of_done_singles_are_kept_for_an_hour_and_with_an_id_for_a_week() -> None:
    world = World()
    async with world.consumer():
        anonymous = await world.bulk.enqueue("note", 1)
        named = await world.bulk.enqueue("note", 2, id="x")
        for batch in (anonymous, named):
            await world.bulk.wait(batch.id, 60.0)
    world.clock.offset_s += KEEP_SINGLE_MS / 1000 + 1
    assert (await world.bulk.status(named.id)).state == "done"
    with pytest.raises(NotFound):
        await world.bulk.status(anonymous.id)
    world.clock.offset_s += KEEP_MS / 1000
    with pytest.raises(NotFound):
        await world.bulk.status(named.id)
