"""What handlers do, and what becomes of their items."""

from __future__ import annotations

import asyncio
import itertools
import threading
from random import Random
from typing import Any

import pytest

from heatsink.bulk import Actions, Bulk, BulkSettings, Context, Fail, RateLimited, Retry
from heatsink.bulk.settings import ConsumerSettings
from heatsink.bulk.work.consumer import Consumer
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.threads import BadEnd, in_thread
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing.clocks import VirtualLoop

from .world import World, on_virtual_time


async def failures(world: World, id: str) -> list[tuple[int, str, int]]:
    return [(f.index, f.reason, f.attempts) async for f in world.bulk.failures(id)]


@on_virtual_time
async def test_an_error_is_tried_again_twice_as_late_each_time_with_jitter() -> None:
    world = World()
    starts_s: dict[int, list[float]] = {}

    @world.action(max_attempts=5, backoff_s=1.0, backoff_max_s=3.0)
    async def bad(item: int, context: Context) -> None:
        starts_s.setdefault(item, []).append(world.clock.monotonic_s())
        assert context.attempt == len(starts_s[item])
        raise OSError("no route")

    async with world.consumer(workers=8):
        batch = await world.bulk.submit("bad", range(8))
        progress = await world.bulk.wait(batch.id, 60.0)
        found = await failures(world, batch.id)
    assert (progress.state, progress.failed) == ("failed", 8)
    assert sorted(found) == [(index, "OSError: no route", 5) for index in range(8)]
    for times_s in starts_s.values():
        gaps_s = [late - early for early, late in itertools.pairwise(times_s)]
        for gap_s, longest_s in zip(gaps_s, (1.0, 2.0, 3.0, 3.0), strict=True):
            assert longest_s / 2 <= gap_s <= longest_s + 0.05
    assert len({round(times_s[1], 3) for times_s in starts_s.values()}) > 4


@on_virtual_time
async def test_retry_waits_as_long_as_it_says_and_fail_is_final() -> None:
    world = World()
    starts_s: list[float] = []

    @world.action(max_attempts=3)
    async def choosy(item: int, context: Context) -> None:
        if item == 1:
            raise Fail("a closed account")
        starts_s.append(world.clock.monotonic_s())
        if context.attempt < 3:
            raise Retry(after=20.0)

    async with world.consumer():
        batch = await world.bulk.submit("choosy", [0, 1])
        progress = await world.bulk.wait(batch.id, 120.0)
        assert await failures(world, batch.id) == [(1, "a closed account", 1)]
    assert (progress.state, progress.done, progress.failed) == ("failed", 1, 1)
    assert [round(s - starts_s[0]) for s in starts_s] == [0, 20, 40]


@on_virtual_time
async def test_whatever_a_handler_raises_is_the_items_and_not_the_workers() -> None:
    world = World()
    errors = [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]

    @world.action(max_attempts=1)
    async def rude(item: int, _: Context) -> None:
        if item < len(errors):
            raise errors[item]

    async with world.consumer(workers=1):
        batch = await world.bulk.submit("rude", range(20))
        progress = await world.bulk.wait(batch.id, 30.0)
        reasons = [reason for _, reason, _ in await failures(world, batch.id)]
    assert (progress.done, progress.failed) == (16, 4)
    assert reasons == ["SystemExit: 1", "KeyboardInterrupt", "CancelledError", "GeneratorExit"]


@on_virtual_time
async def test_a_worker_survives_a_generator_exit_that_its_handler_waited_for() -> None:
    """asyncio throws it into the worker's task, past everything that the handler can catch."""
    world = World()
    ended: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: ended.append(found))

    @world.action(max_attempts=1)
    async def waits(item: int, _: Context) -> None:
        answer = asyncio.get_running_loop().create_future()
        error = GeneratorExit() if item < 3 else ValueError()
        asyncio.get_running_loop().call_soon(answer.set_exception, error)
        await answer

    async with world.consumer(workers=1):
        batch = await world.bulk.submit("waits", range(4))
        await world.bulk.wait(batch.id, 30.0)
        reasons = [reason for _, reason, _ in await failures(world, batch.id)]
    assert reasons == ["GeneratorExit", "GeneratorExit", "GeneratorExit", "ValueError"]
    assert not ended


@pytest.mark.parametrize("kind", [GeneratorExit, StopIteration])
async def test_what_a_future_cannot_carry_leaves_a_thread_as_an_error(
    kind: type[BaseException],
) -> None:
    def raises() -> None:
        raise kind

    with pytest.raises(BadEnd, match=kind.__name__):
        await in_thread(raises)


@on_virtual_time
async def test_a_handler_that_never_returns_is_cancelled_in_time() -> None:
    world = World()

    @world.action(max_attempts=2, timeout_s=3.0, backoff_s=0.0)
    async def hangs(_item: int, _: Context) -> None:
        await asyncio.sleep(1_000_000)

    async with world.consumer(workers=1):
        batch = await world.bulk.submit("hangs", [0])
        await world.bulk.wait(batch.id, 8.0)
        found = await failures(world, batch.id)
    assert found == [(0, "the handler took longer than timeout_s=3", 2)]


@on_virtual_time
async def test_a_handler_that_ignores_its_cancellation_is_left_behind_and_delays_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(1)
    released = asyncio.Event()

    @world.action(max_attempts=1, timeout_s=1.0)
    async def deaf(_item: int, _: Context) -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async with world.consumer(workers=2):
        stuck = await world.bulk.submit("deaf", range(2))
        await asyncio.sleep(0.1)
        others = await world.bulk.submit("note", range(20))
        assert (await world.bulk.wait(others.id, 8.0)).done == 20
        assert (await world.bulk.wait(stuck.id, 8.0)).failed == 2
        assert f"batch {stuck.id!r}: a handler of 'deaf' timed out and ignores" in caplog.text
        released.set()
        await asyncio.sleep(1.0)
        assert (await world.bulk.status(stuck.id)).failed == 2


@on_virtual_time
async def test_a_worker_whose_handler_swallowed_its_cancellation_is_as_good_as_new() -> None:
    world = World(1)

    @world.action(max_attempts=1, timeout_s=1.0)
    async def stubborn(item: int, _: Context) -> None:
        try:
            await asyncio.sleep(100.0)
        except asyncio.CancelledError:
            if item:
                raise
        if item == 2:
            raise asyncio.CancelledError

    @world.action(max_attempts=1)
    async def cancels_itself(_item: int, _: Context) -> None:
        raise asyncio.CancelledError

    async with world.consumer(workers=1):
        first = await world.bulk.submit("stubborn", [0, 1])
        assert (await world.bulk.wait(first.id, 20.0)).done == 1
        second = await world.bulk.submit("cancels_itself", [0])
        await world.bulk.wait(second.id, 20.0)
        assert await failures(world, second.id) == [(0, "CancelledError", 1)]


@on_virtual_time
async def test_a_batch_handler_says_what_became_of_each_item() -> None:
    world = World()
    calls: list[list[int]] = []

    @world.action(together=10, max_attempts=2, backoff_s=0.1)
    async def lot(items: list[int], contexts: list[Context]) -> Any:
        calls.append(items)
        assert [context.index for context in contexts] == items
        if len(items) == 10 and items[0] == 20:
            return None
        return [Fail("odd") if item % 2 else None for item in items]

    async with world.consumer(workers=3):
        batch = await world.bulk.submit("lot", range(25))
        progress = await world.bulk.wait(batch.id, 30.0)
        found = await failures(world, batch.id)
    assert max(map(len, calls)) == 10
    assert sorted(item for items in calls for item in items) == list(range(25))
    assert progress.failed == len(found) == 12
    assert {reason for _, reason, _ in found} == {"odd"}


@pytest.mark.parametrize("answer", [7, "text", [None], [1, 2], [None, "x"], {}])
@on_virtual_time
async def test_a_batch_handlers_wrong_answer_is_an_error_of_all_its_items(answer: Any) -> None:
    world = World()

    @world.action(together=2, max_attempts=1)
    async def confused(_items: list[int], _: list[Context]) -> Any:
        return answer

    async with world.consumer(workers=2):
        batch = await world.bulk.submit("confused", [0, 1])
        await world.bulk.wait(batch.id, 30.0)
        found = await failures(world, batch.id)
    assert len(found) == 2
    assert all("exception for each of the 2 items" in reason for _, reason, _ in found)


@on_virtual_time
async def test_rate_limited_counts_as_no_attempt_and_slows_its_lane_down() -> None:
    world = World(1)
    allowed_s = [0.0]

    @world.action(max_attempts=1)
    async def strict(_item: int, _: Context) -> None:
        now_s = world.clock.monotonic_s()
        if now_s < allowed_s[0]:
            raise RateLimited(retry_after=0.2)
        allowed_s[0] = now_s + 0.05
        await asyncio.sleep(0.001)

    async with world.consumer(workers=16):
        batch = await world.bulk.submit("strict", range(100))
        progress = await world.bulk.wait(batch.id, 600.0)
        other = await world.bulk.submit("note", range(100))
        assert (await world.bulk.wait(other.id, 2.0)).done == 100
    assert (progress.state, progress.done) == ("done", 100)


async def test_a_plain_function_runs_in_a_thread_and_may_block() -> None:
    clock = SystemClock()
    server = MemoryQueueServer(clock)
    actions = Actions()
    threads: set[int] = set()
    barrier = threading.Barrier(20, timeout=20.0)

    @actions.action("blocks", max_attempts=1)
    def blocks(item: int, _context: Context) -> None:
        barrier.wait()
        threads.add(threading.get_ident())
        if item == 7:
            raise SystemExit("from a thread")

    bulk = Bulk(server.stores(), BulkSettings(partitions=1), clock, Random(1))
    settings = ConsumerSettings(workers=20)
    consumer = Consumer(server.stores(), bulk, actions, settings, "one", clock, Random(2))
    running = asyncio.ensure_future(consumer.run())
    batch = await bulk.submit("blocks", range(20))
    progress = await bulk.wait(batch.id, 20.0)
    consumer.stop()
    await running
    assert (progress.done, progress.failed) == (19, 1)
    assert len(threads) == 20


@pytest.mark.parametrize("waits", [True, False])
@on_virtual_time
async def test_a_handler_that_cancels_its_worker_costs_only_its_own_item(waits: bool) -> None:
    world = World(1)

    @world.action(max_attempts=1)
    async def cancels(item: int, _: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        if item % 2:
            task.cancel()
        if waits or not item % 2:
            await asyncio.sleep(0.01)

    async with world.consumer(workers=2):
        batch = await world.bulk.submit("cancels", range(10))
        progress = await world.bulk.wait(batch.id, 5.0)
        found = await failures(world, batch.id)
    assert progress.done == (5 if waits else 10)
    assert {reason for _, reason, _ in found} == ({"CancelledError"} if waits else set())


@on_virtual_time
async def test_a_worker_that_ends_unasked_is_replaced() -> None:
    world = World(1)
    workers: list[asyncio.Task[Any]] = []

    @world.action()
    async def noted(_item: int, _: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        workers.append(task)

    async with world.consumer(workers=1):
        for _ in range(3):
            batch = await world.bulk.submit("noted", [0])
            assert (await world.bulk.wait(batch.id, 5.0)).done == 1
            workers[-1].cancel()
    assert len(set(workers)) == 3


@on_virtual_time
async def test_what_is_cancelled_with_its_whole_process_has_not_failed() -> None:
    world = World(1)
    attempts: list[int] = []

    @world.action(max_attempts=1)
    async def slow(_item: int, context: Context) -> None:
        attempts.append(context.attempt)
        await asyncio.sleep(1.0)

    running = world.start("one", workers=2)
    batch = await world.bulk.submit("slow", range(2))
    await asyncio.sleep(0.5)
    for task in list(running.process.tasks):
        task.cancel()  # as `asyncio.run` does when the main task is through
    await asyncio.sleep(1.0)
    async with world.consumer("two", workers=2):
        assert (await world.bulk.wait(batch.id, 60.0)).done == 2
    assert attempts == [1, 1, 1, 1]


@on_virtual_time
async def test_what_a_handler_did_while_it_blocked_the_loop_counts_if_nobody_took_it_over() -> None:
    world = World(1, deadline_s=600.0)
    runs: list[int] = []

    @world.action()
    async def blocks(item: int, _: Context) -> None:
        runs.append(item)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.block(3.0)

    async with world.consumer(workers=1, lease_s=1.0):
        batch = await world.bulk.submit("blocks", range(40))
        progress = await world.bulk.wait(batch.id, 600.0)
    assert (progress.done, sorted(runs)) == (40, list(range(40)))
