"""The run: the same traffic on both lanes, a snapshot every so often, and the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec

from heatsink.clock import Clock
from heatsink.stores.sqlite import sqlite_stores
from heatsink.stores.stores import Stores

from .contenders import open_heatsink, open_plain
from .lane import Lane, LaneNow
from .narration import Narration, narrate
from .traffic import Pacer, Plan
from .verdict import Recovery, Verdict, reach_verdict

DRAIN_POLL_S = 0.05


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """Both lanes, `second` seconds into the run."""

    second: float
    leg: str
    plain: LaneNow
    heatsink: LaneNow
    narration: Narration


@dataclass(frozen=True)
class Watcher:
    """Who is told how it goes, and how often."""

    tell: Callable[[Snapshot], None]
    every_s: float


@dataclass(frozen=True)
class Both:
    """The store of each lane: of the same kind, and empty."""

    plain: Stores
    heatsink: Stores


class Show:
    """Two lanes side by side under one pacer, so that both get the same messages."""

    def __init__(self, plan: Plan, clock: Clock, plain: Lane, heatsink: Lane) -> None:
        self._limit = plan.limit
        self._clock = clock
        self._traffic = plan.traffic
        self._plain = plain
        self._heatsink = heatsink
        self._pacer = Pacer(self._traffic, clock)
        self._sent = 0

    def _offer(self, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            body = f"message {self._sent}".encode()
            self._plain.offer(body)
            self._heatsink.offer(body)

    async def run(self) -> None:
        """Offer everything, then wait for the last answers."""
        await self._pacer.run(self._offer)
        while self._plain.totals.waiting or self._heatsink.totals.waiting:
            await self._clock.sleep(DRAIN_POLL_S)

    async def watch(self, watcher: Watcher) -> None:
        while True:
            await self._clock.sleep(watcher.every_s)
            watcher.tell(await self.snapshot())

    async def snapshot(self) -> Snapshot:
        second = self._pacer.second
        leg, _ = self._traffic.leg_at(second)
        plain, heatsink = await self._plain.now(), await self._heatsink.now()
        says = narrate(plain, heatsink, self._limit)
        return Snapshot(round(second, 2), leg.name, plain, heatsink, says)

    async def judge(self) -> Verdict:
        plain, heatsink = await self._plain.read_back(), await self._heatsink.read_back()
        return reach_verdict(plain, heatsink, self._recovery())

    def _recovery(self) -> Recovery | None:
        jump_s = self._traffic.jump_s
        if jump_s is None:
            return None
        jumped_s = self._clock.monotonic_s() - self._pacer.second + jump_s
        meter = self._heatsink.meter
        return Recovery(
            spread_s=round(max(meter.last_fresh_refusal_s - jumped_s, 0.0), 2),
            drained_s=round(max(meter.last_refusal_s - jumped_s, 0.0), 2),
        )


async def perform(plan: Plan, clock: Clock, rng: Random, watcher: Watcher) -> Verdict:
    """One run from beginning to end, in SQLite files that are gone afterwards."""
    with TemporaryDirectory(prefix="heatsink-demo-") as folder:
        plain = sqlite_stores(Path(folder) / "plain.db", clock)
        heatsink = sqlite_stores(Path(folder) / "heatsink.db", clock)
        return await perform_on(Both(plain, heatsink), plan, clock, rng, watcher)


async def perform_on(
    stores: Both, plan: Plan, clock: Clock, rng: Random, watcher: Watcher
) -> Verdict:
    async with (
        open_plain(stores.plain, plan.limit, clock, rng) as plain,
        open_heatsink(stores.heatsink, plan.limit, clock, rng) as heatsink,
        asyncio.TaskGroup() as tasks,
    ):
        show = Show(plan, clock, Lane(plain, clock, tasks), Lane(heatsink, clock, tasks))
        watching = tasks.create_task(show.watch(watcher))
        await show.run()
        watching.cancel()
        watcher.tell(await show.snapshot())
        return await show.judge()
