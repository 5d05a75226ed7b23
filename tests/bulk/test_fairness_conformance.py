"""Whose items a queue store must hand out first."""

from __future__ import annotations

from collections import Counter

import pytest

from heatsink.bulk.store import LaneDepth, QueueStores

from .driver import NOW_MS, PARTITION, Driver, places


async def served(driver: Driver, rounds: int, want: int = 1, used_us: int = 1_000) -> Counter[str]:
    """Who got how many items, when each of them takes `used_us`."""
    found: Counter[str] = Counter()
    for _ in range(rounds):
        for item in await driver.slices(want):
            found[item.tenant] += item.count
            await driver.settle(item, "d", used_us=used_us * item.count)
    return found


async def test_tenants_take_turns_however_much_one_brings(driver: Driver) -> None:
    await driver.submit("big", [1_000], tenant="ada")
    await driver.submit("small", [100], tenant="bob")
    assert await served(driver, 100) == {"ada": 50, "bob": 50}


async def test_a_weight_of_two_gets_twice_as_much(driver: Driver) -> None:
    await driver.submit("a", [300], tenant="ada", weight=2.0)
    await driver.submit("b", [300], tenant="bob")
    found = await served(driver, 90)
    assert found["ada"] == pytest.approx(60, abs=1)


async def test_many_parts_do_not_get_a_tenant_more(driver: Driver) -> None:
    for number in range(5):
        await driver.submit(f"a{number}", [100], tenant="ada")
    await driver.submit("b", [100], tenant="bob")
    assert await served(driver, 60) == {"ada": 30, "bob": 30}


async def test_tenants_pay_for_the_time_their_items_took(driver: Driver) -> None:
    await driver.submit("slow", [300], tenant="ada", action="slow")
    await driver.submit("fast", [300], tenant="bob", action="fast")
    found: Counter[str] = Counter()
    for _ in range(120):
        (item,) = await driver.slices(1)
        found[item.tenant] += 1
        await driver.settle(item, "d", used_us=3_000 if item.tenant == "ada" else 1_000)
    assert found["ada"] == pytest.approx(30, abs=2)


async def test_what_is_given_back_is_paid_back(driver: Driver) -> None:
    await driver.submit("a", [50], tenant="ada")
    await driver.submit("b", [50], tenant="bob")
    for item in await driver.slices(20):
        await driver.settle(item, "b")
    assert await served(driver, 20) == {"ada": 10, "bob": 10}


async def test_who_was_away_comes_back_without_savings(driver: Driver) -> None:
    await driver.submit("a", [500], tenant="ada")
    assert await served(driver, 100) == {"ada": 100}
    await driver.submit("b", [500], tenant="bob")
    assert await served(driver, 40) == {"ada": 20, "bob": 20}


async def test_one_claim_serves_several_tenants(driver: Driver) -> None:
    await driver.submit("a", [100], tenant="ada")
    await driver.submit("b", [100], tenant="bob")
    found = await driver.slices(40)
    assert [item.count for item in found] == [20, 20]
    assert {item.tenant for item in found} == {"ada", "bob"}


async def test_the_shortest_remaining_of_a_tenant_goes_first(driver: Driver) -> None:
    await driver.submit("long", [100])
    await driver.submit("short", [5])
    assert [item.part for item in await driver.slices(10)] == ["short", "long"]


async def test_waiting_is_worth_as_much_as_being_short(driver: Driver) -> None:
    await driver.submit("old", [5_000], submitted_ms=NOW_MS - 6_000)
    await driver.submit("new", [5], submitted_ms=NOW_MS)
    assert [item.part for item in await driver.slices(1)] == ["old"]


async def test_priority_goes_before_everything_within_a_tenant(driver: Driver) -> None:
    await driver.submit("short", [5])
    await driver.submit("urgent", [100], priority=1)
    await driver.submit("whenever", [1], priority=-1)
    found = [item.part for item in await driver.slices(106)]
    assert found == ["urgent"] * 5 + ["short", "whenever"]


async def test_a_quantum_is_shorter_for_expensive_actions(driver: Driver) -> None:
    await driver.submit("a", [100])
    (first,) = await driver.slices(1)
    await driver.settle(first, "d", used_us=10_000)
    assert [item.count for item in await driver.slices(6)] == [2, 2, 2]


async def test_a_lane_needs_grants_and_takes_no_more(driver: Driver) -> None:
    await driver.submit("a", [10], lane="slow", limited=True)
    nothing = await driver.claim()
    assert (nothing.slices, nothing.lanes) == ([], [LaneDepth("slow", 10)])
    assert not nothing.more
    claimed = await driver.claim(0, grants={"slow": 4, "other": 5})
    assert places(claimed.slices) == [("a/0", 0, 4)]
    assert claimed.lanes == [LaneDepth("slow", 6)]


async def test_a_lane_that_sleeps_or_is_paused_is_not_deep(driver: Driver) -> None:
    await driver.submit("a", [2], lane="slow", limited=True)
    await driver.submit("b", [3], lane="slow", limited=True)
    await driver.steer("b", "pause")
    (item,) = await driver.slices(0, slow=2)
    await driver.settle(item, "r")
    assert (await driver.claim()).lanes == [LaneDepth("slow", 2)]
    await driver.steer("b", "resume")
    assert (await driver.claim()).lanes == [LaneDepth("slow", 5)]
    await driver.steer("a", "cancel")
    await driver.steer("b", "cancel")
    assert (await driver.claim()).lanes == []


async def test_items_of_a_lane_are_paid_for_too(driver: Driver) -> None:
    await driver.submit("limited", [100], tenant="ada", lane="slow", limited=True)
    await driver.submit("a", [100], tenant="ada")
    await driver.submit("b", [100], tenant="bob")
    for item in await driver.slices(0, slow=10):
        await driver.settle(item, "d", used_us=10_000)
    assert await served(driver, 10) == {"bob": 10}


async def test_a_part_whose_items_all_wait_costs_nothing(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("a", [2], tenant="ada")
    await driver.work(mark="r")
    assert (await stores.queue.load(PARTITION)).runnable == 2
    assert await driver.work() == 2
