"""Schedules: each time starts one batch, also across fail-overs, and is recorded under the term."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatsink.bulk import Bulk, BulkSettings
from heatsink.bulk.schedules import (
    LATE_MS,
    LastStart,
    Schedule,
    Schedules,
    due,
    last_start_in,
    next_start,
    start_decision,
)
from heatsink.bulk.store import QueueStores
from heatsink.coordinator.lease import LEASE_S, Lease
from heatsink.coordinator.loops import Leader
from heatsink.coordinator.schedules import ScheduleWatch
from heatsink.errors import InvalidSetting, NotFound, Unavailable
from heatsink.primitives.owner import Owner
from heatsink.registry.decisions import Decision
from heatsink.registry.registry import Registry
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import ManualClock
from tests.registry.test_registry import FOUNDING

HOUR_S = 3_600.0
NINE = int(datetime(2027, 1, 18, 9, tzinfo=UTC).timestamp())  # a Monday
DAILY = {"cron": "0 9 * * MON-FRI"}


class Coordinator:
    """A process that leads if it can, and starts schedules while it does."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet = fleet
        self.registry = Registry(fleet.store, fleet.clock)
        self.lease = Lease(fleet.store, name, fleet.clock)
        self.leader = Leader(self.registry, self.lease)
        stores: QueueStores = fleet.server.stores(fleet.clock)
        self.bulk = Bulk(stores, BulkSettings(), fleet.clock, Random(name))
        self.watch = ScheduleWatch(self.registry, lambda: self.bulk, self.leader, fleet.clock)
        self.schedules = Schedules(self.registry, name, Owner())

    async def turn(self) -> list[Decision]:
        await self.lease.hold()
        await self.registry.renew()
        return await self.watch.run_once() if self.leader.leads else []


@dataclass
class Fleet:
    clock: ManualClock
    processes: list[Coordinator] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MemoryRegistry(self.clock)
        self.server = MemoryQueueServer(self.clock)

    async def start(self, name: str) -> Coordinator:
        process = Coordinator(self, name)
        await process.registry.open(FOUNDING)
        self.processes.append(process)
        return process

    async def until(self, time_s: float) -> None:
        await self.clock.advance(time_s - self.clock.now_s())

    def batches(self) -> list[str]:
        return sorted(self.server.batches._batches)


@pytest.fixture
async def fleet(clock: ManualClock) -> Fleet:
    found = Fleet(clock)
    await found.until(NINE - HOUR_S)
    return found


async def test_each_time_starts_one_batch(fleet: Fleet) -> None:
    one = await fleet.start("one")
    await one.turn()
    status = await one.schedules.set("report", "send", [1, 2], **DAILY)  # type: ignore[arg-type]
    assert (status.next_ms, status.last_ms) == (NINE * 1000, None)
    await one.turn()
    assert fleet.batches() == []
    await fleet.until(NINE + 0.2)
    for _ in range(3):
        await one.turn()
        await fleet.clock.advance(1.0)
    assert fleet.batches() == ["schedule:report:1:2027-01-18T09:00:00Z"]
    (batch,) = await one.bulk.list()
    assert (batch.action, batch.items, batch.tenant) == ("send", 2, "default")
    status = one.schedules.get("report")
    assert (status.last_ms, status.last_batch) == (NINE * 1000, batch.id)
    assert status.next_ms == (NINE + 24 * 3_600) * 1000


async def test_a_leader_that_dies_before_it_records_a_start_starts_nothing_twice(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await fleet.start("one"), await fleet.start("two")
    await one.turn()
    await one.schedules.set("report", "send", **DAILY)  # type: ignore[arg-type]
    await two.turn()
    await fleet.until(NINE + 0.5)

    async def dies(_: Any) -> list[Decision]:
        raise Unavailable("the process was killed")

    await one.lease.hold()
    monkeypatch.setattr(one.leader, "publish", dies)
    with pytest.raises(Unavailable):
        await one.turn()
    assert fleet.batches() == ["schedule:report:1:2027-01-18T09:00:00Z"]
    await two.turn()  # notices the last beat
    await fleet.clock.advance(LEASE_S + 1)
    published = await two.turn()
    assert [decision.words for decision in published] == ["start decided"]
    assert len(fleet.batches()) == 1


async def test_a_deposed_leader_records_no_start(fleet: Fleet) -> None:
    one, two = await fleet.start("one"), await fleet.start("two")
    await one.turn()
    await one.schedules.set("report", "send", **DAILY)  # type: ignore[arg-type]
    await two.turn()
    await fleet.until(NINE + 0.5)
    await one.registry.renew()
    ((_, found),) = one.watch.due()
    await two.turn()  # the lease of the first leader has ended long ago
    assert (await two.turn(), two.leader.leads) == ([], True)
    assert one.leader.leads, "it does not know yet"
    assert await one.watch._start(one.schedules.get("report").schedule, found) == []
    assert len(fleet.batches()) == 1
    forged = start_decision("report", LastStart(found.time_ms + 1, "another"))
    assert await one.leader.publish([forged]) == []
    assert not one.leader.leads
    await two.registry.renew()
    start = last_start_in(two.registry.view, "report")
    assert start is not None
    assert start.batch == fleet.batches()[0]


@pytest.mark.parametrize(("missed", "started"), [("skip", 0), ("once", 1)])
async def test_missed_times_are_handled_as_declared(
    fleet: Fleet, missed: Any, started: int
) -> None:
    one = await fleet.start("one")
    await one.schedules.set("report", "send", every=HOUR_S, missed=missed)
    await fleet.until(NINE + 5 * HOUR_S + 120.0)
    await one.turn()
    await one.turn()
    assert len(fleet.batches()) == started
    assert one.schedules.get("report").last_ms == (NINE + 5 * 3_600) * 1000
    await fleet.until(NINE + 6 * HOUR_S)
    await one.turn()
    assert len(fleet.batches()) == started + 1


async def test_a_paused_schedule_starts_nothing_and_goes_on_from_its_resumption(
    fleet: Fleet,
) -> None:
    one = await fleet.start("one")
    await one.schedules.set("report", "send", every=HOUR_S, missed="once")
    await one.schedules.pause("report")
    assert one.schedules.get("report").next_ms is None
    await fleet.until(NINE + 100.0)
    await one.turn()
    await one.schedules.resume("report")
    await one.turn()
    assert fleet.batches() == []
    await fleet.until(NINE + HOUR_S)
    await one.turn()
    assert fleet.batches() == ["schedule:report:3:2027-01-18T10:00:00Z"]
    await one.schedules.remove("report")
    assert one.schedules.all() == []
    with pytest.raises(NotFound):
        await one.schedules.pause("report")


async def test_a_schedule_whose_action_nobody_has_is_tried_until_its_time_is_missed(
    fleet: Fleet,
) -> None:
    one = await fleet.start("one")
    await fleet.server.fleet.join("worker", ["other"], 600_000)
    await one.schedules.set("report", "send", every=60)
    for _ in range(3):
        await fleet.clock.advance(30.0)
        await one.turn()
    assert fleet.batches() == []
    await fleet.server.fleet.join("worker", ["send"], 600_000)
    await fleet.clock.advance(10.0)
    await one.turn()
    assert len(fleet.batches()) == 1


async def test_an_action_may_return_the_items(fleet: Fleet) -> None:
    one = await fleet.start("one")
    await one.schedules.set("report", "send", items_from="customers", every=HOUR_S, rate="10/s")
    await fleet.until(NINE)
    await one.turn()
    await one.turn()
    (batch,) = await one.bulk.list()
    assert batch.then is not None
    assert (batch.action, batch.then.action, batch.then.each) == ("customers", "send", True)
    assert batch.then.rate == "10/s"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs every or cron"),
        ({"every": 60, "cron": "0 9 * * *"}, "needs every or cron, and not both"),
        ({"every": 0.5}, "every must be"),
        ({"every": 1.5}, "every must be whole seconds"),
        ({"every": 60, "zone": "Europe/Berlin"}, "zone needs cron"),
        ({"cron": "0 9 * * *", "zone": "Berlin"}, "zone 'Berlin' is unknown"),
        ({"every": 60, "missed": "all"}, "missed must be 'skip' or 'once'"),
        ({"every": 60, "items": [b"bytes"]}, "must be JSON values"),
        ({"every": 60, "items": ["x" * 40_000]}, "let an action return them"),
        ({"every": 60, "items": [1], "items_from": "a"}, "cannot be used together"),
        ({"every": 60, "color": "red"}, "color"),
        ({"every": 60, "name": "a:b"}, "name must be"),
    ],
)
async def test_a_wrong_schedule_is_refused(fleet: Fleet, options: dict[str, Any], why: str) -> None:
    one = await fleet.start("one")
    with pytest.raises(InvalidSetting, match=why):
        await one.schedules.set(**{"name": "report", "action": "send", **options})


@settings(max_examples=200, deadline=None)
@given(
    every_s=st.sampled_from([1, 60, 3_600]),
    missed=st.sampled_from(["skip", "once"]),
    looks=st.lists(st.integers(1, 10_000_000), min_size=1, max_size=30),
)
def test_times_start_in_order_at_most_once_and_as_declared(
    every_s: int, missed: Any, looks: list[int]
) -> None:
    schedule = Schedule("a", "send", every_s=every_s, missed=missed, since_ms=NINE * 1000)
    last_ms, now_ms = 0, NINE * 1000
    for pause_ms in looks:
        now_ms += pause_ms
        found = due(schedule, last_ms, now_ms)
        following = next_start(schedule, max(last_ms, schedule.since_ms))
        assert (found is None) == (following is None or following > now_ms)
        if found is not None:
            assert last_ms < found.time_ms <= now_ms < found.time_ms + every_s * 1000
            assert found.starts == (missed == "once" or now_ms - found.time_ms <= LATE_MS)
            assert due(schedule, found.time_ms, now_ms) is None
            last_ms = found.time_ms
    assert due(schedule, last_ms, NINE * 1000) is None, "a clock that was set back"
