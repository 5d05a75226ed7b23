from __future__ import annotations

from random import Random
from typing import Any, cast

from heatsink.bulk.bulk import Bulk
from heatsink.bulk.plan import PlaceClosed
from heatsink.bulk.scaling.load import LoadMeter, PartitionReading
from heatsink.bulk.scaling.policy import WORKERS, WorkerPolicy
from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.store import PartitionLoad
from heatsink.coordinator.loops import Leader
from heatsink.coordinator.workers import ALL_AT_ONCE, IDLE_TURNS, LoadWatch, QueueWatch, worker_pin
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Decision
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import ManualClock


class Wishing:
    """A policy that wants what it is told to want, once."""

    def __init__(self) -> None:
        self.workers: int | None = None

    def decide(self, _: object) -> list[Decision]:
        wanted, self.workers = self.workers, None
        return (
            []
            if wanted is None
            else [Decision(Subject(Kind.WORKERS, "3"), WORKERS, wanted, "busy")]
        )


class Leading:
    term = 1

    async def publish(self, decisions: list[Decision]) -> list[Decision]:
        return decisions


async def test_a_pin_outdoes_the_policy_until_it_is_taken_back(clock: ManualClock) -> None:
    server, policy = MemoryQueueServer(clock), Wishing()
    pins: dict[str, Decision] = {}
    watch = QueueWatch(
        server.stores(),
        Bulk(server.stores(), BulkSettings(partitions=4), clock, Random(1)),
        cast("WorkerPolicy", policy),
        cast("Leader", Leading()),
        clock,
        lambda: pins,
    )
    heard: Any = server.stores().soft

    async def turn() -> list[tuple[int | None, str]]:
        await clock.advance(1.0)
        await watch.run_once()
        return [(soft.decision.value, soft.decision.reason) for soft in await heard.read()]

    policy.workers = 10
    assert (10, "busy") in await turn()
    pin = worker_pin(3, 2, "calm")
    pins[pin.key] = pin
    assert await turn() == [(2, "pinned: calm")]
    policy.workers = 20
    assert await turn() == [], "the policy may wish, but the pin holds"
    target = watch.target(3)
    assert target is not None
    assert target.value == 2
    pins.clear()
    assert await turn() == [(20, "busy")], "its last wish comes into force"
    assert await turn() == []


class Partitions:
    """A queue of which only loads matter. It notes which partitions are read."""

    def __init__(self, number: int) -> None:
        self.high_water = number
        self.loads = {partition: PartitionLoad(workers=1) for partition in range(number)}
        self.closed: set[int] = set()
        self.asked: list[int] = []
        self.queue = self

    async def open(self) -> None:
        """Nothing to open."""

    async def plan(self) -> Partitions:
        return self

    async def load(self, partition: int) -> PartitionLoad:
        self.asked.append(partition)
        if partition in self.closed:
            raise PlaceClosed(partition, 1, "")
        return self.loads[partition]

    async def asked_by(self, watch: LoadWatch) -> list[int]:
        self.asked = []
        self.readings = await watch.read()
        return self.asked


def load_watch(number: int) -> tuple[Partitions, LoadWatch]:
    queue = Partitions(number)
    any_queue: Any = queue
    return queue, LoadWatch(any_queue, any_queue)


async def test_idle_partitions_of_a_large_queue_are_read_in_turns() -> None:
    queue, watch = load_watch(1_000)
    everything = list(range(1_000))
    assert await queue.asked_by(watch) == everything
    assert await queue.asked_by(watch) == everything  # only now are they known to be idle
    turns = [await queue.asked_by(watch) for _ in range(IDLE_TURNS)]
    assert [len(turn) for turn in turns] == [1_000 // IDLE_TURNS] * IDLE_TURNS
    assert sorted(partition for turn in turns for partition in turn) == everything
    assert len(queue.readings) == 1_000
    assert sum(reading.is_fresh for reading in queue.readings.values()) == 1_000 // IDLE_TURNS


async def test_a_partition_with_work_is_read_in_each_turn() -> None:
    queue, watch = load_watch(1_000)
    for _ in range(3):
        await queue.asked_by(watch)
    queue.loads[7] = PartitionLoad(runnable=5, workers=1)
    queue.loads[8] = PartitionLoad(done=5, workers=1)
    for _ in range(IDLE_TURNS):
        await queue.asked_by(watch)
    assert (queue.readings[7].load.runnable, queue.readings[8].load.done) == (5, 5)
    for done in range(6, 6 + 2 * IDLE_TURNS):
        queue.loads[8] = PartitionLoad(done=done, workers=1)  # idle at each look, but not since
        asked = await queue.asked_by(watch)
        assert 7 in asked
        assert 8 in asked or done == 6
    queue.closed.add(7)
    await queue.asked_by(watch)
    assert 7 not in queue.readings
    assert 7 in await queue.asked_by(watch)


async def test_all_partitions_of_a_small_queue_are_read_in_each_turn() -> None:
    queue, watch = load_watch(ALL_AT_ONCE)
    for _ in range(4):
        assert len(await queue.asked_by(watch)) == ALL_AT_ONCE


def test_rates_of_a_partition_that_rested_are_those_since_it_was_read() -> None:
    meter, idle = LoadMeter(), PartitionLoad(workers=1)
    meter.read(PartitionReading(idle, 1), 0.0)
    for turn in range(1, 5):
        meter.read(PartitionReading(idle, 1, is_fresh=False), float(turn))
    woken = meter.read(PartitionReading(PartitionLoad(done=50, workers=1), 1), 5.0)
    assert (woken.arrival_per_s, woken.done_per_s) == (10.0, 10.0)
