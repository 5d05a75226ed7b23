"""Claims follow the time that the store takes to answer, and stay small if it answers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest

from heatsink.bulk.actions import Context
from heatsink.bulk.work.pool import ANSWER_S_MAX, AnswerTime
from heatsink.bulk.work.pump import Pump
from heatsink.lab.world import ACTION, WorkerFleet, world
from heatsink.stores.memory.queue.queue import MemoryQueue
from heatsink.testing import SkewedClock, run_on_virtual_time

WORKERS, SERVICE_S = 32, 0.001
CAPACITY = WORKERS / SERVICE_S


def late(call: Callable[..., Awaitable[Any]], answer_s: float) -> Callable[..., Awaitable[Any]]:
    async def answer(*arguments: Any) -> Any:
        await asyncio.sleep(answer_s / 2)
        result = await call(*arguments)
        await asyncio.sleep(answer_s / 2)
        return result

    return answer


def run(items: int, answer_s: float) -> tuple[float, int]:
    """Items a second, and the most that waited in the process; every call takes `answer_s`."""
    most = 0

    async def drain() -> float:
        clock = SkewedClock()

        async def handle(_: Any, __: Context) -> None:
            await clock.sleep(SERVICE_S)

        async with world(WorkerFleet(workers=WORKERS), handle, clock) as lab:
            batch = await lab.bulk.submit(ACTION, range(items))
            began_s = lab.now_s()
            await lab.until_run(batch)
            return items / (lab.now_s() - began_s)

    start = Pump._start

    def watched(self: Pump, claimed: Any) -> None:
        nonlocal most
        start(self, claimed)
        most = max(most, self.pool.backlog)

    with (
        patch.object(MemoryQueue, "claim", late(MemoryQueue.claim, answer_s)),
        patch.object(MemoryQueue, "settle", late(MemoryQueue.settle, answer_s)),
        patch.object(Pump, "_start", watched),
    ):
        return run_on_virtual_time(drain()), most


@pytest.mark.parametrize(("answer_ms", "share"), [(0, 0.95), (1, 0.85), (5, 0.7), (20, 0.4)])
def test_workers_do_not_wait_for_claims_if_the_store_answers_slowly(
    answer_ms: int, share: float
) -> None:
    """The batch ends after a third of a second, with the time to learn the pace."""
    rate, _ = run(10_000, answer_ms / 1_000)
    assert rate > share * CAPACITY


@pytest.mark.parametrize("answer_ms", [0, 1, 5, 20])
def test_no_more_is_claimed_than_the_answer_time_needs(answer_ms: int) -> None:
    """What is claimed keeps the items of others waiting."""
    _, most = run(10_000, answer_ms / 1_000)
    assert most <= 1.5 * CAPACITY * (0.01 + 2 * answer_ms / 1_000) + WORKERS


def test_a_store_that_hangs_does_not_make_claims_large() -> None:
    answers = AnswerTime()
    for _ in range(50):
        answers.learn(60.0)
    assert answers.mean_s <= ANSWER_S_MAX
