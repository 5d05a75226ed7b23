"""What operators are told about who leads."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import heatsink
from heatsink.coordinator.lease import Lease, leadership_of
from heatsink.registry.decisions import Meta
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.testing import ManualClock

META = Meta(
    closed_ms=0,
    version=0,
    term=1,
    beat=4,
    leader="c2",
    incarnation="i",
    seed=b"",
    id_scheme="uuid7",
    lease_ms=10_000,
)


def meta(**changes: Any) -> Meta:
    return replace(META, **changes)


def test_a_leader_leads_until_its_lease_runs_out() -> None:
    found = leadership_of(META, 10_000)
    assert (found.leader, found.leaderless_s, found.vacancy) == ("c2", 0.0, None)
    found = leadership_of(META, 110_000)
    assert (found.leader, found.leaderless_s) == ("", 100.0)
    assert found.vacancy == (
        "no leader since 1970-01-01 00:00:10 UTC (100 s ago; the lease of c2 expired)"
    )


def test_a_lease_that_was_given_back_has_no_holder_to_blame() -> None:
    found = leadership_of(meta(leader=""), 11_000)
    assert found.vacancy == "no leader since 1970-01-01 00:00:10 UTC (1 s ago)"


def test_of_a_new_store_nobody_knows_a_time() -> None:
    found = leadership_of(meta(leader="", lease_ms=0), 11_000)
    assert (found.vacancy, found.leaderless_s) == ("there has been no leader yet", float("inf"))


def test_news_of_a_leader_outweighs_a_lease_read_long_ago() -> None:
    assert leadership_of(META, 40_000, led_until_ms=41_000).leader == "c2"


async def test_meta_says_until_when_the_leader_leads(clock: ManualClock) -> None:
    store = MemoryRegistry(clock)
    await store.found(meta(leader="", lease_ms=0, term=0, beat=0))
    lease = Lease(store, "a", clock, 3.0)
    while not await lease.hold():
        await clock.advance(0.5)

    async def left_s() -> float:
        return (await store.meta()).meta.lease_ms / 1000 - clock.now_s()

    assert await left_s() == pytest.approx(3.0, abs=0.01)
    for _ in range(20):
        await clock.advance(0.5)
        await lease.hold()
        assert 2.0 <= await left_s() <= 3.01
    await lease.resign()
    assert await left_s() == pytest.approx(0.0, abs=0.01)


async def test_who_is_cancelled_while_it_asks_for_the_lead_gives_it_back(
    clock: ManualClock,
) -> None:
    """As when a coordinator is told to end while it starts."""

    class Slow(MemoryRegistry):
        async def lead(self, seen: Meta, leader: str, lease_ms: int) -> Meta:
            taken = await super().lead(seen, leader, lease_ms)
            if leader:
                raise InterruptedError
            return taken

    store = Slow(clock)
    await store.found(meta(leader="", lease_ms=0))
    lease = Lease(store, "a", clock)
    with pytest.raises(InterruptedError):
        await lease.hold()
    assert (await store.meta()).meta.leader == "a"
    await lease.resign()
    assert (await store.meta()).meta.leader == ""


async def test_a_process_notices_that_the_leader_is_gone(clock: ManualClock) -> None:
    async with heatsink.connect("memory://", clock=clock, name="only") as hs:
        while not hs.status().leads:
            await clock.advance(0.2)
        assert hs.status().leader.startswith("only:")
        assert (await hs.leadership()).vacancy is None
        hs.parts.tasks[-1].cancel()  # it coordinates no more, as if another one had been killed
        hs.parts.coordination.leader._lease.lose()
        for _ in range(1_000):
            await clock.advance(0.1)
        status = hs.status()
        assert (status.leads, status.leader) == (False, "")
        assert 96 < status.leaderless_s < 101
        await hs.pin("conv", buckets=4, reason="launch")
        explained = await hs.explain("conv")
        assert explained.hot_by == "", "not yet"
        assert "not in force yet: there is no leader" in explained.reason
        assert "heat    not known: there is no leader\n" in str(explained)
        assert "leader  no leader since" in str(explained)
        assert "heatsink coordinator" in str(explained)
        assert "ask the leader" not in str(explained)
        assert (await hs.hottest()).leader == ""
