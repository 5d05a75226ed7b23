"""Scenarios: orders of events that the simulation as a whole seldom plays.

In most of them a partition moves, and then a server loses what was not on its disk, or somebody
comes late. Each scenario must hold, and find the bug that it is about.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from heatsink.bulk import Bulk, BulkSettings
from heatsink.bulk.batch import Batch
from heatsink.bulk.moving import ANY_VERSION, PartitionMover
from heatsink.bulk.plan import PartitionMove, Spot, founding
from heatsink.bulk.reconcile import Reconciler, routed
from heatsink.bulk.store import Chunk, ClaimRequest, Outcome, Part, QueueStores
from heatsink.bulk.submit import Submission
from heatsink.errors import Conflict, Overloaded
from heatsink.testing import ManualClock, SkewedClock, run_on_virtual_time
from tests.bulk.driver import LEASE_MS, PARTITION, Driver

from .bugs import SCENARIO_BUGS
from .control_scenarios import CONTROL_SCENARIOS
from .division_scenarios import DIVISION_SCENARIOS
from .place_scenarios import PLACE_SCENARIOS
from .remote_scenarios import REMOTE_SCENARIOS
from .server import LossyServer
from .single_scenarios import SINGLE_SCENARIOS

AWAY = "memory://1"
ITEMS = 600  # more than one call stages
PART = Part("a", "a", "ada", "mail", 1, "mail/ada")


class Queue:
    """A queue on two servers, whose partition is at home or away."""

    def __init__(self, is_away: bool = False) -> None:
        self.server = LossyServer(SkewedClock(), Random(1), 2)
        places = {PARTITION: AWAY} if is_away else {}
        self.settings = BulkSettings(partitions=4, places=places)

    def process(self) -> QueueStores:
        clock = SkewedClock()
        return routed(self.server.unrouted(clock), founding(self.settings, "memory://"))

    def bulk(self, seed: int = 2) -> Bulk:
        return Bulk(self.process(), self.settings, SkewedClock(), Random(seed))

    def lose(self, number: int) -> None:
        """The power fails: what was not on disk is gone."""
        machine = self.server.machines[number]
        self.server.stop(machine)
        self.server.start(machine, machine.durable)

    @property
    def spot(self) -> Spot:
        plan = self.server.fleet.stored
        assert plan is not None
        return plan.spot(PARTITION)

    def parts(self) -> set[str]:
        """In the partition, at the place that the stored plan has for it."""
        return {*self.server.queue.held(self.spot).shares}

    async def failed_part(self) -> None:
        """A part that has ended, with an item that failed."""
        driver = Driver(self.process(), ManualClock())
        await driver.submit("a", [1])
        await driver.settle((await driver.claim(1)).slices[0], "f")
        await driver.ends(*await driver.ends())


async def a_closed_place_that_still_answers() -> None:
    queue = Queue()
    old = queue.process()
    assert await old.queue.part(PARTITION, "a") is None
    await queue.bulk().place(PARTITION, AWAY)
    await old.queue.stage(PARTITION, PART, [Chunk(0, 1, b"x")])
    assert queue.parts() == {"a"}, "the old place took it"


async def a_tombstone_that_is_not_durable() -> None:
    queue = Queue(is_away=True)
    old = queue.process()
    assert await old.queue.part(PARTITION, "a") is None
    await queue.bulk().place(PARTITION, "home")
    queue.lose(1)
    await old.queue.stage(PARTITION, PART, [Chunk(0, 1, b"x")])
    assert queue.parts() == {"a"}, "the old place took it"


async def copies_that_are_not_read_back() -> None:
    queue, adopt = Queue(), PartitionMover._adopt
    await queue.failed_part()

    async def after_a_loss(self: PartitionMover, partition: int, move: PartitionMove) -> None:
        queue.lose(1)
        await adopt(self, partition, move)

    with patch.object(PartitionMover, "_adopt", after_a_loss):
        await queue.bulk().place(PARTITION, AWAY)
    assert queue.spot.url == AWAY
    assert queue.parts() == {"a"}


async def a_plan_followed_before_it_is_durable() -> None:
    queue = Queue()
    other = queue.process()
    await queue.bulk().place(PARTITION, AWAY)
    await other.queue.stage(PARTITION, PART, [Chunk(0, 1, b"x")])
    queue.lose(0)
    assert queue.parts() == {"a"}


async def a_move_that_was_given_up_and_goes_on() -> None:
    queue = Queue()
    await queue.failed_part()
    steps = queue.bulk().moving(PARTITION, AWAY)
    assert (await anext(steps)).step == "copying"
    await queue.bulk().place(PARTITION, "home")
    await queue.process().queue.stage(PARTITION, replace(PART, id="b"), [Chunk(0, 1, b"x")])
    with suppress(Conflict):
        async for _ in steps:
            pass
    assert queue.parts() == {"a", "b"}


async def a_new_place_that_is_cleared_again() -> None:
    queue = Queue()
    await queue.failed_part()
    await queue.bulk().place(PARTITION, AWAY)
    version = queue.server.queue.held(queue.spot).marks.prepared
    await queue.process().moves.prepare(Spot(PARTITION, AWAY, ANY_VERSION), version)
    assert queue.parts() == {"a"}


async def a_generation_for_all_submissions() -> None:
    """Another submission of the id is given up after this one has confirmed its parts."""
    queue, confirm = Queue(), Submission._confirm
    others = [queue.bulk(seed=3)]

    async def broken() -> AsyncIterator[int]:
        for number in range(ITEMS):
            yield number
        raise BrokenPipeError

    async def while_another_gives_up(self: Submission) -> None:
        await confirm(self)
        if others:
            with suppress(BrokenPipeError):
                await others.pop().submit("mail", broken(), id="a")

    with patch.object(Submission, "_confirm", while_another_gives_up), suppress(Overloaded):
        await queue.bulk().submit("mail", range(ITEMS), id="a")
    record = await queue.process().batches.get("a")
    assert record is not None
    assert record.is_sealed, "the other submission took its parts away"
    assert sum(place.items for place in record.parts) == ITEMS


async def a_version_that_is_compared_without_its_tag() -> None:
    """The home loses a change, and gives its version to another one."""
    queue = Queue()
    await queue.bulk().submit("mail", [1], id="a")
    batches = queue.process().batches
    known = await batches.get("a")
    assert known is not None
    lost = await batches.update(replace(known, state="paused"))
    assert lost is not None
    queue.lose(0)
    kept = await batches.update(replace(known, state="cancelling"))
    assert kept is not None
    assert (kept.version, kept.tag) != (lost.version, lost.tag)
    assert kept.version == lost.version
    await batches.update(replace(lost, state="running"))
    assert await batches.get("a") == kept


async def an_end_forgotten_though_its_record_went_back() -> None:
    """The home loses the end while its record is made durable, and the read is repeated."""
    queue, conclude = Queue(), Reconciler._conclude
    stores, bulk = queue.process(), queue.bulk()
    await bulk.submit("mail", [1, 2], id="a")
    record = await stores.batches.get("a")
    assert record is not None
    spot, lease_ms = record.parts[0].partition, 10_000
    assert await stores.fleet.own(spot, "me", 60_000)
    claimed = await stores.queue.claim(spot, ClaimRequest("me", "x", 2, lease_ms, {}, []))
    outcomes = [Outcome(each.attempt, "d" * each.count, 1, []) for each in claimed.slices]
    await stores.queue.settle(spot, outcomes, [], lease_ms)
    ends = (await stores.queue.chores(spot, [])).ends
    await stores.barrier.parts(record.parts)

    async def after_a_loss(self: Reconciler, ids: Sequence[str]) -> dict[str, Batch | None]:
        queue.lose(0)
        return await conclude(self, ids)

    with patch.object(Reconciler, "_conclude", after_a_loss):
        assert (await bulk.reconciler.record_ends(spot, ends))[0] == []
    assert (await bulk.reconciler.record_ends(spot, ends))[0] == ends


async def a_lost_record_that_is_not_rebuilt() -> None:
    """The home loses a batch whose items are on another server, where they run to their end."""
    queue = Queue()
    queue.settings = BulkSettings(partitions=1, places={0: AWAY})
    stores, bulk = queue.process(), queue.bulk()
    await bulk.submit("mail", [1, 2], id="a")
    home = queue.server.machines[0]
    before = next(at for at, call in enumerate(home.log) if call.store == "batches")
    queue.server.stop(home)
    queue.server.start(home, before)
    assert await stores.batches.get("a") is None
    assert await stores.fleet.own(0, "me", 60_000)
    claimed = await stores.queue.claim(0, ClaimRequest("me", "x", 2, LEASE_MS))
    outcomes = [Outcome(each.attempt, "d" * each.count, 1) for each in claimed.slices]
    await stores.queue.settle(0, outcomes, [], LEASE_MS)
    ends = (await stores.queue.chores(0, [])).ends
    assert (await bulk.reconciler.record_ends(0, ends))[0] == ends
    record = await stores.batches.get("a")
    assert record is not None, "the part carries a copy"
    assert record.state == "done"


SCENARIOS: dict[str, Callable[[], Awaitable[None]]] = (
    PLACE_SCENARIOS
    | CONTROL_SCENARIOS
    | DIVISION_SCENARIOS
    | REMOTE_SCENARIOS
    | SINGLE_SCENARIOS
    | {
        scenario.__name__: scenario
        for scenario in (
            a_closed_place_that_still_answers,
            a_tombstone_that_is_not_durable,
            copies_that_are_not_read_back,
            a_plan_followed_before_it_is_durable,
            a_move_that_was_given_up_and_goes_on,
            a_new_place_that_is_cleared_again,
            a_generation_for_all_submissions,
            a_version_that_is_compared_without_its_tag,
            an_end_forgotten_though_its_record_went_back,
            a_lost_record_that_is_not_rebuilt,
        )
    }
)


@pytest.mark.parametrize("name", SCENARIO_BUGS)
def test_a_scenario_holds(name: str) -> None:
    run_on_virtual_time(SCENARIOS[name]())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SCENARIO_BUGS)
def test_a_scenario_finds_its_bug(name: str) -> None:
    with SCENARIO_BUGS[name](), pytest.raises(AssertionError):
        run_on_virtual_time(SCENARIOS[name]())  # type: ignore[arg-type]
