"""At most 5 running per tenant, while worker processes are killed."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from socket import gethostname
from typing import Any
from unittest.mock import patch

import pytest
import redis

import heatsink
from heatsink.bulk import BulkSettings, Context, Limit
from heatsink.bulk.work.places import RENEW
from heatsink.primitives.clock import SystemClock
from heatsink.stores.redis.queue import open_queue
from heatsink.stores.redis.queue.keys import QueueKeys
from heatsink.testing import run_on_virtual_time
from heatsink.testing.redis import RedisServer
from tests.servers import real
from tests.waiting import soon

from .limited_worker import LEASE_S, LIMIT, RUNNING, TAKES_S
from .overlaps import Leased, Overlaps, Run
from .world import World

KILL_S = 2.0
BATCH = 45
IDLE = 0.2
"""If the CPUs of the machine are idle for a smaller part of the time, other work holds up this."""
LEAST, LEAST_BUSY = 0.95, 0.6


@pytest.mark.parametrize(
    ("count", "kills", "items", "partitions"),
    [
        (4, 8, 240, 8),
        pytest.param(4, 4, 1_500, 16, id="tenants in several partitions"),
        pytest.param(20, 30, 900, 8, marks=pytest.mark.full("runs 12,000 items")),
    ],
)
def test_places_of_killed_processes_are_neither_lost_nor_given_twice(
    count: int, kills: int, items: int, partitions: int
) -> None:
    """4 processes, one is killed every 2 s: on virtual time."""
    run_on_virtual_time(_killed(count, kills, items, partitions))


async def _killed(count: int, kills: int, items: int, partitions: int) -> None:
    world, found, rng = World(partitions=partitions), Overlaps(), Random(4)
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
        await world.bulk.submit("send", range(items), tenant=tenant)
    began_s = world.clock.monotonic_s() + 1.0
    for number in range(4, 4 + kills):
        await world.clock.sleep(2.0)
        name, victim = running.pop(rng.randrange(4))
        victim.kill()
        found.deaths_s[name] = world.clock.monotonic_s()
        found.leased += _leased(world, name, found.deaths_s[name])
        running.append(start(number))
    ended_s = world.clock.monotonic_s()
    for _, each in running:
        each.kill()
    assert found.most() == RUNNING
    assert found.share(RUNNING, len(tenants), began_s, ended_s) > 0.95


def _leased(world: World, name: str, died_s: float) -> list[Leased]:
    """Return until when a process that has just died has its places."""
    now_ms = world.clock.now_s() * 1000
    return [
        Leased(holder.held, died_s, died_s + max(holder.until_ms - now_ms, 0.0) / 1000)
        for key in world.server.places.homes["tenants"].keys.values()
        for at, holder in key.holders.items()
        if at.startswith(f"{name}/")
    ]


LEASED = """
local server, own = unpack(cmsgpack.unpack(redis.call('HGET', KEYS[1], 'time')))
local clock, found = redis.call('TIME'), {}
local now = own + clock[1] * 1000 + clock[2] / 1000 - server
for _, handle in ipairs(redis.call('ZRANGE', KEYS[1] .. '/keys', 0, -1)) do
  local stored = redis.call('HGETALL', KEYS[1] .. '/key/' .. handle)
  for i = 1, #stored, 2 do
    if string.sub(stored[i], 1, #ARGV[1]) == ARGV[1] then
      local _, until_ms, _, running, fresh = unpack(cmsgpack.unpack(stored[i + 1]))
      found[#found + 1] = { running + fresh, math.floor(until_ms - now) }
    end
  end
end
return found
"""


class Fleet:
    """Worker processes, each with a file in which its handlers record begin and end."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        command = [sys.executable, "-m", "tests.bulk.limited_worker", url]
        pipe = subprocess.PIPE
        self._parent = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._redis = redis.Redis.from_url(url)
        self._places = QueueKeys("default").places(LIMIT.name)
        self.running: dict[str, str] = {}
        self.deaths_s: dict[str, float] = {}
        self.leased: list[Leased] = []
        self._count = 0

    def tell(self, verb: str, word: str) -> str:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(f"{verb} {word}\n")
        self._parent.stdin.flush()
        answer = self._parent.stdout.readline().strip()
        assert answer, "the parent of the workers has died"
        return answer

    def start(self) -> str:
        self._count += 1
        path = self._folder / f"{self._count}.log"
        self.running[path.stem] = self.tell("start", str(path))
        return path.stem

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        self.tell("kill", process)
        self.deaths_s[name] = died_s = time.monotonic()
        holders = f"h{gethostname()}:{process}:"
        for places, left_ms in self._redis.eval(LEASED, 1, self._places, holders):
            self.leased.append(Leased(places, died_s, died_s + max(left_ms, 0) / 1000))

    def close(self) -> None:
        self._parent.kill()  # the workers end with it
        self._parent.communicate()
        self._redis.close()

    def working(self) -> list[str]:
        """Return the processes that have begun an item."""
        return [name for name in self.running if self._size(name)]

    def busy(self) -> list[str]:
        """Return the processes in which several items run."""
        texts = {name: (self._folder / f"{name}.log").read_text() for name in self.working()}
        running = {name: text.count("begin ") - text.count("end ") for name, text in texts.items()}
        return [name for name, count in running.items() if count >= RUNNING]

    def _size(self, name: str) -> int:
        path = self._folder / f"{name}.log"
        return path.stat().st_size if path.exists() else 0

    def found(self) -> Overlaps:
        runs = []
        for path in self._folder.glob("*.log"):
            open_runs: dict[str, Run] = {}
            for line in path.read_text().splitlines():
                kind, tenant, item, at_s = line.split()
                if kind == "begin":
                    run = open_runs[f"{tenant} {item}"] = Run(path.stem, tenant, float(at_s))
                    runs.append(run)
                else:
                    open_runs[f"{tenant} {item}"].ended_s = float(at_s)
        return Overlaps(runs, self.deaths_s, self.leased)


def _after(due_s: float) -> Callable[[], bool]:
    """Return a condition that becomes true at this time."""
    return lambda: time.monotonic() > due_s


def _idle_s() -> float:
    """Return for how long the CPUs of this machine have been idle."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(words[4]) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    with real(RedisServer) as server:
        found = Fleet(server.url, tmp_path)
        try:
            yield found
        finally:
            found.close()


@asynccontextmanager
async def loaded(fleet: Fleet, processes: int, tenants: int, each: int) -> AsyncIterator[None]:
    """Start processes, and submit `each` items for each tenant. Wait until all processes work.

    A tenant has many batches, so that each process has some: a batch is in one queue partition.
    """
    for _ in range(processes):
        fleet.start()
    settings = BulkSettings(durability="relaxed")
    stores = open_queue(fleet.url, SystemClock(), Random(1), settings)

    async def is_announced() -> bool:
        return "send" in (await stores.places.declared()).actions

    await soon(is_announced)
    await stores.close()
    async with heatsink.connect("memory://", queue=fleet.url, bulk=settings) as hs:
        for number in range(tenants):
            for first in range(0, each, BATCH):
                items = range(first, min(first + BATCH, each))
                await hs.bulk.submit("send", items, tenant=f"tenant-{number}")
        await soon(lambda: len(fleet.working()) == processes)
        yield


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("tenants", "kills"),
    [
        (6, 3),
        pytest.param(20, 30, marks=pytest.mark.full("kills processes for a minute")),
    ],
)
async def test_at_most_5_running_for_each_tenant_under_kills(
    fleet: Fleet, tenants: int, kills: int
) -> None:
    """4 processes; every 2 s, one is killed (`kill -9`) and another one starts.

    How much of the possible work is done depends on the machine: places that nobody uses while a
    process waits for a CPU count as possible. `test_places_of_killed_processes_…` needs no CPU.
    """
    rng, each = Random(20), int(RUNNING * (kills + 15) * KILL_S / TAKES_S)
    async with loaded(fleet, 4, tenants, each):
        began_s, idle_s = time.monotonic(), _idle_s()
        for number in range(1, kills + 1):
            await soon(_after(began_s + number * KILL_S))
            fleet.kill(rng.choice(sorted(fleet.running)))
            fleet.start()
        ended_s = time.monotonic()
        idle = (_idle_s() - idle_s) / (ended_s - began_s) / (os.cpu_count() or 1)
        for name in list(fleet.running):
            fleet.kill(name)
    found = fleet.found()
    share = found.share(RUNNING, tenants, began_s, ended_s)
    shown = f"{len(found.runs)} runs, {kills} kills in {ended_s - began_s:.0f} s"
    shown += f", {share:.1%} of the possible work, CPUs {idle:.0%} idle"
    logging.getLogger("heatsink").warning(shown)
    assert found.most() == RUNNING, shown
    assert ended_s - began_s < 1.2 * kills * KILL_S, shown
    if kills * KILL_S >= 60:
        assert share >= (LEAST if idle > IDLE else LEAST_BUSY), shown


@pytest.mark.full("a process stands still for several leases")
@pytest.mark.timeout(200)
async def test_a_process_that_stands_still_beyond_its_lease_overlaps_until_it_goes_on(
    fleet: Fleet,
) -> None:
    """Nobody can stop its handlers, and others get its places. They are counted here."""
    tenants = 4
    async with loaded(fleet, 3, tenants, 600):
        await soon(fleet.busy)
        stalled = fleet.busy()[0]
        stalled_s = time.monotonic()
        fleet.tell("stop", fleet.running[stalled])
        await soon(_after(stalled_s + 3 * LEASE_S))
        continued_s = time.monotonic()
        fleet.tell("continue", fleet.running[stalled])
        await soon(_after(continued_s + 2 * LEASE_S))
        for name in list(fleet.running):
            fleet.kill(name)
    found = fleet.found()
    over = [at_s for at_s, count in found.begins() if count > RUNNING]
    kept = [r for r in found.runs if r.process == stalled and r.began_s < stalled_s < r.ended_s]
    shown = f"{len(over)} overlaps, {len(kept)} runs stood still"
    logging.getLogger("heatsink").warning(shown)
    assert kept, shown
    assert over, shown
    assert found.most() <= RUNNING + max(Counter(run.key for run in kept).values()), shown
    assert min(over) > stalled_s + (1 - RENEW) * LEASE_S, shown
    assert max(over) < continued_s + 1.0, shown
    others = [run for run in found.runs if run.process != stalled]
    assert Overlaps(others, found.deaths_s).most() == RUNNING, shown


async def _turns(latency_s: float) -> list[int]:
    """Run items of one tenant, one at a time, in two partitions. Returns the partition of each."""
    with patch("tests.bulk.world.LATENCY_S", (latency_s, latency_s)):
        world, turns = World(partitions=2), list[int]()
        partition_of: dict[str, int] = {}

        @world.action(limits=[Limit("one", running=1)])
        async def send(_: Any, context: Context) -> None:
            turns.append(partition_of[context.batch])
            await asyncio.sleep(0.2)

        async with world.consumer(workers=4):
            while not (await world.server.places.declared()).limits:
                await world.clock.sleep(0.1)
            batches = [await world.bulk.submit("send", range(10), id=str(n)) for n in range(4)]
            partition_of |= {batch.id: batch.parts[0].partition for batch in batches}
            for batch in batches:
                await world.bulk.wait(batch.id)
        assert {*turns} == {0, 1}
        return turns


def test_a_place_changes_hands_less_often_where_calls_take_long() -> None:
    """While it changes hands, nobody uses it."""
    changes = {}
    for latency_s in (0.0005, 0.02):
        turns = run_on_virtual_time(_turns(latency_s))
        changes[latency_s] = sum(one != other for one, other in pairwise(turns))
    assert changes[0.02] < changes[0.0005] / 2


async def _used(latency_s: float, takes_s: float) -> float:
    """Return which part of the places of a limit is in use while items wait."""
    with patch("tests.bulk.world.LATENCY_S", (latency_s, latency_s)):
        world, begins_s = World(partitions=1), list[float]()

        @world.action(limits=[Limit("three", running=3)])
        async def send(_: Any, __: Context) -> None:
            begins_s.append(world.clock.monotonic_s())
            await asyncio.sleep(takes_s)

        async with world.consumer(workers=4):
            while not (await world.server.places.declared()).limits:
                await world.clock.sleep(0.1)
            batch = await world.bulk.submit("send", range(90))
            await world.bulk.wait(batch.id)
        first_s, last_s = begins_s[9], begins_s[-1]  # the worker has learned how long items take
        return (90 - 10) * takes_s / 3 / (last_s - first_s)


@pytest.mark.parametrize("latency_s", [0.001, 0.04])
def test_a_place_is_used_again_at_once_also_where_calls_take_long(latency_s: float) -> None:
    """The next item is here already, and needs no start time."""
    assert run_on_virtual_time(_used(latency_s, 0.5)) > 0.95
