from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import pytest

from heatsink.coordinator.lease import Lease
from heatsink.coordinator.loops import TURNS_MAX, ControlLoop, Coordinator, Leader, Turn
from heatsink.errors import HeatsinkError, Throttled, Unavailable
from heatsink.primitives.subjects import subject_of
from heatsink.registry.decisions import BUCKETS, Decision, for_key
from heatsink.registry.registry import Registry
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.stores.memory.messages import MemoryNews
from heatsink.testing import ManualClock
from tests.registry.test_registry import FOUNDING


class Threes:
    """Decides three buckets for whatever it observes."""

    def decide(self, observation: str) -> list[Decision]:
        return [for_key(observation, BUCKETS, 3, "three is enough")] if observation else []


class Process(Coordinator):
    """A coordinator that decides three buckets for one key, and what it is made from."""

    def __init__(self, registry: Registry, lease: Lease, clock: ManualClock) -> None:
        self.leader = Leader(registry, lease)

        async def observe() -> str:
            return "k"

        self.outcomes: list[HeatsinkError | None] = []
        loops: list[Turn] = [ControlLoop(observe, Threes(), self.leader.publish)]
        super().__init__(
            registry, lease, clock, loops, lambda error, _: self.outcomes.append(error)
        )


async def coordinator(store: MemoryRegistry, name: str, clock: ManualClock) -> Process:
    registry = Registry(store, clock)
    await registry.open(FOUNDING)
    return Process(registry, Lease(store, name, clock), clock)


async def test_the_leader_publishes_and_the_standby_does_not(clock: ManualClock) -> None:
    store = MemoryRegistry(clock)
    leader, standby = await coordinator(store, "a", clock), await coordinator(store, "b", clock)
    await leader.run_once()
    await standby.run_once()
    assert (leader.leader.leads, standby.leader.leads) == (True, False)
    assert (await store.layout("k")).buckets == 3


async def test_a_loop_publishes_nothing_when_nothing_is_decided() -> None:
    published: list[Decision] = []

    async def observe() -> str:
        return ""

    async def publish(decisions: list[Decision]) -> list[Decision]:
        published.extend(decisions)
        return decisions

    assert await ControlLoop(observe, Threes(), publish).run_once() == []
    assert published == []


class Refusing:
    """Observes a key once, and refuses so many times to publish what came of it."""

    def __init__(self, refusals: int) -> None:
        self.left = refusals
        self.tried: list[list[str]] = []
        self.seen = ["k"]
        self.loop = ControlLoop(self.observe, Threes(), self.publish)

    async def observe(self) -> str:
        return self.seen.pop() if self.seen else ""

    async def publish(self, decisions: list[Decision]) -> list[Decision]:
        self.tried.append([decision.key for decision in decisions])
        if len(self.tried) <= self.left:
            raise Throttled("k")
        return decisions

    async def turn(self, times: int) -> None:
        for _ in range(times):
            with suppress(Throttled):
                await self.loop.run_once()


async def test_what_was_refused_is_published_at_the_next_turn_together_with_what_is_new() -> None:
    stage = Refusing(refusals=2)
    await stage.turn(2)
    assert stage.loop.wanted(subject_of("k"), BUCKETS) == for_key(
        "k", BUCKETS, 3, "three is enough"
    )
    stage.seen.append("other")
    await stage.turn(3)
    assert stage.loop.wanted(subject_of("k"), BUCKETS) is None
    assert stage.tried == [["k"], ["k"], ["k", "other"]]


async def test_what_is_refused_for_long_is_left_to_be_decided_again() -> None:
    stage = Refusing(refusals=1_000)
    await stage.turn(TURNS_MAX + 5)
    assert len(stage.tried) == TURNS_MAX


async def test_the_closed_time_stays_ahead_of_now_while_it_runs(clock: ManualClock) -> None:
    store = MemoryRegistry(clock)
    running = asyncio.ensure_future((await coordinator(store, "a", clock)).run())
    for _ in range(20):
        await clock.advance(0.25)
        ahead_ms = (await store.meta()).meta.closed_ms - clock.now_s() * 1000
        assert 250 <= ahead_ms <= 500
    running.cancel()


async def test_losing_the_term_while_publishing_ends_the_reign(clock: ManualClock) -> None:
    store = MemoryRegistry(clock)
    leader = await coordinator(store, "a", clock)
    await leader._lease.hold()
    await store.lead((await store.meta()).meta, "usurper", 0)
    assert await leader.leader.publish([for_key("k", BUCKETS, 9, "late")]) == []
    assert not leader.leader.leads
    assert (await store.layout("k")).buckets == 1


async def test_an_error_is_told_and_the_next_turn_comes(clock: ManualClock) -> None:
    store = MemoryRegistry(clock)
    made = await coordinator(store, "a", clock)
    turns = 0

    class Failing:
        async def run_once(self) -> list[Decision]:
            nonlocal turns
            turns += 1
            raise Unavailable("not now")

    made._loops = [Failing()]
    running = asyncio.ensure_future(made.run())
    await clock.advance(1.0)
    running.cancel()
    assert turns >= 3
    assert {str(error) for error in made.outcomes[1:]} == {"not now"}


async def test_lease_and_closed_time_do_not_wait_for_a_control_loop(clock: ManualClock) -> None:
    """A turn of ten seconds, such as a long aggregation, costs neither the term nor the time."""
    store = MemoryRegistry(clock)
    made = await coordinator(store, "a", clock)
    standby = await coordinator(store, "b", clock)

    class Slow:
        async def run_once(self) -> list[Decision]:
            await clock.sleep(10.0)
            return []

    made._loops = [Slow()]
    running = [asyncio.ensure_future(each.run()) for each in (made, standby)]
    for _ in range(40):
        await clock.advance(0.25)
        meta = (await store.meta()).meta
        assert (meta.leader, meta.term) == ("a", 1)
        assert 250 <= meta.closed_ms - clock.now_s() * 1000 <= 500
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_a_dedicated_standby_of_a_large_fleet_takes_over_within_two_leases(
    clock: ManualClock,
) -> None:
    """Others look at the lease rarely there, since every server may be one."""
    store, news = MemoryRegistry(clock), MemoryNews()

    async def made(name: str, is_dedicated: bool) -> Coordinator:
        registry = Registry(store, clock, news, Random(name))
        await registry.open(FOUNDING)
        lease = Lease(store, name, clock, count_servers=lambda: 10_000)
        return Coordinator(registry, lease, clock, [], is_dedicated=is_dedicated)

    leader = await made("leader", True)
    for _ in range(2):
        await leader.beat()
        await clock.advance(1.0)
    standbys = [await made("server", False), await made("dedicated", True)]
    running = [asyncio.ensure_future(each.run()) for each in standbys]
    for _ in range(60):
        await clock.advance(0.1)
    assert (await store.meta()).meta.leader == "dedicated"
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize("name", ["a"])
async def test_closing_gives_the_lease_back(clock: ManualClock, name: str) -> None:
    store = MemoryRegistry(clock)
    leader = await coordinator(store, name, clock)
    await leader.run_once()
    await leader.close()
    assert (await store.meta()).meta.leader == ""
