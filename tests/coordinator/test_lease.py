from __future__ import annotations

import pytest

from heatsink.coordinator.lease import Lease
from heatsink.errors import Deposed, InvalidSetting, Unavailable
from heatsink.registry.decisions import Meta
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.testing import ManualClock
from tests.registry.test_registry import FOUNDING


class Moody(MemoryRegistry):
    """Answers until it is told not to."""

    silent = False
    loses_answers = False

    async def beat(self, term: int, servers: int, lease_ms: int) -> None:
        if self.silent:
            raise Unavailable("no answer")
        await super().beat(term, servers, lease_ms)

    async def lead(self, seen: Meta, leader: str, lease_ms: int) -> Meta:
        meta = await super().lead(seen, leader, lease_ms)
        if self.loses_answers:
            raise Unavailable("the answer was lost")
        return meta


@pytest.fixture
async def store(clock: ManualClock) -> Moody:
    store = Moody(clock)
    await store.found(FOUNDING)
    return store


async def test_the_first_leads_at_once_and_the_second_waits(
    store: Moody, clock: ManualClock
) -> None:
    first, second = Lease(store, "a", clock), Lease(store, "b", clock)
    assert await first.hold()
    assert not await second.hold()
    assert (await store.meta()).meta.leader == "a"


async def test_a_standby_takes_over_within_two_leases_of_a_death(
    store: Moody, clock: ManualClock
) -> None:
    first, second = Lease(store, "a", clock, 3.0), Lease(store, "b", clock, 3.0)
    await first.hold()
    await second.hold()
    waited_s = 0.0
    while not await second.hold():
        await clock.advance(0.25)
        waited_s += 0.25
    assert 3.0 <= waited_s <= 6.0
    with pytest.raises(Deposed):
        await store.beat(1, 1, 0)


async def test_a_living_leader_keeps_the_lease(store: Moody, clock: ManualClock) -> None:
    first, second = Lease(store, "a", clock), Lease(store, "b", clock)
    for _ in range(100):
        assert await first.hold()
        assert not await second.hold()
        await clock.advance(0.5)


async def test_a_leader_that_slept_finds_itself_deposed(store: Moody, clock: ManualClock) -> None:
    first, second = Lease(store, "a", clock), Lease(store, "b", clock)
    await first.hold()
    for _ in range(20):
        await second.hold()
        await clock.advance(0.5)
    assert not await first.hold()


async def test_a_leader_the_store_does_not_answer_steps_down_after_a_lease(
    store: Moody, clock: ManualClock
) -> None:
    lease = Lease(store, "a", clock, 3.0)
    await lease.hold()
    store.silent = True
    await clock.advance(2.0)
    assert await lease.hold()
    await clock.advance(1.5)
    assert not await lease.hold()


async def test_a_lost_answer_does_not_lose_the_term(store: Moody, clock: ManualClock) -> None:
    lease = Lease(store, "a", clock)
    store.loses_answers = True
    with pytest.raises(Unavailable):
        await lease.hold()
    assert await lease.hold()
    assert lease.term == 1


async def test_a_resignation_lets_the_standby_lead_at_once(
    store: Moody, clock: ManualClock
) -> None:
    first, second = Lease(store, "a", clock), Lease(store, "b", clock)
    await first.hold()
    await second.hold()
    await first.resign()
    assert await second.hold()


def test_a_lease_must_last(clock: ManualClock) -> None:
    with pytest.raises(InvalidSetting, match="lease_s"):
        Lease(MemoryRegistry(clock), "a", clock, lease_s=0)
