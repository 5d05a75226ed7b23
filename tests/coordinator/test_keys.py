from __future__ import annotations

from random import Random

from heatsink.coordinator.coordination import Coordination, CoordinationSettings
from heatsink.coordinator.keys import KeyWatch
from heatsink.coordinator.reads import NearDecisions
from heatsink.heat.count import Tracker
from heatsink.heat.heat import Heat, Report
from heatsink.heat.report import ReportSettings
from heatsink.reads.near_cache import NearKeys
from heatsink.reads.policy import NearRules
from heatsink.registry.decisions import Decision
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff, Retries
from heatsink.spread.policy import BucketRules
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.messages import MemorySoft
from heatsink.testing import ManualClock
from tests.registry.test_registry import FOUNDING


async def test_a_bus_on_which_nothing_arrives_is_broken_not_calm(clock: ManualClock) -> None:
    stores = memory_stores(clock)
    registry = Registry(stores.registry, clock)
    await registry.open(FOUNDING)
    watch = KeyWatch(stores.bus, registry, "me", ReportSettings())
    assert (await watch.observe()).windows == []
    window = int(clock.now_s())
    await stores.bus.send(Report("a", window, 1.0, True, 1, {"k": Heat(5, 5)}))
    await clock.advance(1.5)
    assert (await watch.observe()).windows[0].window == window
    await clock.advance(2.0)
    assert (await watch.observe()).windows != [], "two windows of silence are silence"
    for _ in range(3):
        await clock.advance(5.0)
        assert (await watch.observe()).windows == []


async def a_coordination(clock: ManualClock) -> Coordination:
    stores = memory_stores(clock)
    registry = Registry(stores.registry, clock)
    await registry.open(FOUNDING)
    backoff = Backoff(Retries(), clock, Random(1), Tracker(), registry.view)
    return Coordination(
        stores,
        registry,
        CoordinationSettings("me", BucketRules(), NearRules(), ReportSettings(), lease_s=3.0),
        NearDecisions(NearKeys(clock), MemorySoft([])),
        lambda _: [Idle()],
        clock,
        backoff,
    )


class Idle:
    async def run_once(self) -> list[Decision]:
        return []


async def test_the_hottest_keys_are_ranked_and_the_others_bounded(clock: ManualClock) -> None:
    coordination = await a_coordination(clock)
    watch, bus = coordination.watch, coordination.watch._bus
    await coordination.coordinator.run_once()
    assert (await coordination.hottest(5)).start_s is None, "nothing is known yet"
    window = int(clock.now_s())
    keys = {"read": Heat(reads=90), "cold": Heat(5, 5), "hot": Heat(100, 120, error=3)}
    await clock.advance(1.5)
    await bus.send(Report("a", window, 1.0, True, 3, keys))
    await watch.observe()
    hottest = await coordination.hottest(2)
    assert (hottest.leads, hottest.leader) == (True, "me")
    assert [(hot.key, hot.buckets) for hot in hottest.keys] == [("hot", 1), ("read", 1)]
    assert hottest.keys[0].heat.bound_s == 3
    assert hottest.unreported_s == 7, "the one that was left out had five, and may lack two"
    assert [hot.key for hot in (await coordination.hottest(3)).keys] == ["hot", "read"]


async def test_a_leader_that_hears_of_nobody_does_not_know_the_heat(clock: ManualClock) -> None:
    coordination = await a_coordination(clock)
    await coordination.coordinator.run_once()
    await clock.advance(2.0)
    await coordination.watch._bus.send(Report("a", int(clock.now_s()) - 1, 1.0, True, 3, {}))
    await coordination.watch.observe()
    assert (await coordination.hottest(5)).unreported_s == 2
    for _ in range(12):
        await clock.advance(1.0)
        await coordination.watch.observe()
    hottest = await coordination.hottest(5)
    assert (hottest.leads, hottest.start_s, hottest.unreported_s) == (True, None, None)
