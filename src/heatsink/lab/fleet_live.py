"""400 real reporters on a real Redis with a real coordinator, to check the model of `fleet_world`.

The costs in the model come from a run of `./dev bench fleet`, not from this run. This run shows how
far the model differs from it: `heatsink lab fleet --live` prints both side by side.

Each reporter has the parts and the two connections of a real server, but all reporters share this
process. The module reads CPU and memory of the coordinator from /proc, so it needs Linux.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from heatsink.errors import HeatsinkError, InvalidSetting, Unavailable
from heatsink.heat.report import ReportSettings
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.registry.decisions import Meta, Reading, RegistryStore
from heatsink.registry.registry import Registry
from heatsink.server.commands.progress import progress_bar
from heatsink.spread.policy import BucketRules
from heatsink.stores.embedded import end, free_port, start_tied
from heatsink.stores.redis.address import RedisKeys, parse
from heatsink.stores.redis.connection import Connection, open_driver
from heatsink.stores.redis.heat import RedisBus, decoded
from heatsink.stores.redis.news import RedisNews, RedisWire
from heatsink.stores.sqlite import sqlite_stores
from heatsink.stores.stores import Stores
from heatsink.testing.redis import RedisServer

from .fleet_world import LASTS_S, SLOT_S, SLOTS, WARM_UP_S, WRITES_S, AppServer, Measured, Traffic

SERVERS = 400
START_S = 30.0
LOOK_S = 0.2
HZ = os.sysconf("SC_CLK_TCK")


class Deaf:
    """Nobody reads through caches here."""

    def linked(self) -> None:
        """Nothing to drop."""

    def heard(self, keys: Sequence[str]) -> None:
        """Nothing to drop."""


class CountedStore:
    """The registry of a data store. It counts how often META is read."""

    def __init__(self, store: RegistryStore) -> None:
        self._store = store
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def meta(self) -> Reading:
        self.reads += 1
        return await self._store.meta()


class LiveFleet:
    def __init__(self, url: str, store: CountedStore, seed: int) -> None:
        self.clock = SystemClock()
        self.rng = Random(seed)
        self.address, self.keys = parse(f"{url}?timeout_s=2"), RedisKeys()
        self.store = store
        self.servers: list[AppServer] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.connections: list[Connection] = []
        self.traffic = Traffic(BucketRules().bucket_units_s, self.rng)
        self.decided: dict[str, float] = {}
        self.spread: dict[str, float] = {}

    async def start(self, founding: Meta, servers: int) -> None:
        any_store: Any = self.store
        for number in range(servers):
            connection = Connection(self.address, self.clock, self.rng)
            self.connections.append(connection)
            news = RedisNews(connection, self.keys, self.clock, rng=self.rng)
            wire = RedisWire(connection, self.address, self.keys, self.clock, self.rng, news)
            registry = Registry(any_store, self.clock, news, self.rng)
            await registry.open(founding)
            bus = RedisBus(connection, self.keys)
            server = AppServer(number, registry, bus, self.clock, ReportSettings(), self.rng)
            self.servers.append(server)
            for work in (registry.follow(), server.reporter.run(), wire.listen(Deaf())):
                self.tasks.append(asyncio.ensure_future(work))

    async def write(self, begin_s: float, end_s: float, began_s: float) -> None:
        slot, last = round(begin_s / SLOT_S), round(end_s / SLOT_S)
        while slot < last:
            due = min(int((perf_counter() - began_s) / SLOT_S), last)
            for number in range(slot, due):
                self.traffic.write(self.servers[number % SLOTS :: SLOTS], number * SLOT_S)
            slot = max(due, slot)
            self._note_spread(perf_counter() - began_s)
            await self.clock.sleep(SLOT_S)

    def _note_spread(self, now_s: float) -> None:
        first = self.servers[0].registry
        for key, hot_at_s in self.traffic.hot.items():
            layout = first.view.layouts.get(key)
            if layout is None or key in self.spread:
                continue
            self.decided.setdefault(key, now_s - hot_at_s)
            if layout.epochs[1].start_ms <= first.now_ms() and all(
                key in each.registry.view.layouts for each in self.servers
            ):
                self.spread[key] = now_s - hot_at_s

    async def close(self) -> None:
        while running := [task for task in self.tasks if not task.done()]:
            for task in running:
                task.cancel()  # more than once: the driver may swallow a cancellation
            await asyncio.wait(running, timeout=LOOK_S)
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in self.connections))


def run_live(seed: int, servers: int = SERVERS) -> Measured:
    """Run real reporters for a few seconds, and return what they cost."""
    if not Path("/proc/self/stat").exists():
        raise InvalidSetting("--live reads CPU times from /proc: run it on Linux")
    with progress_bar() as bar:
        bar.add_task(f"{servers} real reporters on a real Redis", total=None)
        return asyncio.run(_live(seed, servers))


async def _live(seed: int, servers: int) -> Measured:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="heatsink-lab-")))
        redis = stack.enter_context(RedisServer())
        database, clock = folder / "fleet.db", SystemClock()
        words = ["--store", f"sqlite:///{database}", "--news", f"{redis.url}?timeout_s=2"]
        command = [sys.executable, "-m", "heatsink", "coordinator", *words]
        running = start_tied([*command, "--port", str(free_port())], folder, folder / "log")
        stack.callback(end, running)
        stores, founding = await _led(database, clock)
        stack.push_async_callback(stores.close)
        store = CountedStore(stores.registry)
        fleet = LiveFleet(redis.url, store, seed)
        stack.push_async_callback(fleet.close)
        await fleet.start(founding, servers)
        driver: Any = open_driver(parse(f"{redis.url}?timeout_s=5"))
        stack.push_async_callback(driver.aclose)
        return await _measure(fleet, driver, running.pid)


async def _led(database: Path, clock: Clock) -> tuple[Stores, Meta]:
    """Wait until the coordinator has made the database and leads; return the stores and META."""
    until_s = perf_counter() + START_S
    while perf_counter() < until_s:
        await clock.sleep(LOOK_S)
        if not database.exists():  # noqa: ASYNC240 (a local file, at the start)
            continue
        stores = sqlite_stores(database, clock)
        with suppress(HeatsinkError):
            await stores.open()
            meta = (await stores.registry.meta()).meta
            if meta.leader:
                return stores, meta
        await stores.close()
    raise Unavailable(f"the coordinator did not lead after {START_S:g} s: try again")


async def _measure(fleet: LiveFleet, driver: Any, pid: int) -> Measured:
    began_s = perf_counter()
    await fleet.write(0.0, WARM_UP_S, began_s)
    term, cpu_s, reads = (await fleet.store.meta()).meta.term, _cpu_s(pid), fleet.store.reads
    before, sent, from_s = await driver.info(), await _sent_reports(driver), perf_counter()
    await fleet.write(WARM_UP_S, WARM_UP_S + LASTS_S, began_s)
    after, took_s = await driver.info(), perf_counter() - from_s
    sent = await _sent_reports(driver) - sent
    reads, cpu_s = fleet.store.reads - reads, _cpu_s(pid) - cpu_s
    term = (await fleet.store.meta()).meta.term - term

    def risen(*names: str) -> float:
        return float(sum(after[name] - before[name] for name in names)) / took_s

    return Measured(
        servers=len(fleet.servers),
        writes_s=len(fleet.servers) * WRITES_S,
        decided_s=sorted(fleet.decided.values()),
        spread_s=sorted(fleet.spread.values()),
        leader_cpu=cpu_s / took_s,
        leader_mb=_resident_mb(pid),
        redis_cpu=risen("used_cpu_user", "used_cpu_sys"),
        redis_in=risen("total_net_input_bytes"),
        redis_out=risen("total_net_output_bytes"),
        commands=risen("total_commands_processed"),
        reports=sent / took_s,
        meta_reads=reads / took_s,
        entries=await _keys_in_reports(driver, len(fleet.servers)),
        term_changes=term,
    )


async def _sent_reports(driver: Any) -> int:
    """How many reports the servers have sent so far."""
    found = await driver.xinfo_stream(RedisKeys().heat)
    return int(found["entries-added"])


async def _keys_in_reports(driver: Any, number: int) -> float:
    """The mean number of keys in the last reports."""
    found = await driver.execute_command("XREVRANGE", RedisKeys().heat, "+", "-", "COUNT", number)
    reports = [decoded(fields) for _, fields in found]
    final = [len(report.keys) for report in reports if report.final]
    return sum(final) / max(len(final), 1)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HZ


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
