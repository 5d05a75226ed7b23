"""Errors and delays that cannot be stored as they are, and pumps that meet the unforeseen."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from heatsink.bulk import Context, Fail, RateLimited, Retry
from heatsink.bulk.store import Outcome
from heatsink.bulk.work import handler_errors as attempts
from heatsink.bulk.work.pool import WorkerPool
from heatsink.stores.memory.queue.queue import MemoryQueue

from .world import World, on_virtual_time

HALF = "half a \ud800 character"


@pytest.fixture(autouse=True)
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a queue in Redis, the one in memory takes only what can be encoded."""
    settle = MemoryQueue.settle
    decoder = msgspec.msgpack.Decoder(list[Outcome])

    async def picky(self: MemoryQueue, partition: int, outcomes: Any, *rest: Any) -> list[str]:
        decoder.decode(msgspec.msgpack.encode(outcomes))
        return await settle(self, partition, outcomes, *rest)

    monkeypatch.setattr(MemoryQueue, "settle", picky)


async def reasons_of(error: BaseException) -> list[str]:
    """Of one item that raises it twice, beside others that are done."""
    world = World(1)

    @world.action(max_attempts=2, backoff_s=0.1)
    async def odd(item: int, _: Context) -> None:
        if item == 1:
            raise error

    async with world.consumer(workers=2):
        batch = await world.bulk.submit("odd", range(4))
        progress = await world.bulk.wait(batch.id, 60.0)
        assert (progress.done, progress.failed) == (3, 1)
        return [failure.reason async for failure in world.bulk.failures(batch.id)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Fail(HALF), "half a ? character"),
        (OSError(HALF), "OSError: half a ? character"),
        (Retry(0.1, HALF), "half a ? character"),
        (Retry("2"), "Retry takes a number of seconds, not '2'"),  # type: ignore[arg-type]
        (Retry(float("nan")), "Retry takes a number of seconds, not nan"),
        (RateLimited("5"), "RateLimited takes a number of seconds, not '5'"),  # type: ignore[arg-type]
        (RateLimited(float("nan")), "RateLimited takes a number of seconds, not nan"),
        (RateLimited([]), "RateLimited takes a number of seconds, not []"),  # type: ignore[arg-type]
        (Retry(10**400), "Retry takes a number of seconds, not 1000"),
    ],
)
@on_virtual_time
async def test_an_odd_text_or_delay_is_an_error_of_its_item(
    error: BaseException, reason: str
) -> None:
    (found,) = await reasons_of(error)
    assert found.startswith(reason)


@pytest.mark.parametrize("error", [Retry(1e20), RateLimited(1e20), RateLimited(float("inf"))])
@on_virtual_time
async def test_a_delay_is_thirty_days_at_most(error: BaseException) -> None:
    world = World(1)

    @world.action(max_attempts=2)
    async def later(_item: int, _: Context) -> None:
        if world.clock.now_s() < began_s + 29 * 86_400:
            raise error

    began_s = world.clock.now_s()
    async with world.consumer(workers=1, member_s=3_600.0, lease_s=3_600.0):
        batch = await world.bulk.submit("later", [0])
        await asyncio.sleep(5.0)
        assert (await world.bulk.status(batch.id)).waiting == 1
        (part,) = world.server.queue.partitions[0].shares.values()
        assert part.delayed


@on_virtual_time
async def test_rate_limited_without_a_hint_is_tried_again_at_once() -> None:
    world = World(1)
    seen: list[int] = []

    @world.action(max_attempts=1)
    async def refused(item: int, _: Context) -> None:
        seen.append(item)
        if len(seen) == 1:
            raise RateLimited(None)

    async with world.consumer(workers=1):
        batch = await world.bulk.submit("refused", [0])
        assert (await world.bulk.wait(batch.id, 30.0)).done == 1


@on_virtual_time
async def test_an_outcome_that_cannot_be_encoded_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "_reason", lambda error: str(error))
    assert await reasons_of(Fail(HALF)) == ["the failure's reason cannot be stored"]


@on_virtual_time
async def test_a_task_of_a_pump_that_fails_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    check_times, failed = WorkerPool.check_times, asyncio.Event()

    def fails_once(self: WorkerPool) -> None:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError
        check_times(self)

    monkeypatch.setattr(WorkerPool, "check_times", fails_once)
    world = World(1)

    @world.action(max_attempts=1, timeout_s=2.0)
    async def hangs(_item: int, _: Context) -> None:
        await asyncio.sleep(1_000_000)

    async with world.consumer(workers=1):
        batch = await world.bulk.submit("hangs", [0])
        assert (await world.bulk.wait(batch.id, 10.0)).failed == 1
        assert failed.is_set()
