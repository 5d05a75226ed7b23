"""What 10,000 app servers cost a pair of coordinators and their Redis, with default settings.

Real parts: a Valkey, two coordinators as processes of their own on one SQLite file, and a follower
(a client in this process). The servers are sockets in another process (`fleet_feed`): each sends a
report a second on one connection and hears the leader's news on another. Together they have a
million writes a second over a million keys (Zipf, s = 1). 100 keys are above the limit of a bucket.
All servers see half of these, at 0.09 to 0.14 writes a second each. One server in 50 sees each of
the others. They are hot from the first report on: how long each takes to be spread is the time
until the follower routes by its new layout.

After that, the leader is killed. Until the other coordinator leads, the servers poll Redis, and the
follower writes a row every 20 ms.

Costs are CPU time. A full run takes ten minutes, a quick one 20 s, both with the fail-over.
BENCH_FLEET_SERVERS and BENCH_FLEET_SECONDS change that. All servers hear news. If a process may not
open enough files for all connections, a few servers send their reports over the connection of
another: the table shows how many.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections import deque
from contextlib import AsyncExitStack
from math import inf
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import msgspec

from heatsink.client import Heatsink, Settings
from heatsink.errors import HeatsinkError
from heatsink.registry.decisions import RegistryStore
from heatsink.spread.policy import BucketRules
from heatsink.stores.embedded import free_port
from heatsink.stores.redis import with_redis
from heatsink.stores.redis.address import parse
from heatsink.stores.redis.connection import open_driver
from heatsink.testing.redis import RedisServer

from .clients import BODY, CLOCK, stores_at
from .fleet_feed import HOT, rates
from .harness import Bench, Scale, at_least, at_most
from .jump import leads, process, somebody_leads

SERVERS = 10_000
REPORTS_S = 10_000
COORDINATORS = 2
WARM_UP_S = 10.0
COLD = 1_000  # the hottest keys below half the limit: at most one of them may be spread
SPREAD_S_MAX = 5.0  # two seconds to decide, one to notice the step, and news
WRITE_S = 0.02
LED_AGAIN_S_MAX = 10.0
LOOK_S = 0.02
FILES = 60  # that Redis and the feeding process open besides
LATE_S = 0.7  # closed times that a follower hears later than this are printed, with their time
LATE_S_MAX = 1.0
HZ = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HZ


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


class Follower:
    """A real client that hears the news: how late it hears a closed time, and how far its horizon
    is from now.

    A closed time is late while META holds it and the follower does not. In a large fleet the leader
    publishes news less often, and keeps the closed time further ahead for that. So the time between
    two closed times says nothing about either.
    """

    def __init__(self, hs: Heatsink, store: RegistryStore) -> None:
        """`store` is read to see when META gets a closed time."""
        self._registry = hs.parts.registry
        self._store = store
        self._awaited: deque[tuple[float, int]] = deque()  # since when META holds a closed time
        self.lates: list[tuple[float, float]] = []  # when a closed time came late, and how late
        self.heard = 0
        self.longest_gap_s = 0.0
        self.late_s = 0.0
        self.ahead_s, self.ahead_most_s = inf, -inf

    async def watch(self) -> None:
        view = self._registry.view
        began_s = since_s = looked_s = perf_counter()
        known = view.horizon_ms
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = perf_counter()
            own_s = max(now_s - looked_s - LOOK_S, 0.0)  # what this process itself was late
            looked_s = now_s
            await self._look(now_s, own_s, now_s - began_s)
            self.longest_gap_s = max(self.longest_gap_s, now_s - since_s - own_s)
            if view.horizon_ms != known:
                self.heard += 1
                known, since_s = view.horizon_ms, now_s

    async def _look(self, now_s: float, own_s: float, passed_s: float) -> None:
        closed_ms = (await self._store.meta()).meta.closed_ms
        horizon_ms, own_ms = self._registry.view.horizon_ms, self._registry.now_ms()
        self._awaited = deque((since_s + own_s, each) for since_s, each in self._awaited)
        if closed_ms > (self._awaited[-1][1] if self._awaited else horizon_ms):
            self._awaited.append((now_s, closed_ms))
        while self._awaited and self._awaited[0][1] <= horizon_ms:
            since_s, _ = self._awaited.popleft()
            if now_s - since_s > LATE_S:
                self.lates.append((round(passed_s, 1), round(now_s - since_s, 2)))
            self.late_s = max(self.late_s, now_s - since_s)
        if self._awaited:
            self.late_s = max(self.late_s, now_s - self._awaited[0][0])
        self.ahead_s = min(self.ahead_s, (horizon_ms - own_ms) / 1000 + own_s)
        self.ahead_most_s = max(self.ahead_most_s, (closed_ms - own_ms) / 1000)


class Usage:
    """The CPU time of processes since this was made."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._before = {name: cpu_s(pid) for name, pid in pids.items()}

    def of(self, name: str) -> float:
        return cpu_s(self._pids[name]) - self._before[name]

    @property
    def coordinators(self) -> list[float]:
        """Of each coordinator, the leader first."""
        return sorted((self.of(name) for name in self._pids if name != "redis"), reverse=True)

    @property
    def coordinator_mb(self) -> float:
        return max(resident_mb(pid) for name, pid in self._pids.items() if name != "redis")


class Fed(msgspec.Struct, frozen=True):
    """What `fleet_feed` prints at its end."""

    reports: int
    unsent: int
    seconds: float
    cpu_s: float
    late_s: float
    heard_bytes: int
    entries: float
    writes: float
    bytes: float
    polls: int


class Spreading:
    """When the follower first routed each of the hot keys by a layout with more buckets."""

    def __init__(self, hs: Heatsink) -> None:
        self._registry = hs.parts.registry
        self._waiting = {f"key-{rank}" for rank in range(HOT)}
        self.seconds: list[float] = []

    async def watch(self) -> None:
        began_s = perf_counter()
        while self._waiting:
            await asyncio.sleep(LOOK_S)
            newest_ms = min(self._registry.now_ms(), self._registry.view.horizon_ms - 1)
            layouts = self._registry.view.layouts
            spread = {
                key
                for key in self._waiting & layouts.keys()
                if layouts[key].epoch_at(newest_ms).buckets > 1
            }
            self.seconds += [perf_counter() - began_s] * len(spread)
            self._waiting -= spread

    def report(self, bench: Bench) -> None:
        """Say which keys are spread. Of the cold ones, below half the limit, few may be."""
        limit_s = BucketRules().bucket_units_s
        by_rank, layouts = rates(limit_s), self._registry.view.layouts
        warm = sum(rate >= limit_s / 2 for rate in by_rank)
        spread = {key for key, layout in layouts.items() if layout.buckets > 1}
        cold = spread & {f"key-{rank}" for rank in range(warm, warm + COLD)}
        found = float(len(self.seconds))
        bench.add(f"hot keys spread, of {HOT}", "", [found], at_least(HOT))
        if self.seconds:
            metric = "until a hot key is spread"
            bench.add(f"{metric}, median", "s", self.seconds)
            slowest = at_most(SPREAD_S_MAX)
            bench.add(f"{metric}, slowest", "s", self.seconds, slowest, middle=max)
        bench.add("keys spread", "", [float(len(spread))])
        metric = f"of the {COLD:,} hottest keys below half the limit, spread"
        bench.add(metric, "", [float(len(cold))], at_most(1))


class Writer:
    """Rows that the follower writes, one after the other: how long each takes, and refusals."""

    def __init__(self, hs: Heatsink) -> None:
        self._log = hs.log
        self.seconds: list[float] = []
        self.refused = 0

    async def write(self) -> None:
        while True:
            began_s = perf_counter()
            try:
                await self._log.append("a cold key", BODY)
            except HeatsinkError:
                self.refused += 1
            self.seconds.append(perf_counter() - began_s)
            await asyncio.sleep(WRITE_S)


async def start_servers(
    port: int, servers: int, senders: int, seconds: float, after_s: float
) -> Any:
    """Start the servers. Returns their process once they are connected."""
    words = map(str, (port, servers, senders, seconds, after_s))
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.fleet_feed", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert running.stdout is not None
    await running.stdout.readline()
    return running


async def run(bench: Bench, scale: Scale) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    servers = int(os.environ.get("BENCH_FLEET_SERVERS", SERVERS))
    senders = min(servers, most - FILES - servers)
    seconds = float(os.environ.get("BENCH_FLEET_SECONDS", scale(10, 600)))
    after_s = float(scale(8, 20))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="heatsink-fleet-")))
        clients = {"maxclients": str(senders + servers + FILES // 2)}
        redis = stack.enter_context(RedisServer(options=clients))
        url, ports = f"sqlite:///{folder}/fleet.db", [free_port() for _ in range(COORDINATORS)]
        pids: dict[str, int] = {}
        at: dict[int, int] = {}
        for own in ports:
            where = ["--store", url, "--news", redis.url, "--port", str(own)]
            at[own] = pids[f"coordinator {own}"] = stack.enter_context(
                process(f"{own}", folder, "coordinator", *where)
            ).pid
        await somebody_leads(ports)
        stores = with_redis(stores_at(url), redis.url, CLOCK, Random(1))
        settings = Settings(name="follower", coordinate=False)
        hs = await stack.enter_async_context(Heatsink(stores, settings, CLOCK, Random(1)))
        driver: Any = open_driver(parse(f"{redis.url}?timeout_s=10"))
        stack.push_async_callback(driver.aclose)
        pids["redis"] = (await driver.info("server"))["process_id"]
        lasts_s = WARM_UP_S + seconds, after_s
        feeding = await start_servers(redis.port, servers, senders, *lasts_s)
        spreading = Spreading(hs)
        watching = asyncio.ensure_future(spreading.watch())
        await asyncio.sleep(WARM_UP_S)
        bench.add("servers without a connection of their own for reports", "", [servers - senders])
        follower = Follower(hs, stores.registry)
        await measure(bench, hs, follower, driver, pids, feeding)
        watching.cancel()
        spreading.report(bench)
        await fail_over(bench, hs, driver, at, pids["redis"])
        polled = msgspec.json.decode(await feeding.stdout.readline(), type=Fed)
        bench.add("fail-over: polls of all servers", "", [float(polled.polls)])
        feeding.stdin.close()  # it has kept its connections


async def published(driver: Any) -> int:
    """How often news was published so far."""
    stats = (await driver.info("commandstats")).get("cmdstat_publish", {})
    return int(stats.get("calls", 0))


async def measure(
    bench: Bench,
    hs: Heatsink,
    follower: Follower,
    driver: Any,
    pids: dict[str, int],
    feeding: Any,
) -> None:
    registry, usage = hs.parts.registry, Usage(pids)
    term, before = (await registry.renew()).meta.term, await driver.info()
    news, began_s = await published(driver), perf_counter()
    watching = asyncio.ensure_future(follower.watch())
    told = msgspec.json.decode(await feeding.stdout.readline(), type=Fed)
    took_s, after = perf_counter() - began_s, await driver.info()
    watching.cancel()
    meta = (await registry.renew()).meta
    news = await published(driver) - news
    if follower.lates:
        print(f"late closed times (s after the start, s): {follower.lates}", flush=True)

    def add(metric: str, unit: str, value: float, target: float | None = None) -> None:
        bench.add(metric, unit, [value], None if target is None else at_most(target))

    def risen(name: str) -> float:
        return float(after[name] - before[name]) / took_s

    add("reports sent", "/s", told.reports / told.seconds)
    add("reports that Redis did not take in time", "", told.unsent)
    add("writes that they report", "/s", told.reports / told.seconds * told.writes)
    add("keys in a report", "", told.entries)
    add("bytes of a report", "B", told.bytes)
    add("coordinators, CPU", "s/s", sum(usage.coordinators) / took_s, 0.8)
    add("leader, CPU", "s/s", usage.coordinators[0] / took_s)
    add("leader, memory", "MB", usage.coordinator_mb)
    add("Redis, CPU", "s/s", usage.of("redis") / took_s, 0.5)
    add("Redis, commands", "/s", risen("total_commands_processed"))
    add("Redis, connections", "", float(after["connected_clients"]))
    add("Redis, of these subscribed to news", "", float(after["pubsub_clients"]))
    add("Redis, received", "MB/s", risen("total_net_input_bytes") / 1e6)
    add("Redis, sent", "MB/s", risen("total_net_output_bytes") / 1e6)
    add("Redis, memory", "MB", after["used_memory"] / 1e6)
    add("news that the leader published", "/s", news / took_s)
    add("changes of the term", "", float(meta.term - term), 0)
    add("closed times heard by a follower", "/s", follower.heard / took_s)
    metric = "longest time until a follower has a closed time that META holds"
    add(metric, "s", follower.late_s, LATE_S_MAX)
    metric = "least time that the follower's horizon is ahead of now"
    bench.add(metric, "s", [follower.ahead_s], at_least(0.0))
    add("most time that the closed time is ahead of now", "s", follower.ahead_most_s)
    add("longest time between two closed times that it heard", "s", follower.longest_gap_s)
    add("senders of reports and readers of news, CPU", "s/s", told.cpu_s / told.seconds)
    add("senders of reports, longest delay", "s", told.late_s)
    add("polls of servers that missed news", "", float(told.polls))


async def fail_over(
    bench: Bench, hs: Heatsink, driver: Any, coordinators: dict[int, int], redis: int
) -> None:
    """Kill the leader, and measure until all servers hear news of the next one."""
    registry, writer = hs.parts.registry, Writer(hs)
    writing = asyncio.ensure_future(writer.write())
    led = [port for port in coordinators if await asyncio.to_thread(leads, port)]
    term, before, usage = registry.meta.term, await driver.info(), Usage({"redis": redis})
    news, began_s, passed_s = await published(driver), perf_counter(), 0.0
    for port in led:
        os.kill(coordinators[port], signal.SIGKILL)
    while passed_s < LED_AGAIN_S_MAX and await published(driver) <= news + 1:
        await asyncio.sleep(5 * LOOK_S)
        passed_s = perf_counter() - began_s
    after, used_s = await driver.info(), usage.of("redis")
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    changed = (await registry.renew()).meta.term - term
    commands = float(after["total_commands_processed"] - before["total_commands_processed"])

    def add(metric: str, unit: str, value: float, target: float | None = None) -> None:
        limit = None if target is None else at_most(target)
        bench.add(f"fail-over: {metric}", unit, [value], limit)

    add("until the next leader's news", "s", passed_s, LED_AGAIN_S_MAX)
    add("terms begun", "", float(changed))
    add("Redis, CPU", "s/s", used_s / passed_s, 0.5)
    add("Redis, commands", "/s", commands / passed_s)
    add("writes of a follower refused", "", float(writer.refused), 0)
    bench.add("fail-over: a follower's write", "ms", writer.seconds)
    bench.add("fail-over: its slowest write", "ms", writer.seconds, middle=max)
