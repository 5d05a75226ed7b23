"""The whole fleet on real processes: app servers, two coordinators, Redis, and a DynamoDB engine.

A ramp on one conversation, with limits scaled to a small machine, while processes are killed and
stopped, on a store beside them and on one far away. Then everything is read back and compared with
what was acknowledged.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep as pause
from urllib.request import urlopen
from uuid import UUID

import pytest

from heatsink import Heatsink, connect
from heatsink.primitives.ids import Uuid7
from heatsink.spread.fsck import check
from heatsink.stores.embedded import free_port
from heatsink.testing.redis import RedisServer
from tests.spread.test_log import everything
from tests.waiting import until

WRITER = """
import asyncio, sys
import heatsink

async def main(store, news, name):
    rules = heatsink.BucketRules(bucket_units_s=80)
    async with heatsink.connect(store, news=news, rules=rules, coordinate=False) as hs:
        async def write(worker):
            n = 0
            while True:
                body = f"{name} {worker} {n}"
                try:
                    receipt = await hs.log.append("conv", body.encode())
                except heatsink.errors.Retryable:
                    continue
                sys.stdout.write(f"{receipt.id} {body}\\n")
                sys.stdout.flush()
                n += 1
                await asyncio.sleep(0.04)
        await asyncio.gather(*(write(worker) for worker in range(4)))

asyncio.run(main(*sys.argv[1:]))
"""
COORDINATORS = ("coordinator-a", "coordinator-b")
APP_SERVERS = ("app-0", "app-1", "app-2")
FAR_AWAY_MS = (
    20.0  # every answer of the store is that late; a coordinator's turn asks several times
)
HEATSINK = [sys.executable, "-m", "heatsink"]
Process = subprocess.Popen[bytes]


class Fleet:
    def __init__(self, redis: RedisServer, folder: Path) -> None:
        self.redis = redis
        self.processes: dict[str, Process] = {}
        self.acknowledged: dict[bytes, UUID] = {}
        self._folder = folder
        self._engine_port = free_port()
        self.store = f"dynamodb://messages?endpoint=http://127.0.0.1:{self._engine_port}"
        self._health: dict[str, int] = {}

    def start_engine(self, latency_ms: float) -> None:
        where = ["--port", str(self._engine_port), "--latency", str(latency_ms)]
        limits = ["--write-limit", "100", "--burst-seconds", "1"]
        self._start("engine", [*HEATSINK, "dynamo", *where, *limits])
        create = [*HEATSINK, "table", "create", self.store]
        until(lambda: subprocess.run(create, capture_output=True, check=False).returncode == 0)

    def start_coordinator(self, name: str) -> None:
        port = self._health[name] = free_port()
        where = ["--store", self.store, "--news", self.redis.url, "--port", str(port)]
        rules = ["--bucket-units", "80", "--cool-down", "5", "--name", name]
        self._start(name, [*HEATSINK, "coordinator", *where, *rules])
        until(lambda: self.is_ready(name))

    def is_ready(self, name: str) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._health[name]}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def leads(self, name: str) -> bool:
        return b"heatsink_leads 1.0" in self._metrics(name)

    def leader(self) -> str:
        """Somebody leads, but a busy machine may be late to say who."""
        while not (leaders := [name for name in COORDINATORS if self.leads(name)]):
            pause(0.05)
        return leaders[0]

    def has_spread(self) -> bool:
        return any(b"heatsink_spread_keys 1.0" in self._metrics(name) for name in COORDINATORS)

    def _metrics(self, name: str) -> bytes:
        try:
            with urlopen(f"http://127.0.0.1:{self._health[name]}/metrics", timeout=1) as answer:
                metrics: bytes = answer.read()
        except OSError:
            return b""
        return metrics

    def start_writer(self, name: str, life: str = "first") -> None:
        who = f"{name} {life}"
        self._start(name, [sys.executable, "-c", WRITER, self.store, self.redis.url, who])

    def _start(self, name: str, command: list[str]) -> None:
        output = (self._folder / f"{name}.out").open("ab")
        errors = (self._folder / f"{name}.err").open("ab")
        self.processes[name] = subprocess.Popen(command, stdout=output, stderr=errors)
        output.close()
        errors.close()

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def note_acknowledged(self) -> None:
        """A line cut off in the middle was not said."""
        for file in self._folder.glob("app-*.out"):
            for line in file.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    self.acknowledged[line[37:-1]] = UUID(line[:36].decode())


@contextmanager
def running_fleet(folder: Path, latency_ms: float) -> Iterator[Fleet]:
    with RedisServer() as redis:
        fleet = Fleet(redis, folder)
        try:
            fleet.start_engine(latency_ms)
            for name in COORDINATORS:
                fleet.start_coordinator(name)
            for name in APP_SERVERS:
                fleet.start_writer(name)
            yield fleet
        finally:
            for process in fleet.processes.values():
                process.kill()
                process.wait()


def make_trouble(fleet: Fleet, round_number: int = 0) -> None:
    """kill -9 of the leader, an app server and Redis; a stop of an app server with a stale view."""
    pause(4.0)
    until(fleet.has_spread)
    leader = fleet.leader()
    standby = next(name for name in COORDINATORS if name != leader)
    fleet.signal("app-1", signal.SIGSTOP)
    fleet.kill(leader)
    until(lambda: fleet.leads(standby))
    fleet.kill("app-0")
    fleet.redis.kill()
    pause(1.0)
    fleet.signal("app-1", signal.SIGCONT)
    fleet.redis.start()
    fleet.start_writer("app-0", f"round {round_number}")
    fleet.start_coordinator(leader)
    pause(3.0)


@pytest.mark.full("a fleet of processes, killed and stalled; plain runs simulate one")
@pytest.mark.sleeps("the fleet writes for a while in each state")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("latency_ms", [0.0, FAR_AWAY_MS], ids=["near", "far away"])
async def test_a_fleet_loses_nothing_it_acknowledged(tmp_path: Path, latency_ms: float) -> None:
    with running_fleet(tmp_path, latency_ms) as fleet:
        make_trouble(fleet)
        await compare(fleet)


async def compare(fleet: Fleet) -> int:
    """Stop the writers, read everything back, compare. Returns how much was acknowledged."""
    for name in APP_SERVERS:
        fleet.kill(name)
    fleet.note_acknowledged()
    assert len(fleet.acknowledged) > 300
    async with connect(fleet.store, coordinate=False) as hs:
        await verify(hs, fleet)
    return len(fleet.acknowledged)


async def verify(hs: Heatsink, fleet: Fleet) -> None:
    entries = await everything(hs, "conv", limit=1_000)
    stored = {entry.body: entry.id for entry in entries}
    assert len(stored) == len(entries)
    assert fleet.acknowledged.items() <= stored.items()
    assert hs.parts.registry.view.layout("conv").max_buckets > 1
    stores = hs.parts.stores
    assert (await check(stores.log, stores.counters, stores.registry, Uuid7())).clean
