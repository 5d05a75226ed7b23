"""A fleet of app servers around one leader on virtual time: what `heatsink lab fleet` runs.

Every server is made of production parts: the tracker, the reporter, and the part that follows the
registry by the leader's news. The leader is made of production parts, too: its lease, its sums, the
watchlist and the policy. Only Redis and the data store are models. They count the requests that
they get. The model of Redis charges the CPU time that we measured on a real Redis (`RedisCosts`).
The CPU time of the leader is measured while it runs.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from math import exp
from random import Random
from time import thread_time
from typing import Any

import msgspec

from heatsink.coordinator.keys import KeyWatch
from heatsink.coordinator.lease import Lease
from heatsink.coordinator.loops import TURN_S, ControlLoop, Coordinator, Leader
from heatsink.errors import HeatsinkError
from heatsink.heat.count import Tracker
from heatsink.heat.report import Reporter, ReportSettings
from heatsink.primitives.chance import SECRET_BYTES
from heatsink.primitives.clock import Clock
from heatsink.registry.decisions import Meta, Reading
from heatsink.registry.news import ASKS_S, STEADY_S
from heatsink.registry.registry import Registry
from heatsink.spread.policy import BucketPolicy, BucketRules
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.stores.redis.address import RedisKeys
from heatsink.stores.redis.heat import RedisBus
from heatsink.stores.redis.news import RedisNews
from heatsink.testing import SkewedClock

KEYS = 1_000_000
DRAWN = 400_000  # keys drawn beforehand; every server takes its writes from a random place of them
WRITES_S = 100  # of a server
HOT = 10
HOT_SHARE = 1.25  # of a bucket's limit
WARM_UP_S, LASTS_S = 3.0, 6.0
SLOTS = 10  # a tenth of the servers acts in each slot, so each server acts ten times a second
SLOT_S = 0.1 / SLOTS
FOLLOW_EVERY = 2  # of these times, a server looks for news in each second one
STARTED_S = 10.0  # servers start within this time
REDIS_S, STORE_S = 0.001, 0.005  # how long an answer takes
PROCESS_MB = 55.0  # a coordinator without any reports
COMMAND_BYTES, MESSAGE_BYTES, ENTRY_BYTES = 80, 60, 45  # of the protocol, besides the bodies
NAMES = ("XADD", "SET", "PUBLISH")


class RedisCosts(msgspec.Struct, frozen=True):
    """CPU time of a real Redis (Valkey 8) on our machine, and of a leader's driver, in µs.

    The costs are fitted to the total of a ten-minute run, not measured one by one. `./dev bench
    fleet` shows the sums.
    """

    command: float = 16.5
    message: float = 8.8
    entry: float = 1.5
    leader_entry: float = 1.6


class Measured(msgspec.Struct, frozen=True):
    """What a fleet cost. All values except times and sizes are per second."""

    servers: int
    writes_s: int
    decided_s: list[float]
    spread_s: list[float]
    """How long after a key got hot all servers place its new ids in the new buckets."""
    leader_cpu: float
    leader_mb: float
    redis_cpu: float
    redis_in: float
    redis_out: float
    commands: float
    reports: float
    meta_reads: float
    entries: float
    term_changes: int = 0


class RedisModel:
    """The commands of Redis that heat and news use. It counts commands, bytes and messages."""

    def __init__(self, keys: RedisKeys) -> None:
        self._keys = keys
        self._reports: list[tuple[bytes, list[bytes]]] = []
        self._first = 0  # the number of the oldest report that is kept
        self._values: dict[str, bytes] = {}
        self.listeners: list[RedisNews] = []
        self.commands = self.messages = self.entries = 0
        self.received = self.sent = 0

    @property
    def reports(self) -> int:
        """How many reports servers have sent."""
        return self._first + len(self._reports)

    async def run(self, *words: Any) -> Any:
        name, key = words[0], words[1]
        self.commands += 1
        self.received += COMMAND_BYTES + (len(words[-1]) if name in NAMES else 0)
        if name == "XADD" and key == self._keys.heat:
            number = self._first + len(self._reports)
            self._reports.append((b"%d-0" % (number + 1), [b"r", words[-1]]))
        elif name == "XRANGE" and key == self._keys.heat:
            return self._after(int(words[2].strip(b"(").partition(b"-")[0]))
        elif name == "PUBLISH":
            self._publish(words[2])
        elif name == "SET":
            self._values[key] = words[2]
        elif name == "GET":
            return self._values.get(key)
        return []

    def _after(self, number: int) -> list[tuple[bytes, list[bytes]]]:
        del self._reports[: number - self._first]
        self._first = max(number, self._first)
        self.entries += len(self._reports)
        self.sent += sum(ENTRY_BYTES + len(fields[1]) for _, fields in self._reports)
        return list(self._reports)

    def _publish(self, message: bytes) -> None:
        self.messages += len(self.listeners)
        self.sent += len(self.listeners) * (MESSAGE_BYTES + len(message))
        for listener in self.listeners:
            listener.hear(message)

    def cpu_s(self, costs: RedisCosts) -> float:
        used = self.commands * costs.command + self.messages * costs.message
        return (used + self.entries * costs.entry) / 1e6


class Delayed:
    """Calls of the leader, whose answers take a while."""

    def __init__(self, target: Any, clock: Clock, seconds: float) -> None:
        self._target = target
        self._clock = clock
        self._seconds = seconds

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._target, name)

        async def delayed(*arguments: Any) -> Any:
            await self._clock.sleep(self._seconds)
            return await call(*arguments)

        return delayed


class CountedRegistry(MemoryRegistry):
    """A data store that counts how often META is read."""

    reads = 0

    async def meta(self) -> Reading:
        self.reads += 1
        return await super().meta()


class Metered:
    """Awaits a coroutine, and measures the CPU time of its steps."""

    def __init__(self, coroutine: Generator[Any, None, None]) -> None:
        self._coroutine = coroutine
        self.used_s = 0.0

    def __await__(self) -> Generator[Any, None, None]:
        while True:
            began_s = thread_time()
            try:
                waits_for = self._coroutine.send(None)
            except StopIteration:
                return
            finally:
                self.used_s += thread_time() - began_s
            yield waits_for


class AppServer:
    """A server, as far as it matters to the fleet: counts writes, reports, and follows news."""

    def __init__(
        self,
        number: int,
        registry: Registry,
        bus: RedisBus,
        clock: Clock,
        settings: ReportSettings,
        rng: Random,
    ) -> None:
        self.tracker = Tracker(alarm_units=settings.bucket_units_s // 2, rng=rng)
        self.registry = registry
        name = f"app:{number}:{rng.getrandbits(32):08x}"
        self.reporter = Reporter(name, self.tracker, bus, registry, clock, settings)


class Traffic:
    """Writes of all servers: to a million keys (Zipf, s = 1), and to some that suddenly get hot."""

    def __init__(self, limit_s: int, rng: Random) -> None:
        self._rng = rng
        self._drawn = [f"key-{int(KEYS ** rng.random())}" for _ in range(DRAWN)]
        self.hot = {f"hot-{n}": WARM_UP_S + rng.random() for n in range(HOT)}
        self._hot_s = HOT_SHARE * limit_s

    def write(self, group: list[AppServer], now_s: float) -> None:
        """Record what a group of servers writes in a tenth of a second, and its hot keys."""
        rng = self._rng
        for server in group:
            count = _poisson(WRITES_S / SLOTS, rng)
            start = int(rng.random() * (DRAWN - count))
            record = server.tracker.record
            for key in self._drawn[start : start + count]:
                record(key)
        for key, hot_at_s in self.hot.items():
            if now_s >= hot_at_s:
                for _ in range(_poisson(self._hot_s * SLOT_S, rng)):
                    group[int(rng.random() * len(group))].tracker.record(key)


def _poisson(mean: float, rng: Random) -> int:
    least, count, product = exp(-mean), 0, rng.random()
    while product > least:
        count += 1
        product *= rng.random()
    return count


class FleetWorld:
    """A leader and its fleet. `play` runs them for some seconds of virtual time."""

    def __init__(self, servers: int, seed: int) -> None:
        self.clock = SkewedClock()
        self.rng = rng = Random(seed)
        self.settings, self.rules = ReportSettings(), BucketRules()
        self.keys = RedisKeys()
        self.redis = RedisModel(self.keys)
        self.store = CountedRegistry(self.clock)
        self.number = servers
        self.traffic = Traffic(self.rules.bucket_units_s, rng)
        self.servers: list[AppServer] = []
        self.decided: dict[str, float] = {}
        self.spread: dict[str, float] = {}

    def _founding(self) -> Meta:
        secret, seed = bytes(SECRET_BYTES), bytes(16)
        return Meta(0, 0, 0, 0, "", "lab", seed, "ulid", secret=secret)

    async def _start_servers(self) -> None:
        any_redis: Any = self.redis
        bus = RedisBus(any_redis, self.keys)
        for number in range(self.number):
            news = RedisNews(any_redis, self.keys, self.clock, rng=self.rng)
            registry = Registry(self.store, self.clock, news, self.rng)
            await registry.open(self._founding())
            self.redis.listeners.append(news)
            self.servers.append(
                AppServer(number, registry, bus, self.clock, self.settings, self.rng)
            )
            await self.clock.sleep(STARTED_S / self.number)

    async def _start_leader(self) -> None:
        redis: Any = Delayed(self.redis, self.clock, REDIS_S)
        store: Any = Delayed(self.store, self.clock, STORE_S)
        news = RedisNews(redis, self.keys, self.clock, rng=self.rng)
        self.redis.listeners.append(news)
        self.registry = Registry(store, self.clock, news, self.rng)
        await self.registry.open(self._founding())
        lease = Lease(store, "leader", self.clock, count_servers=lambda: self.watch.servers)
        leader = Leader(self.registry, lease)
        bus = RedisBus(redis, self.keys)
        self.watch = KeyWatch(bus, self.registry, "leader", self.settings)
        keys = ControlLoop(self.watch.observe, BucketPolicy(self.rules), leader.publish)
        self.coordinator = Coordinator(self.registry, lease, self.clock, [keys])

    async def _keep(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            with suppress(HeatsinkError):
                await work()
            await self.clock.sleep(TURN_S)

    async def play(self) -> Measured:
        await self._start_servers()
        await self._start_leader()
        work = (self.coordinator.beat, self.coordinator.tell, self.coordinator.turn)
        meters = [Metered(self._keep(each).__await__()) for each in work]
        meters.append(Metered(self.registry.follow().__await__()))
        running = [asyncio.ensure_future(_awaited(meter)) for meter in meters]
        try:
            await self._run_servers(0.0, WARM_UP_S)
            self._spread_reads()
            term, cpu_s = self.registry.meta.term, sum(meter.used_s for meter in meters)
            before = self._counted()
            await self._run_servers(WARM_UP_S, WARM_UP_S + LASTS_S)
            cpu_s = sum(meter.used_s for meter in meters) - cpu_s
            return self._measured(before, cpu_s, self.registry.meta.term - term)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _spread_reads(self) -> None:
        """Let the servers' next reads of META fall evenly on time, as in an old fleet.

        In this model, all servers have read META at the same moment, when the leader appeared.
        """
        every_s, now_s = max(STEADY_S, self.number / ASKS_S), self.clock.monotonic_s()
        for server in self.servers:
            listener = server.registry._listener
            assert listener is not None
            listener._asked_s = now_s - every_s * self.rng.random()

    async def _run_servers(self, begin_s: float, end_s: float) -> None:
        for slot in range(round(begin_s / SLOT_S), round(end_s / SLOT_S)):
            group = self.servers[slot % SLOTS :: SLOTS]
            self.traffic.write(group, slot * SLOT_S)
            for server in group:
                await server.reporter.run_once()
                if slot // SLOTS % FOLLOW_EVERY == 0:
                    await server.registry.keep_up(urgent=False)
            self._note_spread(slot * SLOT_S)
            await self.clock.sleep(SLOT_S)

    def _note_spread(self, now_s: float) -> None:
        hot, now_ms = self.traffic.hot, self.registry.now_ms()
        for key in hot.keys() - self.spread.keys():
            layout = self.registry.view.layouts.get(key)
            if layout is None or len(layout.epochs) < 2:
                continue
            self.decided.setdefault(key, now_s - hot[key])
            followers = self.servers if layout.epochs[1].start_ms <= now_ms else []
            if followers and all(key in each.registry.view.layouts for each in followers):
                self.spread[key] = now_s - hot[key]

    def _counted(self) -> tuple[float, ...]:
        redis = self.redis
        cpu_s = redis.cpu_s(RedisCosts())
        counted = redis.received, redis.sent, redis.commands, redis.reports, redis.entries
        return *counted, cpu_s, self.store.reads

    def _measured(self, before: tuple[float, ...], cpu_s: float, terms: int) -> Measured:
        after = self._counted()
        received, sent, commands, reports, entries, redis_cpu_s, reads = (
            (now - then) / LASTS_S for now, then in zip(after, before, strict=True)
        )
        aggregator = self.watch._aggregator
        mb = PROCESS_MB + size_of(aggregator._accounts, aggregator._sums) / 1e6
        listed = sum(len(account.keys) for account in aggregator._accounts.values())
        read_s = entries * RedisCosts().leader_entry / 1e6
        return Measured(
            servers=self.number,
            writes_s=self.number * WRITES_S,
            decided_s=sorted(self.decided.values()),
            spread_s=sorted(self.spread.values()),
            leader_cpu=cpu_s / LASTS_S + read_s,
            leader_mb=mb,
            redis_cpu=redis_cpu_s,
            redis_in=received,
            redis_out=sent,
            commands=commands,
            reports=reports,
            meta_reads=reads,
            entries=listed / self.number,
            term_changes=terms,
        )


async def _awaited(meter: Metered) -> None:
    await meter


def size_of(*roots: object) -> int:
    """Return the size in bytes of these objects and all that they refer to, without types."""
    seen: set[int] = set()
    waiting, size = list(roots), 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        size += sys.getsizeof(each)
        if isinstance(each, msgspec.Struct):
            waiting += [getattr(each, name) for name in each.__struct_fields__]
        else:
            waiting += gc.get_referents(each)
    return size


async def play(servers: int, seed: int) -> Measured:
    """Run a fleet of this size on virtual time, and return what it cost."""
    return await FleetWorld(servers, seed).play()
