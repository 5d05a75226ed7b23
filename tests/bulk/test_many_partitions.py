"""A worker with many partitions, most of which are idle."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest

from heatsink.bulk.work import consumer
from heatsink.bulk.work.consumer import Activity
from heatsink.errors import Overloaded
from heatsink.stores.memory.queue.homes import MemoryBell
from heatsink.stores.memory.queue.queue import MemoryQueue

from .world import World, on_virtual_time

MANY = 64
ASKED_PER_S = 16
QUIET_S = 10.0  # until every partition was asked at least once


@pytest.fixture(autouse=True)
def _as_if_they_were_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real worker asks 256 partitions a second: with these it would ask each once a second."""
    monkeypatch.setattr(consumer, "ASK_PER_S", ASKED_PER_S)


def test_idle_partitions_are_asked_once_in_a_while_and_nothing_else() -> None:
    calls: Counter[str] = Counter()

    def counting(name: str) -> Any:
        call = getattr(MemoryQueue, name)

        async def counted(*arguments: Any) -> Any:
            calls[name] += 1
            return await call(*arguments)

        return patch.object(MemoryQueue, name, counted)

    @on_virtual_time
    async def play() -> None:
        world = World(MANY)
        async with world.consumer():
            await asyncio.sleep(QUIET_S)
            calls.clear()
            await asyncio.sleep(10.0)

    with counting("claim"), counting("chores"), counting("live_parts"), counting("is_idle"):
        play()
    assert calls["is_idle"] <= ASKED_PER_S * 10 * 1.1
    assert calls["claim"] + calls["chores"] + calls["live_parts"] <= MANY, "each once a minute"


@on_virtual_time
async def test_an_item_in_a_partition_that_was_idle_for_long_runs_at_once() -> None:
    world = World(MANY)
    async with world.consumer():
        await asyncio.sleep(QUIET_S)
        for _ in range(20):
            began_s = world.clock.monotonic_s()
            batch = await world.bulk.submit("note", [1])
            assert (await world.bulk.wait(batch.id, 60.0)).done == 1
            assert world.clock.monotonic_s() - began_s < 0.6


def run_without_a_bell() -> None:
    @on_virtual_time
    async def play() -> None:
        world = World(MANY)
        async with world.consumer():
            await asyncio.sleep(QUIET_S)
            for _ in range(5):
                batch = await world.bulk.submit("note", range(3))
                assert (await world.bulk.wait(batch.id, 8.0)).done == 3

    with patch.object(MemoryBell, "ring", lambda *_: None):
        play()


def test_work_is_found_even_if_the_bell_is_never_heard() -> None:
    run_without_a_bell()


def test_partitions_that_are_never_asked_again_would_lose_their_work() -> None:
    """The test above bites."""
    ask = Activity.ask

    async def once(self: Activity, partitions: Any) -> list[tuple[int, bool]]:
        return await ask(self, [p for p in partitions if self.is_busy(p)])

    with patch.object(Activity, "ask", once), pytest.raises(Overloaded):
        run_without_a_bell()


@on_virtual_time
async def test_the_end_of_a_part_that_was_cancelled_in_an_idle_partition_is_recorded() -> None:
    world = World(MANY)
    async with world.consumer():
        await asyncio.sleep(QUIET_S)
        batch = await world.bulk.submit("note", range(10), rate="1/h")
        await world.bulk.pause(batch.id)
        await asyncio.sleep(30.0)
        await world.bulk.cancel(batch.id)
        ended = await world.bulk.wait(batch.id, 10.0)
        assert (ended.done + ended.cancelled, ended.state) == (10, "cancelled")
