from __future__ import annotations

from random import Random
from typing import Any, cast

from heatsink.bulk.bulk import Bulk
from heatsink.bulk.scaling.policy import WORKERS, WorkerPolicy
from heatsink.bulk.settings import BulkSettings
from heatsink.coordinator.loops import Leader
from heatsink.coordinator.workers import QueueWatch, worker_pin
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
