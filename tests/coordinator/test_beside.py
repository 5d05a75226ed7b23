from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from heatsink.coordinator.loops import BackgroundLoop
from heatsink.errors import Unavailable
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Decision
from tests.waiting import PATIENCE_S

DECISION = Decision(Subject(Kind.WORKERS, "1"), "workers", 8, "busy")


class Slow:
    """A turn that takes as long as the test wants."""

    def __init__(self) -> None:
        self.turns = 0
        self.release = asyncio.Event()
        self.error: Exception | None = None

    async def run_once(self) -> list[Decision]:
        self.turns += 1
        await self.release.wait()
        if self.error is not None:
            raise self.error
        return [DECISION]


async def test_nobody_waits_for_a_turn_that_takes_long() -> None:
    slow = Slow()
    beside = BackgroundLoop(slow)
    for _ in range(3):
        assert await asyncio.wait_for(beside.run_once(), PATIENCE_S) == []
        await asyncio.sleep(0)
    assert slow.turns == 1, "one at a time"
    slow.release.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await beside.run_once() == [DECISION]
    await beside.close()


async def test_a_turn_that_failed_is_told_and_made_again() -> None:
    slow = Slow()
    slow.release.set()
    slow.error = Unavailable("the queue is away")
    beside = BackgroundLoop(slow)
    await beside.run_once()
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="away"):
        await beside.run_once()
    await asyncio.sleep(0)
    assert slow.turns == 2
    await beside.close()


async def test_a_failure_lasts_until_a_turn_succeeds() -> None:
    """A turn that still waits for a dead queue must not look like success."""
    slow = Slow()
    slow.release.set()
    slow.error = Unavailable("the queue is away")
    beside = BackgroundLoop(slow)
    await beside.run_once()
    await asyncio.sleep(0)
    slow.release.clear()
    for _ in range(3):
        with pytest.raises(Unavailable, match="away"):
            await beside.run_once()
        await asyncio.sleep(0)
    slow.error = None
    slow.release.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await beside.run_once() == [DECISION]
    assert await beside.run_once() == []
    await beside.close()


async def test_a_turn_that_failed_and_that_nobody_asks_for_is_no_complaint() -> None:
    """As of a process that has lost the lease, or was killed."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    slow = Slow()
    slow.release.set()
    slow.error = Unavailable("the queue is away")
    beside = BackgroundLoop(slow)
    await beside.run_once()
    await asyncio.sleep(0)
    del beside
    gc.collect()
    assert complaints == []


async def test_an_end_in_the_middle_of_a_turn() -> None:
    slow = Slow()
    beside = BackgroundLoop(slow)
    await beside.run_once()
    await asyncio.sleep(0)
    await beside.close()
    assert beside._running is not None
    assert beside._running.cancelled()
