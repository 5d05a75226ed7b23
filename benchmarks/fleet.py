"""What 10,000 app servers cost a pair of coordinators and their Redis, with default settings.

Real parts: a Valkey, two coordinators as processes of their own on one SQLite file, and a follower
(a client in this process). The servers are sockets in another process (`fleet_feed`): each sends a
report a second and hears the leader's news. Together they have a million writes a second over a
million keys (Zipf, s = 1): 86 keys are above the limit of a bucket, and every second one of them is
seen by all servers, most of them at less than one write a second.

Costs are CPU time, so that other work on the machine does not count. If the machine is too busy to
send 10,000 reports a second, the cost of a report is multiplied: the table shows the rate. A full
run takes ten minutes, a quick one 20 s. BENCH_FLEET_SERVERS and BENCH_FLEET_SECONDS change that.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import msgspec

from heatsink.client import Heatsink, Settings
from heatsink.stores.embedded import free_port
from heatsink.stores.redis import with_redis
from heatsink.stores.redis.address import parse
from heatsink.stores.redis.connection import open_driver
from heatsink.testing.redis import RedisServer

from .clients import CLOCK, stores_at
from .harness import Bench, Scale, at_most
from .jump import process, somebody_leads

SERVERS = 10_000
REPORTS_S = 10_000
COORDINATORS = 2
WARM_UP_S = 5.0
LOOK_S = 0.02
FILES = 200  # that Redis and the feeding process open besides
HZ = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HZ


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


class Follower:
    """A real client that hears the news: the longest time between two closed times, and terms."""

    def __init__(self, hs: Heatsink) -> None:
        self._registry = hs.parts.registry
        self.longest_s = 0.0
        self.late_s = 0.0

    async def watch(self) -> None:
        known, since_s = self._registry.view.horizon_ms, perf_counter()
        looked_s = since_s
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = perf_counter()
            own_s, looked_s = now_s - looked_s - LOOK_S, now_s  # what this process itself was late
            if self._registry.view.horizon_ms != known:
                known, since_s = self._registry.view.horizon_ms, now_s
            self.longest_s = max(self.longest_s, now_s - since_s - max(own_s, 0.0))
            behind_ms = self._registry.now_ms() - self._registry.view.horizon_ms
            self.late_s = max(self.late_s, behind_ms / 1000)


class Watched:
    """CPU time and memory of processes, between two moments."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._before = {name: cpu_s(pid) for name, pid in pids.items()}

    def used_s(self, prefix: str) -> float:
        return sum(
            cpu_s(pid) - self._before[name]
            for name, pid in self._pids.items()
            if name.startswith(prefix)
        )


async def fed(port: int, servers: int, seconds: float) -> Any:
    """Start the servers. Returns their process once they are connected."""
    words = (str(port), str(servers), str(seconds))
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.fleet_feed", *words, stdout=asyncio.subprocess.PIPE
    )
    assert running.stdout is not None
    await running.stdout.readline()
    return running


async def run(bench: Bench, scale: Scale) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    servers = int(os.environ.get("BENCH_FLEET_SERVERS", SERVERS))
    servers = min(servers, (most - FILES) // 2)  # two connections each
    seconds = float(os.environ.get("BENCH_FLEET_SECONDS", scale(20, 600)))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="heatsink-fleet-")))
        redis = stack.enter_context(
            RedisServer(options={"maxclients": str(2 * servers + FILES // 2)})
        )
        url, ports = f"sqlite:///{folder}/fleet.db", [free_port() for _ in range(COORDINATORS)]
        pids = {}
        for own in ports:
            where = ["--store", url, "--news", redis.url, "--port", str(own)]
            pids[f"coordinator {own}"] = stack.enter_context(
                process(f"{own}", folder, "coordinator", *where)
            ).pid
        await somebody_leads(ports)
        stores = with_redis(stores_at(url), redis.url, CLOCK, Random(1))
        settings = Settings(name="follower", coordinate=False)
        hs = await stack.enter_async_context(Heatsink(stores, settings, CLOCK, Random(1)))
        driver: Any = open_driver(parse(f"{redis.url}?timeout_s=10"))
        stack.push_async_callback(driver.aclose)
        pids["redis"] = (await driver.info("server"))["process_id"]
        await measure(bench, hs, driver, redis.port, pids, servers, seconds)


async def published(driver: Any) -> int:
    """How often news was published so far."""
    stats = (await driver.info("commandstats")).get("cmdstat_publish", {})
    return int(stats.get("calls", 0))


async def measure(
    bench: Bench,
    hs: Heatsink,
    driver: Any,
    port: int,
    pids: dict[str, int],
    servers: int,
    seconds: float,
) -> None:
    feeding = await fed(port, servers, WARM_UP_S + seconds)
    await asyncio.sleep(WARM_UP_S)
    follower, watched = Follower(hs), Watched(pids)
    term, before = (await hs.parts.registry.renew()).meta.term, await driver.info()
    news, began_s = await published(driver), perf_counter()
    watching = asyncio.ensure_future(follower.watch())
    told = msgspec.json.decode(await feeding.stdout.readline())
    took_s, after = perf_counter() - began_s, await driver.info()
    watching.cancel()
    rate_s = told["reports"] / told["seconds"]
    per_s = REPORTS_S / (rate_s * took_s)
    meta = (await hs.parts.registry.renew()).meta
    commands = after["total_commands_processed"] - before["total_commands_processed"]
    spread = sum(layout.buckets > 1 for layout in hs.parts.registry.view.layouts.values())
    size = f"{servers:,} servers"

    def add(metric: str, unit: str, value: float, target: float | None = None) -> None:
        bench.add(f"{size}, {metric}", unit, [value], None if target is None else at_most(target))

    add("reports that this machine sent", "/s", rate_s)
    add("keys in a report", "", told["entries"])
    add("coordinators, CPU at 10,000 reports/s", "s/s", watched.used_s("coordinator") * per_s, 0.8)
    add("Redis, CPU at 10,000 reports/s", "s/s", watched.used_s("redis") * per_s, 0.5)
    add("Redis, commands at 10,000 reports/s", "/s", commands * per_s)
    add("Redis, connections", "", float(after["connected_clients"]))
    add("Redis, memory", "MB", after["used_memory"] / 1e6)
    add("news that the leader published", "/s", (await published(driver) - news) / took_s)
    memory = max(resident_mb(pid) for name, pid in pids.items() if name != "redis")
    add("memory of a coordinator", "MB", memory)
    add("keys spread", "", float(spread))
    add("changes of the term", "", float(meta.term - term), 0)
    add("longest time between two closed times heard", "s", follower.longest_s, 1.0)
    add("longest time past its horizon of a follower", "s", max(follower.late_s, 0.0), 0.0)
