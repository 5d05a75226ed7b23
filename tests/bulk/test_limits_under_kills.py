"""At most 5 running per tenant, while worker processes are killed."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import heatsink
from heatsink.bulk import BulkSettings, Context, Limit
from heatsink.primitives.clock import SystemClock
from heatsink.stores.redis.queue import open_queue
from heatsink.testing import run_on_virtual_time
from heatsink.testing.redis import RedisServer
from tests.servers import real
from tests.waiting import soon

from .limited_worker import LEASE_S, RUNNING
from .overlaps import Overlaps, Run
from .world import World

KILL_S = 2.0
ITEMS = 100_000  # more than the workers can run


@pytest.mark.parametrize(
    ("count", "kills"),
    [(4, 8), pytest.param(20, 30, marks=pytest.mark.full("runs 12,000 items"))],
)
def test_places_of_killed_processes_are_neither_lost_nor_given_twice(
    count: int, kills: int
) -> None:
    """4 processes, one is killed every 2 s: on virtual time."""
    run_on_virtual_time(_killed(count, kills))


async def _killed(count: int, kills: int) -> None:
    world, found, rng = World(partitions=8), Overlaps(lease_s=2.0), Random(4)
    tenants = [f"tenant-{number}" for number in range(count)]

    def start(number: int) -> Any:
        name = f"worker-{number}"

        async def send(_: Any, context: Context) -> None:
            run = Run(name, context.tenant, world.clock.monotonic_s())
            found.runs.append(run)
            try:
                await asyncio.sleep(0.5)
            finally:
                run.ended_s = world.clock.monotonic_s()

        world.actions = type(world.actions)()
        limit = Limit("tenants", running=RUNNING, per="tenant")
        world.actions.action("send", limits=[limit])(send)
        return name, world.start(name, lease_s=2.0, member_s=1.0, workers=24)

    running = [start(number) for number in range(4)]
    while not (await world.server.places.declared()).limits:
        await world.clock.sleep(0.1)
    for tenant in tenants:
        await world.bulk.submit("send", range(30 * kills), tenant=tenant)
    began_s = world.clock.monotonic_s() + 1.0
    for number in range(4, 4 + kills):
        await world.clock.sleep(2.0)
        name, victim = running.pop(rng.randrange(4))
        victim.kill()
        found.deaths_s[name] = world.clock.monotonic_s()
        running.append(start(number))
    ended_s = world.clock.monotonic_s()
    for _, each in running:
        each.kill()
    assert found.most() == RUNNING
    assert found.share(RUNNING, len(tenants), began_s, ended_s) > 0.95


class Fleet:
    """Worker processes. `kill` ends one as `kill -9` does, and starts another."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.deaths_s: dict[str, float] = {}
        self._count = 0

    def start(self) -> None:
        self._count += 1
        path = self._folder / f"{self._count}.log"
        command = [sys.executable, "-m", "tests.bulk.limited_worker", self.url, str(path)]
        self._running[path.stem] = subprocess.Popen(command)

    def kill(self, rng: Random) -> None:
        name = rng.choice(sorted(self._running))
        process = self._running.pop(name)
        process.kill()
        process.wait()
        self.deaths_s[name] = time.monotonic()

    def kill_all(self) -> None:
        while self._running:
            self.kill(Random(1))

    @property
    def is_working(self) -> bool:
        """Whether every process that runs now has begun an item."""
        paths = [self._folder / f"{name}.log" for name in self._running]
        return all(path.exists() and path.stat().st_size for path in paths)

    def runs(self) -> list[Run]:
        found = []
        for path in self._folder.glob("*.log"):
            open_runs: dict[str, Run] = {}
            for line in path.read_text().splitlines():
                kind, tenant, item, at_s = line.split()
                if kind == "begin":
                    run = open_runs[f"{tenant} {item}"] = Run(path.stem, tenant, float(at_s))
                    found.append(run)
                else:
                    open_runs[f"{tenant} {item}"].ended_s = float(at_s)
        return found


def _in(seconds: float) -> Callable[[], bool]:
    """Return a condition that becomes true when this time has passed."""
    due_s = time.monotonic() + seconds
    return lambda: time.monotonic() > due_s


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    with real(RedisServer) as server:
        found = Fleet(server.url, tmp_path)
        try:
            yield found
        finally:
            found.kill_all()


@pytest.mark.full("kills processes for a minute")
@pytest.mark.timeout(400)
async def test_20_tenants_with_at_most_5_running_under_kills(fleet: Fleet) -> None:
    tenants, rng = [f"tenant-{number}" for number in range(20)], Random(20)
    for _ in range(4):
        fleet.start()
    settings = BulkSettings(durability="relaxed")
    stores = open_queue(fleet.url, SystemClock(), Random(1), settings)

    async def is_announced() -> bool:
        return "send" in (await stores.places.declared()).actions

    await soon(is_announced)
    await stores.close()
    async with heatsink.connect("memory://", queue=fleet.url, bulk=settings) as hs:
        for tenant in tenants:
            await hs.bulk.submit("send", range(ITEMS // len(tenants)), tenant=tenant)
        await soon(lambda: fleet.is_working)
        began_s = time.monotonic()
        while time.monotonic() - began_s < 60.0:
            await soon(_in(KILL_S))
            await soon(lambda: fleet.is_working)  # a busy machine starts processes slowly
            fleet.kill(rng)
            fleet.start()
        ended_s = time.monotonic()
    fleet.kill_all()
    found = Overlaps(LEASE_S, fleet.runs(), fleet.deaths_s)
    share = found.share(RUNNING, len(tenants), began_s, ended_s)
    shown = f"{len(found.runs)} runs, {len(found.deaths_s)} kills, {share:.1%} of the possible work"
    assert found.most() == RUNNING, shown
    assert len(found.deaths_s) > 4, shown
    logging.getLogger("heatsink").warning(shown)
