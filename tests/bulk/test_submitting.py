"""How batches get in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import repeat
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heatsink import connect
from heatsink.bulk import Bulk, BulkSettings
from heatsink.bulk.batch import Batch
from heatsink.errors import Conflict, IdReused, InvalidBody, InvalidSetting, Overloaded, Unavailable
from heatsink.primitives.clock import now_ms

from .world import World, on_virtual_time


@on_virtual_time
async def test_every_item_runs_once_and_the_batch_is_done() -> None:
    world = World()
    async with world.consumer():
        batch = await world.bulk.submit("note", range(1_000))
        progress = await world.bulk.wait(batch.id, 60.0)
    assert (progress.state, progress.done, progress.accepted) == ("done", 1_000, 1_000)
    assert world.items_run(batch.id) == list(range(1_000))


@on_virtual_time
async def test_items_stream_in_from_any_iterable() -> None:
    world = World(16)

    def numbers() -> Iterator[int]:
        yield from range(700)

    async def slow_numbers() -> AsyncIterator[int]:
        for number in range(700):
            await asyncio.sleep(0.01)
            yield number

    async with world.consumer():
        for items in (numbers(), slow_numbers(), {7: 1}.keys(), iter([3])):
            batch = await world.bulk.submit("note", items)
            done = await world.bulk.wait(batch.id, 60.0)
            assert done.done == batch.items > 0
            assert len(set(world.items_run(batch.id))) == batch.items


@on_virtual_time
async def test_an_iterable_slower_than_stale_parts_are_cleared_is_taken_whole() -> None:
    world = World()

    async def very_slow() -> AsyncIterator[int]:
        for number in range(602):
            await asyncio.sleep(200.0 if number in (550, 600) else 0.0)
            yield number

    async with world.consumer():
        batch = await world.bulk.submit("note", very_slow())
        assert (await world.bulk.wait(batch.id, 60.0)).done == 602


@on_virtual_time
async def test_no_items_are_a_batch_that_is_done_and_told() -> None:
    world = World()
    async with world.consumer():
        batch = await world.bulk.submit("note", [], id="empty", on_done="note")
        assert (await world.bulk.wait("empty")).state == batch.state == "done"
        await world.bulk.submit("note", [], id="empty", on_done="note")
        await asyncio.sleep(5.0)
    assert [(id, item["items"]) for id, item, _ in world.ran] == [("empty:done:0", 0)]


@on_virtual_time
async def test_an_id_is_one_batch_however_often_it_is_submitted() -> None:
    world = World()
    async with world.consumer():
        together = [world.bulk.submit("note", range(50), id="x") for _ in range(5)]
        batches = await asyncio.gather(*together)
        await world.bulk.wait("x", 60.0)
        again = await world.bulk.submit("note", range(50), id="x")
    assert {batch.generation for batch in [*batches, again]} == {again.generation}
    assert world.items_run("x") == list(range(50))
    assert world.staged() == []


@on_virtual_time
async def test_an_id_that_another_call_took_is_refused() -> None:
    world = World()
    await world.bulk.submit("note", [1], id="x", tenant="ann")
    with pytest.raises(
        Conflict, match="'x' is taken by a batch with action 'note' and tenant 'ann'"
    ):
        await world.bulk.submit("note", [1], id="x", tenant="bob")


@on_virtual_time
async def test_an_id_is_for_its_items_and_options_alone() -> None:
    world = World()
    call: dict[str, Any] = {"id": "x", "rate": "9/s", "priority": 1, "on_done": "note"}
    await world.bulk.submit("note", [{"a": 1, "b": [2]}, {3: 4}], **call)
    await world.bulk.submit("note", [{"b": [2], "a": 1}, {3: 4}], **call)
    for items in ([], [{"a": 1, "b": [2]}], [{3: 4}, {"a": 1, "b": [2]}]):
        with pytest.raises(IdReused, match="'x' is taken by a batch with other items: choose"):
            await world.bulk.submit("note", items, **call)
    for name, value in (("rate", "8/s"), ("priority", 0), ("on_done", "")):
        with pytest.raises(IdReused, match=f"'x' is taken by a batch with {name} '"):
            await world.bulk.submit("note", [{"a": 1, "b": [2]}, {3: 4}], **call | {name: value})
    assert await world.server.limits.rate_of("note/default") == pytest.approx(9, rel=0.05)
    assert len(await world.bulk.list()) == 1


@on_virtual_time
async def test_of_two_who_submit_different_items_under_one_id_one_is_refused() -> None:
    world = World()
    async with world.consumer():
        calls = [world.bulk.submit("note", range(n, n + 50), id="x") for n in range(5)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert (await world.bulk.wait("x", 60.0)).done == 50
    assert [type(answer) for answer in answers].count(IdReused) == 4
    assert world.staged() == []


@on_virtual_time
async def test_a_batch_from_before_there_were_fingerprints_may_be_submitted_again() -> None:
    world = World()
    batch = await world.bulk.submit("note", [1], id="x")
    await world.server.batches.update(msgspec.structs.replace(batch, fingerprint=""))
    assert (await world.bulk.submit("note", [2], id="x", priority=1)).items == 1


@on_virtual_time
async def test_an_iterable_that_fails_half_way_leaves_nothing_and_the_id_free() -> None:
    world = World()

    def broken() -> Iterator[int]:
        yield from range(800)
        raise BrokenPipeError("the export broke")

    async with world.consumer():
        with pytest.raises(BrokenPipeError) as raised:
            await world.bulk.submit("note", broken(), id="x")
        assert "batch 'x' is aborted: nothing of it runs" in raised.value.__notes__
        status = await world.bulk.status("x")
        assert (status.state, status.reason) == ("aborted", "BrokenPipeError: the export broke")
        await asyncio.sleep(5.0)
        assert (world.ran, world.staged()) == ([], [])
        await world.bulk.submit("note", range(800), id="x")
        progress = await world.bulk.wait("x", 60.0)
    assert (progress.state, progress.done, progress.reason) == ("done", 800, "")


@on_virtual_time
async def test_a_producer_that_dies_half_way_leaves_nothing_for_ever() -> None:
    world = World()
    process = world.process("doomed")

    async def endless() -> AsyncIterator[int]:
        for number in range(10_000):
            await asyncio.sleep(0.01)
            yield number

    async with world.consumer():
        process.run(world.bulk_of(process).submit("note", endless(), id="x"))
        await asyncio.sleep(30.0)
        assert world.staged() != []
        process.kill()
        await asyncio.sleep(90.0)
        assert (world.ran, world.staged()) == ([], [])
        assert (await world.bulk.status("x")).state == "aborted"
        await world.bulk.submit("note", range(10), id="x")
        assert (await world.bulk.wait("x", 60.0)).done == 10


@on_virtual_time
async def test_a_producer_that_dies_before_its_first_item_leaves_no_open_batch() -> None:
    world = World(1)
    process = world.process("doomed")

    async def never() -> AsyncIterator[int]:
        await asyncio.sleep(1e9)
        yield 0

    process.run(world.bulk_of(process).submit("note", never(), id="x"))
    await asyncio.sleep(600.0)
    assert (await world.bulk.status("x")).state == "open"
    with pytest.raises(Conflict, match="is open"):
        await world.bulk.cancel("x")
    process.kill()
    progress = await world.bulk.wait("x", 200.0)
    assert (progress.state, progress.reason) == ("aborted", "the submission stopped halfway")
    await world.bulk.cancel("x")
    await asyncio.sleep(8 * 86_400.0)
    assert await world.bulk.list() == []


@on_virtual_time
async def test_a_batch_whose_producer_died_before_its_first_item_can_be_cancelled() -> None:
    world = World(1)
    await world.server.batches.open(Batch("x", "note", "ann", now_ms(world.clock)))
    await asyncio.sleep(130.0)
    await world.bulk.cancel("x")
    assert (await world.bulk.status("x")).state == "aborted"


@on_virtual_time
async def test_a_slow_submission_of_an_old_id_is_not_taken_for_left_behind() -> None:
    world = World(1)
    await world.server.batches.open(Batch("x", "note", "default", now_ms(world.clock)))
    await asyncio.sleep(600.0)

    async def slow() -> AsyncIterator[int]:
        await asyncio.sleep(5.0)
        assert (await world.bulk.status("x")).state == "open"
        yield 1

    async with world.consumer():
        await world.bulk.submit("note", slow(), id="x")
        assert (await world.bulk.wait("x", 30.0)).done == 1


@on_virtual_time
async def test_what_was_sealed_runs_though_its_producer_died_before_it_released_anything() -> None:
    world = World()
    process = world.process("doomed")
    bulk = world.bulk_of(process)

    async def die(*_: Any) -> None:
        process.kill()
        await asyncio.sleep(0)

    vars(bulk.reconciler)["tell_parts"] = die
    process.run(bulk.submit("note", range(10), id="x"))
    async with world.consumer():
        await asyncio.sleep(30.0)
        assert world.ran == []
        assert (await world.bulk.wait("x", 60.0)).done == 10


@pytest.mark.timeout(150)  # its patience with a queue that was there would be 300 s
async def test_a_queue_that_was_never_there_is_given_up_in_seconds_and_has_accepted_nothing() -> (
    None
):
    patient = BulkSettings(deadline_s=300)
    async with connect("memory://", queue="redis://127.0.0.1:1", bulk=patient) as hs:
        with pytest.raises(Overloaded) as raised:
            await hs.bulk.submit("note", range(10), id="x")
        assert str(raised.value).startswith("the queue was never reached: Redis at 127.0.0.1:1 ")
        assert str(raised.value).endswith("; nothing was accepted: submit again with id='x'")
        with pytest.raises(Unavailable, match=r"never reached: .* Check its URL") as unopened:
            await hs.bulk.open()
        assert "accepted" not in str(unopened.value), "nothing was submitted"


@on_virtual_time
async def test_a_queue_that_is_away_for_long_is_said_so_and_the_id_can_be_tried_again() -> None:
    world = World(deadline_s=3.0)
    await world.bulk.open()
    world.link_of_producer.faults.cut = True
    with pytest.raises(
        Overloaded, match=r"did not answer for 3 s .*: submit again with id='x'"
    ) as raised:
        await world.bulk.submit("note", range(10), id="x")
    assert isinstance(raised.value.__cause__, Unavailable)
    with pytest.raises(Overloaded, match=r"did not answer for 3 s .*: retry$"):
        await world.bulk.list()
    world.link_of_producer.faults.heal()
    async with world.consumer():
        await world.bulk.submit("note", range(10), id="x")
        assert (await world.bulk.wait("x", 60.0)).done == 10


@pytest.mark.parametrize("fault", ["deaf", "cut"])
@on_virtual_time
async def test_a_seal_of_which_nothing_was_heard_is_there_whole_or_not_at_all(fault: str) -> None:
    world = World(deadline_s=3.0)
    faults = world.link_of_producer.faults

    async def items() -> AsyncIterator[int]:
        for number in range(10):
            yield number
        setattr(faults, fault, True)

    async with world.consumer():
        with pytest.raises(Overloaded):
            await world.bulk.submit("note", items(), id="x")
        await asyncio.sleep(120.0)
        faults.heal()
        status = await world.bulk.status("x")
        assert world.staged() == []
        assert (status.state, len(world.ran)) in (("done", 10), ("aborted", 0), ("open", 0))


class Disk:
    """A barrier that fails as often as `answers` says so."""

    def __init__(self, world: World, answers: Iterator[bool]) -> None:
        self._barrier = world.server.barrier
        self._answers = answers

    async def parts(self, places: Any) -> Any:
        return await self._barrier.parts(places)

    async def batches(self, ids: Any) -> Any:
        if not next(self._answers):
            raise Unavailable("no answer")
        return await self._barrier.batches(ids)

    async def plan(self) -> Any:
        return await self._barrier.plan()

    async def place(self, partition: int, parts: Any = ()) -> Any:
        return await self._barrier.place(partition, parts)


def with_disk(world: World, answers: Iterator[bool]) -> Bulk:
    process = world.process("syncs")
    stores = replace(process.stores(world.server), barrier=Disk(world, answers))
    return Bulk(stores, BulkSettings(partitions=1, deadline_s=3.0), process.clock, process.rng)


@on_virtual_time
async def test_a_disk_that_is_away_for_a_moment_is_waited_for() -> None:
    world = World(1)
    batch = await with_disk(world, iter([False, False, True])).submit("note", range(10))
    assert (await world.bulk.status(batch.id)).accepted == 10


@on_virtual_time
async def test_a_batch_that_may_be_accepted_is_named() -> None:
    world = World(1)
    with pytest.raises(
        Overloaded, match=r"batch '\w+' may be accepted: submit again with id='\w+'"
    ):
        await with_disk(world, repeat(False)).submit("note", range(10))
    (batch,) = await world.bulk.list()
    assert (batch.state, batch.items) == ("running", 10)
    assert len(world.staged()) == 1, "it is released when somebody looks, or by its owner"


@on_virtual_time
async def test_a_record_that_is_lost_during_a_submission_is_made_again() -> None:
    world = World(1)

    async def items() -> AsyncIterator[int]:
        yield 1
        await world.server.batches.forget("x", 0)
        assert await world.server.batches.get("x") is None

    async with world.consumer():
        await world.bulk.submit("note", items(), id="x")
        assert (await world.bulk.wait("x", 60.0)).state == "done"
    assert world.items_run("x") == [1]


BAD_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"items": "text"}, "items must be an iterable"),
    (
        {"id": "x:done:0"},
        "id 'x:done:0' contains ':done:', reserved for callbacks and follow",
    ),
    ({"items": b"bytes"}, "items must be an iterable"),
    ({"items": {"a": 1}}, "items must be an iterable"),
    ({"items": 7}, "items must be an iterable"),
    ({"action": ""}, "action must be"),
    ({"action": "no slash/es"}, "action must be"),
    ({"action": None}, "action must be"),
    ({"tenant": ""}, "tenant must be text"),
    ({"tenant": "x" * 257}, "tenant must be text"),
    ({"id": ""}, "id must be text"),
    ({"priority": 1.5}, "priority must be an int"),
    ({"priority": 1_001}, "priority must be an int"),
    ({"rate": "fast"}, "rate must be like '500/s'"),
    ({"rate": "0/s"}, "rate must be like"),
    ({"rate": "-1/s"}, "rate must be like"),
    ({"rate": "10/day"}, "rate must be like"),
    ({"rate": 10}, "rate must be like"),
    ({"on_done": "https://example.org/done"}, "is not an allowed webhook"),
    ({"on_done": "two words"}, "on_done must be"),
    ({"spread": "yes"}, "spread must be a bool"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD_CALLS, ids=[str(call) for call, _ in BAD_CALLS])
@on_virtual_time
async def test_a_wrong_call_is_refused_by_the_name_of_its_field(
    wrong: dict[str, Any], message: str
) -> None:
    world = World()
    call = {"action": "note", "items": [1], **wrong}
    with pytest.raises(InvalidSetting, match=message):
        await world.bulk.submit(call.pop("action"), call.pop("items"), **call)
    assert world.staged() == []


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        ({1, 2}, "item 0 is a set"),
        ({"tags": ["a", {"b"}]}, r"item 0\['tags'\]\[1\] is a set"),
        ({"when": datetime.now(UTC).replace(tzinfo=None)}, r"item 0\['when'\] is a datetime"),
        ({"price": Decimal("1.5")}, r"item 0\['price'\] is a Decimal"),
        ([UUID(int=7)], r"item 0\[0\] is an? UUID"),
    ],
)
async def test_an_item_that_would_change_its_type_is_refused(item: object, complaint: str) -> None:
    with pytest.raises(InvalidBody, match=f"{complaint}, which a handler would get as another"):
        await World().bulk.submit("note", [item])


@on_virtual_time
async def test_items_arrive_as_they_were_submitted_and_tuples_as_lists() -> None:
    world = World()
    items = [{"a": [1, None, True, 1.5, b"x"]}, "text", -(2**63), 2**64 - 1, {7: "seven"}]
    async with world.consumer():
        batch = await world.bulk.submit("note", [*items, (1, (2,)), 1.5e308])
        await world.bulk.wait(batch.id, 60.0)
    ran = [item for _, item, _ in world.ran]
    assert all(item in ran for item in [*items, [1, [2]]])
    assert len(ran) == len(items) + 2


@dataclass
class Price:
    euros: float


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        (float("nan"), "nan"),
        ({"price": [1.0, float("inf")]}, "inf"),
        ((1, {float("-inf"): 2}), "-inf"),
        (Price(float("nan")), "nan"),
    ],
)
async def test_numbers_that_json_does_not_have_are_refused(item: object, shown: str) -> None:
    for items in ([item], [item, 2]):
        complaint = f"item 0 cannot be stored .{shown} is not a JSON value"
        with pytest.raises(InvalidBody, match=complaint):
            await World().bulk.submit("note", items)


@on_virtual_time
async def test_an_item_that_cannot_be_stored_is_named_and_nothing_runs() -> None:
    world = World()
    async with world.consumer():
        with pytest.raises(InvalidBody, match="item 2 cannot be stored"):
            await world.bulk.submit("note", [1, 2, object()])
        with pytest.raises(InvalidBody, match="item 1 has 2,097,157 bytes, more than 262,144"):
            await world.bulk.submit("note", [1, "x" * 2**21])
        await asyncio.sleep(2.0)
    assert (world.ran, world.staged()) == ([], [])


@on_virtual_time
async def test_an_action_that_no_worker_has_is_refused_with_what_they_have() -> None:
    world = World()
    async with world.consumer():
        await asyncio.sleep(1.0)
        with pytest.raises(InvalidSetting, match="action 'nope' is unknown: workers have note"):
            await world.bulk.submit("nope", [1])
        with pytest.raises(InvalidSetting, match="on_done 'nope' is unknown"):
            await world.bulk.submit("note", [1], on_done="nope")


@on_virtual_time
async def test_a_batch_that_never_was_is_said_so() -> None:
    world = World()
    for call in (world.bulk.status, world.bulk.cancel, world.bulk.wait, world.bulk.retry_failed):
        with pytest.raises(InvalidSetting, match="there is no batch 'nope'"):
            await call("nope")


@pytest.mark.parametrize(
    "call", ["status", "wait", "cancel", "pause", "resume", "retry_failed", "trace_of"]
)
@on_virtual_time
async def test_every_call_refuses_an_id_that_is_no_text(call: str) -> None:
    with pytest.raises(InvalidSetting, match="id must be text of 1 to"):
        await getattr(World().bulk, call)(5)
