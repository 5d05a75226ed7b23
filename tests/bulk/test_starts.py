"""Batches that start later: `submit(at=…)` and `submit(delay=…)`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from heatsink.bulk import Bulk
from heatsink.bulk.store import QueueStores
from heatsink.errors import InvalidSetting

from .driver import NOW_MS, PARTITION, Driver
from .world import World, on_virtual_time


async def test_a_part_with_a_start_time_runs_from_then_on(driver: Driver) -> None:
    await driver.submit("later", [3], start_ms=NOW_MS + 5_000)
    early = await driver.claim()
    assert (early.slices, early.more, early.wake_ms) == ([], False, 5_000)
    await driver.wait(4_999)
    assert await driver.slices() == []
    await driver.wait(1)
    assert await driver.work() == 3
    assert [end.done for end in await driver.ends()] == [3]


async def test_a_part_counts_as_load_from_its_start_time_on(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("later", [3], start_ms=NOW_MS + 5_000)
    early = await stores.queue.load(PARTITION)
    assert (early.runnable, early.tenants, early.oldest_ms) == (0, 0, 0)
    assert not await stores.queue.is_idle(PARTITION)
    await driver.wait(6_000)
    await driver.claim(want=1)
    late = await stores.queue.load(PARTITION)
    assert (late.runnable, late.in_flight, late.oldest_ms) == (2, 1, 1_000)


async def test_a_part_that_is_paused_before_its_start_time_still_waits_for_it(
    driver: Driver,
) -> None:
    await driver.submit("later", [3], start_ms=NOW_MS + 5_000)
    await driver.steer("later", "pause", since=1)
    await driver.steer("later", "resume", since=2)
    assert await driver.slices() == []
    await driver.wait(5_000)
    assert await driver.work() == 3


async def test_a_part_can_be_cancelled_before_its_start_time(driver: Driver) -> None:
    await driver.submit("later", [3], start_ms=NOW_MS + 5_000)
    await driver.steer("later", "cancel", since=1)
    assert [end.cancelled for end in await driver.ends()] == [3]


async def test_a_part_that_starts_later_has_no_head_start(driver: Driver) -> None:
    await driver.submit("later", [1], start_ms=NOW_MS + 5_000)
    await driver.wait(5_000)
    await driver.submit("now", [1], submitted_ms=NOW_MS + 4_000)
    assert [item.part for item in await driver.slices()] == ["now", "later"]


@on_virtual_time
async def test_no_item_starts_before_its_batch() -> None:
    world = World()
    now_s = world.clock.now_s()
    at = datetime.fromtimestamp(now_s + 90.0, UTC).astimezone(None)
    async with world.consumer():
        later = await world.bulk.submit("note", range(5), at=at)
        delayed = await world.bulk.submit("note", range(5), delay=timedelta(seconds=30))
        progress = await world.bulk.status(delayed.id)
        assert (progress.state, progress.waiting, progress.eta_s) == ("running", 5, None)
        assert progress.reason.startswith("waiting until ")
        assert progress.start_ms == delayed.start_ms
        assert {b.reason[:13] for b in await world.bulk.list()} == {"waiting until"}
        for batch in (delayed, later):
            await world.bulk.wait(batch.id, 300.0)
            assert world.items_run(batch.id) == list(range(5))
    assert sorted(round(start_s) for start_s in world.starts_s) == [30] * 5 + [90] * 5


@on_virtual_time
async def test_a_repeated_submission_keeps_the_first_start_time() -> None:
    world = World()
    first = await world.bulk.submit("note", range(5), id="a", delay=30)
    again = await world.bulk.submit("note", range(5), id="a", delay=3_000)
    assert again.start_ms == first.start_ms > 0


@on_virtual_time
async def test_a_start_time_in_the_past_is_now() -> None:
    world = World()
    async with world.consumer():
        batch = await world.bulk.submit("note", range(5), at=datetime(2001, 1, 1, tzinfo=UTC))
        assert (await world.bulk.wait(batch.id, 60.0)).done == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at": datetime(2026, 1, 1)}, "`at` needs a time zone"),  # noqa: DTZ001
        ({"at": 12}, "`at` must be a datetime with a time zone, not 12: for a number of seconds"),
        ({"at": datetime.max.replace(tzinfo=UTC)}, "`at` must be at most 366 days ahead"),
        ({"delay": -1}, "delay must be a number of seconds from 0 to 31,622,400, not -1"),
        ({"delay": "1"}, "delay must be a number of seconds"),
        ({"delay": timedelta(days=400)}, "delay must be a number of seconds"),
        ({"delay": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}, "`at` and `delay` cannot be used"),
        ({"dely": 1}, "submit() has no setting 'dely': did you mean 'delay'"),
        ({"prio": 1}, "submit() has no setting 'prio': did you mean 'priority'"),
    ],
)
def test_a_bad_start_time_is_refused(options: dict[str, Any], said: str) -> None:
    @on_virtual_time
    async def refuse() -> None:
        bulk: Bulk = World().bulk
        with pytest.raises(InvalidSetting) as refused:
            await bulk.submit("note", [1], **options)
        assert str(refused.value).startswith(said)

    refuse()
