"""How long after a key gets hot a whole fleet routes on its new layout, with default settings.

Real parts: our DynamoDB engine with a partition's limits, a Valkey, two coordinators as processes
of their own, and three app servers (clients in this process). One conversation goes from nothing to
1,500 writes a second, taken in turn by the servers, where a bucket is to take 800. The time runs
from the 801st write until each of the three has had a row of a wider layout acknowledged. Jumps
begin at random moments of the reporting window and of the coordinator's turn.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from urllib.request import urlopen

from heatsink.client import Heatsink, Settings
from heatsink.errors import Overloaded
from heatsink.spread.policy import BucketRules
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.embedded import end, free_port, start_tied
from heatsink.stores.redis import with_redis
from heatsink.testing.servers import RedisServer

from .activation import WatchedLog
from .clients import BODY, CLOCK, stores_at
from .counting import Counts
from .engine import reached
from .harness import Bench, Scale, at_most

SERVERS = 3
COORDINATORS = 2
WRITES_S = 1_500
ALLOWED = BucketRules().bucket_units_s
TICK_S = 0.01
PATIENCE_S = 20.0
PROMISED_MS = 3_000
HEATSINK = [sys.executable, "-m", "heatsink.service"]
LIMITS = ["--write-limit", "1000", "--read-limit", "3000", "--burst-seconds", "1"]


class AppServer:
    """A client, and when it first had a row of a wider layout acknowledged."""

    def __init__(self, hs: Heatsink, log: WatchedLog) -> None:
        self.hs = hs
        self.log = log


@contextmanager
def process(name: str, folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    running = start_tied([*HEATSINK, *words], folder, folder / f"{name}.log")
    try:
        yield running
    finally:
        end(running)


@asynccontextmanager
async def app_server(url: str, news: str, name: str) -> AsyncIterator[AppServer]:
    stores = with_redis(stores_at(url), news, name, CLOCK, Random(name))
    log = WatchedLog(stores.log, Counts())
    settings = Settings(name=name, coordinate=False)
    async with Heatsink(replace(stores, log=log), settings, CLOCK, Random(name)) as hs:
        yield AppServer(hs, log)


@asynccontextmanager
async def running_fleet() -> AsyncIterator[list[AppServer]]:
    port, ports = free_port(), [free_port() for _ in range(COORDINATORS)]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="heatsink-fleet-")))
        news = stack.enter_context(RedisServer()).url
        stack.enter_context(process("engine", folder, "dynamo", "--port", str(port), *LIMITS))
        await reached(port)
        endpoint = f"http://127.0.0.1:{port}"
        await make_table(parse("messages", {"endpoint": endpoint}), CLOCK)
        url = f"dynamodb://messages?endpoint={endpoint}"
        for own in ports:
            where = ["--store", url, "--news", news, "--port", str(own)]
            stack.enter_context(process(f"{own}", folder, "coordinator", *where))
        await somebody_leads(ports)
        servers = [app_server(url, news, f"app-{n}") for n in range(SERVERS)]
        yield [await stack.enter_async_context(server) for server in servers]


async def somebody_leads(ports: list[int]) -> None:
    until_s = perf_counter() + PATIENCE_S
    while perf_counter() < until_s:
        if any([await asyncio.to_thread(leads, port) for port in ports]):
            return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"no coordinator leads after {PATIENCE_S:g} s")


def leads(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1) as answer:
            return b"heatsink_leads 1.0" in answer.read()
    except OSError:
        return False


class Jump:
    """One conversation that gets hot."""

    def __init__(self, servers: list[AppServer], key: str) -> None:
        self._servers = servers
        self._key = key
        self._writing: set[asyncio.Task[Any]] = set()
        self._over_s: float | None = None

    async def until_spread(self) -> float:
        """Seconds from the crossing until the last server routes on the new layout."""
        for server in self._servers:
            server.log.spread_s = None
        await self._write_until_spread()
        ended = await asyncio.gather(*self._writing, return_exceptions=True)
        _raise_failures(ended)
        spread_s = [server.log.spread_s for server in self._servers]
        if self._over_s is None or None in spread_s:
            late = sum(moment is None for moment in spread_s)
            raise RuntimeError(
                f"{self._key} was not spread within {PATIENCE_S:g} s: "
                f"{late} of {SERVERS} servers did not follow"
            )
        return max(moment for moment in spread_s if moment is not None) - self._over_s

    async def _write_until_spread(self) -> None:
        started_s, written = perf_counter(), 0
        while perf_counter() - started_s < PATIENCE_S and not self._is_spread():
            due = int((perf_counter() - started_s) * WRITES_S)
            for n in range(written, due):
                self._write(self._servers[n % SERVERS].hs)
            written = due
            if self._over_s is None and written > ALLOWED:
                self._over_s = perf_counter()
            await asyncio.sleep(TICK_S)

    def _is_spread(self) -> bool:
        return all(server.log.spread_s is not None for server in self._servers)

    def _write(self, hs: Heatsink) -> None:
        task: asyncio.Task[Any] = asyncio.ensure_future(hs.log.append(self._key, BODY))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)


def _raise_failures(ended: list[Any]) -> None:
    """Writes may be given up while one partition takes less than all want; nothing else."""
    for one in ended:
        if isinstance(one, Exception) and not isinstance(one, Overloaded):
            raise one


async def run(bench: Bench, scale: Scale) -> None:
    rng, seconds = Random(1), []
    async with running_fleet() as servers:
        for number in range(scale(2, 9)):
            await asyncio.sleep(1.5 + rng.random())
            seconds.append(await Jump(servers, f"conversation-{number}").until_spread())
    metric = f"{SERVERS} servers, jump to {WRITES_S:,} writes/s until all spread"
    bench.add(f"{metric}, slowest", "ms", seconds, at_most(PROMISED_MS), middle=max)
    bench.add(f"{metric}, median", "ms", seconds)
