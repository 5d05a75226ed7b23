"""How often a fleet reads META, the one record that everybody needs, by its number of app servers.

All of the fleet's code, two coordinators included, on virtual time, with stores in memory that
count; every app server writes a row about every second. With Redis, news of META comes to the
servers; the store hears from the leader and the standby, and from each server every 30 seconds,
which shows only among very many. When Redis goes down, all together ask the store no more than
about 300 times a second, and see further ahead instead. The alternative is a fleet without Redis,
in which everybody asks ten times a second: right for a few servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

from heatsink.client import Heatsink, Settings
from heatsink.errors import Unavailable
from heatsink.heat.heat import Report
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.messages import MemoryBus, MemoryNews
from heatsink.stores.stores import Stores
from heatsink.testing import SkewedClock, run_on_virtual_time

from .clients import BODY
from .harness import Bench, Samples, Scale, at_most, ratio_at_most

SMALL, LARGE, HUGE = 10, 100, 300
COORDINATORS = 2
SETTLE_S = 60.0
SAMPLE_S = 10.0
CAP_S = 300
GROWTH_MAX = 1.2  # ten times the servers


class CountedRegistry:
    """Counts reads of META; everything passes through."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        self.reads += name == "meta"
        return getattr(self._store, name)


class Redis:
    """Both of its services, which can be down."""

    def __init__(self) -> None:
        self.down = False
        self.bus = Bus(self)
        self.news = Relay(self)

    def check(self) -> None:
        if self.down:
            raise Unavailable("Redis is down")


class Bus(MemoryBus):
    def __init__(self, redis: Redis) -> None:
        super().__init__()
        self._redis = redis

    async def send(self, report: Report) -> None:
        self._redis.check()
        await super().send(report)

    async def receive(self) -> list[Report]:
        self._redis.check()
        return await super().receive()


class Relay(MemoryNews):
    def __init__(self, redis: Redis) -> None:
        super().__init__()
        self._redis = redis

    async def publish(self, log: str, entries: Mapping[int, bytes], pair: bytes) -> None:
        self._redis.check()
        await super().publish(log, entries, pair)

    async def pair(self, servers: int = 1, /) -> bytes | None:
        self._redis.check()
        return await super().pair(servers)


class Fleet:
    """App servers that write, and coordinators, on one counted store."""

    def __init__(self, servers: int, redis: Redis | None) -> None:
        self._servers = servers
        self._clock = SkewedClock()
        self._rng = Random(servers)
        made = memory_stores(self._clock)
        self.registry: Any = CountedRegistry(made.registry)
        self._stores: Stores = replace(made, registry=self.registry, lease=self.registry)
        if redis is not None:
            self._stores = replace(self._stores, bus=redis.bus, news=redis.news)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for n in range(COORDINATORS):
                await stack.enter_async_context(self._client(f"coordinator-{n}", True))
            writing = []
            for n in range(self._servers):
                hs = await stack.enter_async_context(self._client(f"app-{n}", False))
                writing.append(asyncio.ensure_future(self._write(hs, f"conversation-{n}")))
            yield
            for task in writing:
                task.cancel()
            ended = await asyncio.gather(*writing, return_exceptions=True)
            _raise_failures(ended)

    def _client(self, name: str, coordinate: bool) -> Heatsink:
        settings = Settings(name=name, coordinate=coordinate)
        return Heatsink(self._stores, settings, self._clock, Random(self._rng.random()))

    async def _write(self, hs: Heatsink, key: str) -> None:
        while True:
            await self._clock.sleep(self._rng.uniform(0.5, 1.5))
            await hs.log.append(key, BODY)

    async def reads_per_second(self, samples: int) -> Samples:
        """After what went before has settled."""
        await self._clock.sleep(SETTLE_S)
        taken = []
        for _ in range(samples):
            before = self.registry.reads
            await self._clock.sleep(SAMPLE_S)
            taken.append((self.registry.reads - before) / SAMPLE_S)
        return taken


def _raise_failures(ended: list[Any]) -> None:
    for one in ended:
        if not isinstance(one, asyncio.CancelledError):
            raise one


async def with_news(servers: int, samples: int) -> tuple[Samples, Samples]:
    """Reads while Redis is there, and after it went down."""
    redis = Redis()
    fleet = Fleet(servers, redis)
    async with fleet.running():
        informed = await fleet.reads_per_second(samples)
        redis.down = True
        return informed, await fleet.reads_per_second(samples)


async def without_redis(servers: int, samples: int) -> Samples:
    fleet = Fleet(servers, None)
    async with fleet.running():
        return await fleet.reads_per_second(samples)


async def virtually(work: Callable[[int, int], Any], servers: int, samples: int) -> Any:
    """On a virtual loop, which needs a thread beside this one."""
    return await asyncio.to_thread(lambda: run_on_virtual_time(work(servers, samples)))


async def run(bench: Bench, scale: Scale) -> None:
    samples, huge = scale(3, 6), HUGE
    informed, cut, plain = {}, {}, {}
    for servers in (SMALL, LARGE, huge):
        informed[servers], cut[servers] = await virtually(with_news, servers, samples)
    for servers in (SMALL, LARGE):
        plain[servers] = await virtually(without_redis, servers, samples)
        none = ("without Redis", plain[servers])
        bench.add(f"META reads, {servers} servers", "/s", informed[servers], None, none)
    for servers, target in ((LARGE, ratio_at_most(GROWTH_MAX)), (huge, None)):
        metric, few = f"META reads, {servers:,} beside {SMALL} servers", informed[SMALL]
        bench.add(metric, "/s", informed[servers], target, (f"{SMALL} servers", few))
    for servers in (SMALL, LARGE, huge):
        metric = f"META reads, {servers:,} servers, Redis down"
        bench.add(metric, "/s", cut[servers], at_most(CAP_S), middle=max)
