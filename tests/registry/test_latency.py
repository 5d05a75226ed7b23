"""A store that is slow to answer: views stay ahead of now, and decisions still get through."""

from __future__ import annotations

import asyncio
from random import Random
from unittest.mock import patch

import pytest

from heatsink import Heatsink, Settings
from heatsink.registry.decisions import BUCKETS, LogEntry, Reading, for_key
from heatsink.registry.registry import Latency
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.stores.stores import Stores
from heatsink.testing import (
    Faults,
    Link,
    ManualClock,
    SkewedClock,
    linked_stores,
    run_on_virtual_time,
)

from .test_registry import leading

PINS = 6


def test_one_stall_is_no_slow_store() -> None:
    latency = Latency()
    for seconds in (0.01, 0.01, 60.0, 0.01, 60.0):
        latency.note(seconds)
    assert latency.typical_s == 0.01
    for _ in range(3):
        latency.note(0.3)
    assert latency.typical_s == 0.3


def client(stores: Stores, answer_s: float, coordinate: bool, clock: SkewedClock) -> Heatsink:
    way_s = (answer_s * 0.45, answer_s * 0.55)
    link = Link(clock, Faults(latency_s=way_s, timeout_s=60.0), Random(1))
    settings = Settings(coordinate=coordinate)
    return Heatsink(linked_stores(stores, link), settings, clock, Random(1))


async def pin_in_force_s(hs: Heatsink, key: str, clock: SkewedClock) -> float:
    started_s = clock.monotonic_s()
    await hs.pin(key, buckets=3, reason="test")
    while True:
        epoch = hs.parts.registry.view.layout(key).epochs[-1]
        if epoch.buckets == 3 and epoch.start_ms <= clock.now_s() * 1000:
            return clock.monotonic_s() - started_s
        await clock.sleep(0.01)


async def lowest_horizon_s(
    clients: list[Heatsink], clock: SkewedClock, until: asyncio.Event
) -> float:
    lowest_s = float("inf")
    while not until.is_set():
        lowest_s = min(lowest_s, *(hs.status().horizon_s for hs in clients))
        await clock.sleep(0.01)
    return lowest_s


@pytest.mark.parametrize(("answer_s", "pin_s"), [(0.01, 1.0), (0.2, 4.0), (0.3, 4.5), (0.6, 10.0)])
def test_on_a_slow_store_views_stay_ready_and_pins_take_effect(
    answer_s: float, pin_s: float
) -> None:
    async def scenario() -> None:
        clock = SkewedClock()
        stores = memory_stores(clock)
        leader, app = (client(stores, answer_s, leads, clock) for leads in (True, False))
        async with leader, app:
            await clock.sleep(10)
            done = asyncio.Event()
            watching = asyncio.ensure_future(lowest_horizon_s([leader, app], clock, done))
            for n in range(PINS):
                assert await pin_in_force_s(app, f"k{n}", clock) < pin_s
                await clock.sleep(0.37)
            done.set()
            assert await watching > 0

    run_on_virtual_time(scenario())


async def test_an_epoch_that_the_closed_time_overtook_aims_further_ahead(
    clock: ManualClock,
) -> None:
    """Every attempt takes half a second, and meanwhile somebody advances the closed time."""
    store, attempts = MemoryRegistry(clock), 0
    registry, term = await leading(store, clock)
    append = store.append

    async def append_slowly(entry: LogEntry, term: int | None) -> None:
        nonlocal attempts
        attempts += 1
        await clock.advance(0.5)
        await store.advance(int(clock.now_s() * 1000) + 500)
        await append(entry, term)

    with patch.object(store, "append", append_slowly):
        assert await registry.publish([for_key("k", BUCKETS, 3, "hot")], term)
    assert attempts == 2


async def test_a_response_that_was_overtaken_does_not_set_meta_back(clock: ManualClock) -> None:
    """It would make the next epoch start before the closed time, and so cost an attempt."""
    store = MemoryRegistry(clock)
    registry, term = await leading(store, clock)
    read, was_read, may_answer = store.meta, asyncio.Event(), asyncio.Event()

    async def answer_late() -> Reading:
        reading = await read()
        was_read.set()
        await may_answer.wait()
        return reading

    with patch.object(store, "meta", answer_late):
        late = asyncio.ensure_future(registry.renew())
        await was_read.wait()
    await clock.advance(0.1)
    await registry.keep_ahead(leads=True)
    known = registry.meta
    may_answer.set()
    assert (await late).meta.closed_ms < known.closed_ms
    assert registry.meta == known
    assert await registry._publish([for_key("k", BUCKETS, 3, "hot")], term)
