"""What every queue store must do with pauses and weights of tenants and actions."""

from __future__ import annotations

from collections import Counter

import pytest

from heatsink.bulk.controls import Controls
from heatsink.bulk.store import ClaimRequest, Setback
from heatsink.stores.redis.queue import queue as redis_queue

from .driver import LEASE_MS, PARTITION, Driver, single_of

ADA = Controls("i", 1, tenants=frozenset({"ada"}))
MAIL = Controls("i", 1, actions=frozenset({"mail"}))
NOBODY = Controls("i", 2)


async def control(driver: Driver, controls: Controls) -> int:
    """How many calls were needed."""
    calls = 1
    while await driver.stores.queue.control(PARTITION, controls):
        calls += 1
    return calls


@pytest.mark.parametrize("controls", [ADA, MAIL])
async def test_what_is_paused_is_held_back_until_it_is_resumed(
    driver: Driver, controls: Controls
) -> None:
    await driver.submit("a", [3])
    await driver.submit("b", [2], tenant="bob", action="push")
    await control(driver, controls)
    assert [each.part for each in await driver.slices()] == ["b"]
    load = await driver.stores.queue.load(PARTITION)
    assert (load.runnable, load.in_flight, load.tenants) == (0, 2, 1)
    assert (await driver.counts("a")).state == "ready"
    await control(driver, NOBODY)
    assert [each.part for each in await driver.slices()] == ["a"]


async def test_what_comes_while_its_tenant_is_paused_is_held_back(driver: Driver) -> None:
    await control(driver, ADA)
    await driver.submit("a", [3])
    await driver.submit("later", [3], start_ms=int(driver.clock.now_s() * 1000) + 5_000)
    await driver.submit("rated", [3], limited=True)
    (is_single,) = await driver.stores.singles.accept(PARTITION, [single_of("one")])
    await driver.wait(10_000)
    found = await driver.claim(grants={"mail/ada": 5})
    assert (found.slices, found.lanes, found.more) == ([], [], False)
    await control(driver, NOBODY)
    assert sum(each.count for each in await driver.slices(100, **{"mail/ada": 3})) == 9 + is_single


async def test_items_that_run_finish_and_retries_are_held_back(driver: Driver) -> None:
    await driver.submit("a", [3])
    (found,) = await driver.slices()
    await control(driver, ADA)
    assert await driver.settle(found, "drb", Setback(1, "again"))
    assert await driver.slices() == []
    assert (await driver.counts("a")).done == 1
    await control(driver, NOBODY)
    assert await driver.work() == 2
    assert (await driver.counts("a")).state == "finished"


async def test_what_is_held_back_may_be_cancelled_and_paused(driver: Driver) -> None:
    await driver.submit("a", [3])
    await driver.submit("b", [3])
    await control(driver, ADA)
    await driver.steer("a", "cancel", since=1)
    await driver.steer("b", "pause", since=1)
    assert (await driver.counts("a")).cancelled == 3
    await control(driver, NOBODY)
    assert await driver.slices() == []
    await driver.steer("b", "resume", since=2)
    assert await driver.work() == 3


async def test_a_part_with_two_reasons_waits_for_both(driver: Driver) -> None:
    await driver.submit("a", [3])
    await control(driver, Controls("i", 1, tenants=ADA.tenants, actions=MAIL.actions))
    await control(driver, Controls("i", 2, actions=MAIL.actions))
    assert await driver.slices() == []
    await control(driver, Controls("i", 3))
    assert await driver.work() == 3


async def test_older_controls_change_nothing_but_those_of_a_new_registry_do(
    driver: Driver,
) -> None:
    await driver.submit("a", [3])
    await control(driver, Controls("i", 7, tenants=ADA.tenants))
    await control(driver, Controls("i", 6))
    await control(driver, Controls())
    assert await driver.slices() == []
    await control(driver, Controls("another", 1))
    assert await driver.work() == 3


async def test_a_partition_that_lost_its_controls_hands_out_nothing(driver: Driver) -> None:
    await driver.submit("a", [3])
    request = ClaimRequest("me", "x", 10, LEASE_MS, controls=ADA)
    await driver.stores.fleet.own(PARTITION, "me", 60_000)
    found = await driver.stores.queue.claim(PARTITION, request)
    assert (found.owned, found.slices, found.controlled) == (True, [], False)
    await control(driver, ADA)
    found = await driver.stores.queue.claim(PARTITION, request)
    assert (found.slices, found.controlled) == ([], True)
    assert (await driver.claim()).controlled, "a worker that knows none follows the partition"


async def test_weights_are_those_of_the_newest_controls(driver: Driver) -> None:
    for tenant in ("ada", "bob"):
        await driver.submit(tenant, [500], tenant=tenant)
    await control(driver, Controls("i", 1, weights={"ada": 3.0}))
    served: Counter[str] = Counter()
    for _ in range(40):
        for each in await driver.slices(10):
            served[each.tenant] += each.count
            await driver.settle(each, "d")
    assert served["ada"] == pytest.approx(300, abs=40)


async def test_many_parts_are_moved_a_page_at_a_time(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_queue, "CONTROL_PAGE", 4)
    for number in range(10):
        await driver.submit(f"a{number}", [1])
    assert await control(driver, ADA) in (1, 3)
    assert await driver.slices() == []
    assert await control(driver, NOBODY) in (1, 3)
    await control(driver, NOBODY)
    assert await driver.work() == 10


async def test_a_claim_in_the_middle_of_a_page_holds_back_what_is_paused(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_queue, "CONTROL_PAGE", 1)
    for number in range(5):
        await driver.submit(f"a{number}", [1])
    await driver.submit("b", [1], tenant="bob")
    await driver.stores.queue.control(PARTITION, ADA)
    assert [each.part for each in await driver.slices()] == ["b"]
    await control(driver, ADA)
    await driver.stores.queue.control(PARTITION, NOBODY)
    await control(driver, NOBODY)
    assert await driver.work() == 5
