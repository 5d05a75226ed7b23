"""How long after a key gets hot a whole fleet routes on its new layout, with default settings.

Real parts: our DynamoDB engine with a partition's limits, a Valkey, two coordinators as processes
of their own, and three app servers (clients in this process). One conversation goes from nothing to
1,500 writes a second, taken in turn by the servers, where a bucket is to take 800. The time runs
from the 801st write until each of the three has had a row of a wider layout acknowledged. Jumps
begin at random moments of the reporting window and of the coordinator's turn.

All of it shares this machine. On one so busy that the store answers fewer writes a second than a
bucket takes there is no hot key to spread: such jumps are counted, and not timed.
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
from heatsink.errors import Overloaded, Throttled
from heatsink.spread.policy import BucketRules
from heatsink.spread.store import Row
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.embedded import end, free_port, start_tied
from heatsink.stores.redis import with_redis
from heatsink.testing.redis import RedisServer

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
LOST_MAX = 3  # jumps; each takes more than its patience
HEATSINK = [sys.executable, "-m", "heatsink"]
LIMITS = ["--write-limit", "1000", "--read-limit", "3000", "--burst-seconds", "1"]


class AnsweredLog(WatchedLog):
    """Counts what the store answered, refusals too."""

    answers = 0

    async def put(self, partition: str, row: Row) -> Row | None:
        try:
            taken_by = await super().put(partition, row)
        except Throttled:
            self.answers += 1
            raise
        self.answers += 1
        return taken_by


class AppServer:
    """A client, and when it first had a row of a wider layout acknowledged."""

    def __init__(self, hs: Heatsink, log: AnsweredLog) -> None:
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
    stores = with_redis(stores_at(url), news, CLOCK, Random(name))
    log = AnsweredLog(stores.log, Counts())
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
        self._failures: list[BaseException] = []
        self._over_s: float | None = None

    async def until_spread(self) -> float | None:
        """Seconds from the crossing until the last server routes on the new layout.

        None if this machine was too busy to make the key hot.
        """
        for server in self._servers:
            server.log.spread_s = None
        before, started_s = self._answers(), perf_counter()
        await self._write_until_spread()
        answered_s = (self._answers() - before) / (perf_counter() - started_s)
        moments = [server.log.spread_s for server in self._servers]
        spread_s = [moment for moment in moments if moment is not None]
        if self._over_s is None or len(spread_s) < SERVERS:
            await self._give_up()
            if answered_s < ALLOWED:
                return None
            raise RuntimeError(
                f"{self._key}, {answered_s:,.0f} puts/s, was not spread within {PATIENCE_S:g} s: "
                f"{SERVERS - len(spread_s)} of {SERVERS} servers did not follow"
            )
        await asyncio.gather(*self._writing, return_exceptions=True)
        if self._failures:
            raise self._failures[0]
        return max(spread_s) - self._over_s

    def _answers(self) -> int:
        return sum(server.log.answers for server in self._servers)

    async def _give_up(self) -> None:
        for task in self._writing:
            task.cancel()
        await asyncio.gather(*self._writing, return_exceptions=True)

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
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        """Writes may be given up while one partition takes less than all want; nothing else."""
        self._writing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Overloaded):
            self._failures.append(error)


async def run(bench: Bench, scale: Scale) -> None:
    rng, jumps = Random(1), list[float | None]()
    async with running_fleet() as servers:
        while len(jumps) < scale(2, 9) and jumps.count(None) < LOST_MAX:
            await asyncio.sleep(1.5 + rng.random())
            jumps.append(await Jump(servers, f"conversation-{len(jumps)}").until_spread())
    seconds = [took_s for took_s in jumps if took_s is not None]
    metric = f"{SERVERS} servers, jump to {WRITES_S:,} writes/s until all spread"
    if seconds:
        bench.add(f"{metric}, slowest", "ms", seconds, at_most(PROMISED_MS), middle=max)
        bench.add(f"{metric}, median", "ms", seconds)
    if len(seconds) < len(jumps):
        lost = f"jumps of {len(jumps)} that this machine was too busy to make"
        bench.add(lost, "", [float(len(jumps) - len(seconds))], at_most(0))
