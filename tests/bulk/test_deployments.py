"""Workers of two releases on one queue."""

from __future__ import annotations

import asyncio
import logging

import pytest

from heatsink.bulk import Actions, Context, Retry
from heatsink.errors import IdReused, InvalidSetting, Overloaded

from .world import World, on_virtual_time


@on_virtual_time
async def test_items_of_a_new_action_run_while_old_workers_are_there() -> None:
    world = World(4)
    old = world.start("old")

    @world.action(max_attempts=1)
    async def new(item: int, context: Context) -> None:
        assert context.attempt == 1
        await world.note(item, context)

    async with world.consumer("new"):
        await asyncio.sleep(10.0)
        batches = [await world.bulk.submit("new", range(10)) for _ in range(8)]
        for batch in batches:
            assert (await world.bulk.wait(batch.id, 60.0)).done == 10
        await old.stop()
    assert len(world.ran) == 80


@on_virtual_time
async def test_a_process_without_actions_leaves_the_queue_to_those_that_have_some() -> None:
    world = World(16)
    worker = world.start("worker")
    world.actions = Actions()
    async with world.consumer("server") as server:
        await asyncio.sleep(10.0)
        assert (worker.consumer.partitions, server.partitions) == (list(range(16)), [])
        batches = [await world.bulk.submit("note", range(20), spread=False) for _ in range(16)]
        began_s = world.clock.monotonic_s()
        for batch in batches:
            assert (await world.bulk.wait(batch.id, 60.0)).done == 20
        assert world.clock.monotonic_s() - began_s < 2.0
        await worker.stop()
        await asyncio.sleep(15.0)
        assert server.partitions == list(range(16))
        late = await world.bulk.submit("note", [1])
        await asyncio.sleep(5.0)
        assert (await world.bulk.status(late.id)).reason == "waiting: no worker has action 'note'"


@on_virtual_time
async def test_workers_with_different_actions_all_get_their_items() -> None:
    """Each of three processes has an action of its own, for half an hour."""
    world = World(4)
    ran: dict[str, int] = {}
    running = []
    for name in ("a", "b", "c"):
        world.actions = Actions()

        async def run(_: int, context: Context) -> None:
            assert context.attempt == 1
            await asyncio.sleep(0.01)
            ran[context.batch] = ran.get(context.batch, 0) + 1

        world.actions.action(name, max_attempts=1)(run)
        running.append(world.start(name))
    await asyncio.sleep(5.0)
    for _ in range(30):
        batches = [await world.bulk.submit(name, range(40)) for name in ("a", "b", "c")]
        for batch in batches:
            assert (await world.bulk.wait(batch.id, 120.0)).done == 40
        await asyncio.sleep(60.0)
    assert set(ran.values()) == {40}
    for each in running:
        await each.stop()


@on_virtual_time
async def test_no_item_fails_while_a_worker_that_has_its_action_is_there() -> None:
    """That worker never takes the partition: only its membership is renewed."""
    world = World(1)
    batch = await world.bulk.submit("far", [1])
    async with world.consumer():
        for _ in range(1_000):
            await world.server.fleet.join("other", ["far"], 5_000)
            await asyncio.sleep(1.0)
        progress = await world.bulk.status(batch.id)
        assert (progress.waiting, progress.failed) == (1, 0)
        assert progress.reason == "waiting until a worker with action 'far' takes its partition"
        await world.server.fleet.leave("other")
        assert (await world.bulk.wait(batch.id, 900.0)).failed == 1


@on_virtual_time
async def test_a_batch_says_that_no_worker_can_run_it_until_one_comes_that_can() -> None:
    world = World(2)

    async def told(id: str) -> tuple[str, str]:
        (listed,) = [batch for batch in await world.bulk.list() if batch.id == id]
        return (await world.bulk.status(id)).reason, listed.reason

    batch = await world.bulk.submit("late", range(3))
    assert await told(batch.id) == ("waiting: no worker runs",) * 2
    old = world.start("old")
    await asyncio.sleep(5.0)
    assert await told(batch.id) == ("waiting: no worker has action 'late'",) * 2
    note = await world.bulk.submit("note", [1])
    assert await told(note.id) == ("", "")
    await old.stop()
    world.actions.action("late")(world.note)
    async with world.consumer("new"):
        await world.bulk.wait(batch.id, 60.0)
        assert await told(batch.id) == ("", "")


@on_virtual_time
async def test_who_waits_for_a_batch_without_a_worker_is_warned_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(2)
    batch = await world.bulk.submit("late", range(3))
    with pytest.raises(Overloaded, match="has not ended after 60 s"):
        await world.bulk.wait(batch.id, 60.0)
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "is waiting: no worker runs: start `heatsink worker MODULE:ACTIONS`" in warning


@on_virtual_time
async def test_what_was_accepted_is_acknowledged_again_whatever_workers_say_now() -> None:
    world = World()
    first = await world.bulk.submit("late", [1], id="mine", on_done="told")
    async with world.consumer():
        await asyncio.sleep(1.0)
        again = await world.bulk.submit("late", [1], id="mine", on_done="told")
        assert (again.id, again.generation) == (first.id, first.generation)
        with pytest.raises(IdReused, match="other items"):
            await world.bulk.submit("late", [2], id="mine", on_done="told")
        with pytest.raises(InvalidSetting, match="action 'late' is unknown"):
            await world.bulk.submit("late", [1], id="other")


@on_virtual_time
async def test_a_repeat_of_what_was_accepted_does_not_bring_its_rate_back() -> None:
    world = World()
    await world.bulk.submit("note", [1], id="fast", rate="100/s")
    await world.bulk.submit("note", [1], id="slow", rate="10/s")
    await world.bulk.submit("note", [1], id="fast", rate="100/s")
    assert await world.server.limits.rate_of("note/default") == 10


@on_virtual_time
async def test_the_same_batch_placed_otherwise_is_the_same_batch() -> None:
    world = World(16)
    first = await world.bulk.submit("note", range(10), id="x", spread=False)
    again = await world.bulk.submit("note", range(10), id="x", spread=True)
    assert (again.parts, again.generation) == (first.parts, first.generation)


@on_virtual_time
async def test_nobody_guesses_when_a_batch_ends_that_no_worker_runs() -> None:
    world = World(1)
    batch = await world.bulk.submit("note", range(100), rate="10/s")
    async with world.consumer():
        await asyncio.sleep(5.0)
        progress = await world.bulk.status(batch.id)
        assert progress.eta_s == pytest.approx(5.0, rel=0.3)
    progress = await world.bulk.status(batch.id)
    assert (progress.eta_s, progress.reason) == (None, "waiting: no worker runs")


@on_virtual_time
async def test_items_of_an_action_that_no_worker_has_fail_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(1)
    batch = await world.bulk.submit("gone", range(3))
    world.actions = Actions()
    async with world.consumer():
        progress = await world.bulk.wait(batch.id, 900.0)
        reasons = {failure.reason async for failure in world.bulk.failures(batch.id)}
    assert progress.failed == 3
    assert all("no action 'gone' in this worker" in reason for reason in reasons)
    assert f"batch {batch.id!r}: no action 'gone' in this worker" in caplog.text


@on_virtual_time
async def test_a_callback_that_cannot_be_submitted_or_run_is_logged_with_its_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="heatsink")
    world = World(1)
    await world.bulk.submit("note", range(3), id="x", on_done="gone")
    async with world.consumer():
        await world.bulk.wait("x", 60.0)
        await asyncio.sleep(20.0)
    assert "batch 'x:done:0': no action 'gone' in this worker" in caplog.text

    async def refuse(*_: object) -> None:
        raise Overloaded("try again")

    reconciler = world.bulk.reconciler
    vars(reconciler).update(change=refuse, _tell_done=refuse)
    batch = await world.server.batches.get("x")
    assert batch is not None
    ends = [batch.ends[0]]
    assert await reconciler._record_ends_of(0, "x", ends) == ("x", False)
    assert await reconciler._end(batch) == ""
    assert "recording ends of parts of batch 'x' failed: try again" in caplog.text
    assert "concluding batch 'x' failed: try again" in caplog.text


@on_virtual_time
async def test_a_batch_says_that_its_last_items_are_in_back_off() -> None:
    world = World(2)

    @world.action(max_attempts=3)
    async def picky(item: int, context: Context) -> None:
        if item >= 98 and context.attempt == 1:
            raise Retry(60.0)

    batch = await world.bulk.submit("picky", range(100))
    async with world.consumer():
        await asyncio.sleep(5.0)
        progress = await world.bulk.status(batch.id)
        assert (progress.done, progress.waiting, progress.running) == (98, 2, 0)
        assert progress.reason.startswith("waiting for its next retry, in up to 5")
        assert progress.eta_s is not None
        assert 50 < progress.eta_s <= 60
        assert (await world.bulk.wait(batch.id, 70.0)).reason == ""


@on_virtual_time
async def test_a_batch_says_that_it_waits_for_its_rate_limit() -> None:
    world = World(1)
    batch = await world.bulk.submit("note", range(3), rate="60/h")
    async with world.consumer():
        await asyncio.sleep(5.0)
        progress = await world.bulk.status(batch.id)
        assert (progress.done, progress.waiting) == (1, 2)
        assert progress.reason == "waiting for its rate limit of 0.0167/s"
        assert progress.eta_s == pytest.approx(120, abs=10)


@on_virtual_time
async def test_a_batch_whose_downstream_wants_no_more_for_an_hour_ends_no_sooner() -> None:
    world = World(1)
    batch = await world.bulk.submit("note", range(20), rate="20/s")
    await world.server.limits.refused("note/default", 20.0, 3_600_000)
    async with world.consumer():
        await asyncio.sleep(5.0)
        progress = await world.bulk.status(batch.id)
        assert progress.waiting == 20
        assert progress.reason.startswith("waiting for its rate limit of ")
        assert progress.eta_s is not None
        assert progress.eta_s > 3_500
