"""The control loop for queue workers: targets per partition, pins, and advice about Redis.

A Redis runs its commands on one core. Near the limit of that core every command gets slower. So the
leader advises to move partitions to another server. It gives this advice well before the limit, and
only if the load stays high.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from heatsink.bulk.bulk import Bulk
from heatsink.bulk.plan import LEGACY, PartitionPlace, PlaceClosed
from heatsink.bulk.scaling.load import PartitionReading, WorkerObservation
from heatsink.bulk.scaling.policy import WORKERS, WorkerPolicy
from heatsink.bulk.store import PartitionLoad, QueueStores, ServerHealth
from heatsink.errors import Retryable
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import NO_HOOKS, Hooks
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import PIN, PINNED, Decision

from .loops import ControlLoop, Leader

CPU_MAX = 0.6  # of one core
MEMORY_MAX = 0.75  # of maxmemory
LATENCY_MS_MAX = 10.0
READINGS = 5  # in a row
OWN_REDIS = "own_redis"
TURN_S = 1.0
HEALTH_S = 10.0
REPEAT_S = 30.0
ALL_AT_ONCE = 128  # partitions: of so many, all are read in each turn
IDLE_TURNS = 5


class Advisor:
    """Advises to move queue partitions away from a Redis that was busy in several readings.

    The advice is a decision: `redis:host:6379 · own_redis · 8 · "this server uses 72% …"`.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}
        self._streaks: dict[str, int] = {}
        self._advised: set[str] = set()

    def advise(self, time_s: float, servers: Sequence[ServerHealth]) -> list[Decision]:
        decisions = []
        for server in servers:
            reason = self._trouble(time_s, server)
            self._streaks[server.place] = self._streaks.get(server.place, 0) + 1 if reason else 0
            decisions += self._change(server, reason)
        return decisions

    def _trouble(self, time_s: float, server: ServerHealth) -> str:
        before = self._last.get(server.place)
        self._last[server.place] = time_s, server.cpu_used_s
        if before is not None and time_s > before[0]:
            share = (server.cpu_used_s - before[1]) / (time_s - before[0])
            if share > CPU_MAX:
                return f"this server uses {share:.0%} of a core"
        if server.memory_max and server.memory > MEMORY_MAX * server.memory_max:
            return f"this server uses {server.memory / server.memory_max:.0%} of its maxmemory"
        if server.latency_ms > LATENCY_MS_MAX:
            return f"this server takes {server.latency_ms:.0f} ms to answer"
        return ""

    def _change(self, server: ServerHealth, reason: str) -> list[Decision]:
        subject, is_advised = Subject(Kind.REDIS, server.place), server.place in self._advised
        if self._streaks[server.place] >= READINGS and not is_advised:
            self._advised.add(server.place)
            half = max(len(server.partitions) // 2, 1)
            text = (
                f"{reason} ({READINGS} readings in a row): move half of its queue partitions to "
                "another server, with `heatsink bulk place`"
            )
            return [Decision(subject, OWN_REDIS, half, text)]
        if not reason and is_advised:
            self._advised.discard(server.place)
            return [Decision(subject, OWN_REDIS, None, "this server has room again")]
        return []


class PartitionStatus(msgspec.Struct, frozen=True):
    """The load of a queue partition now, the leader's decision on its workers, its pin and place.

    `target` is None if this process does not know the decision.
    """

    number: int
    load: PartitionLoad
    target: Decision | None
    pin: Decision | None
    place: PartitionPlace


def workers_of(partition: int) -> Subject:
    return Subject(Kind.WORKERS, str(partition))


def worker_pin(partition: int, workers: int | None, reason: str) -> Decision:
    """Return the decision that pins the workers of a queue partition. With None, it unpins them.

    The registry stores the decision, so that every new leader knows it.
    """
    return Decision(workers_of(partition), PIN, workers, reason)


async def read_loads(stores: QueueStores, bulk: Bulk) -> dict[int, PartitionLoad]:
    await bulk.open()
    numbers = range((await bulk.plan()).high_water)
    loads = await asyncio.gather(*(_load(stores, number) for number in numbers))
    return {number: load for number, load in zip(numbers, loads, strict=True) if load is not None}


class LoadWatch:
    """The loads of all queue partitions, read once a turn.

    In a queue with many partitions, each idle partition is read only once in `IDLE_TURNS` turns,
    and every turn reads a share of the idle ones. So the leader notices new work there a few
    seconds later. This delays no items: the workers of an idle partition start the work at once.
    """

    def __init__(self, stores: QueueStores, bulk: Bulk) -> None:
        self._stores = stores
        self._bulk = bulk
        self._turn = 0
        self._known: dict[int, PartitionLoad] = {}
        self._idle: set[int] = set()

    async def read(self) -> dict[int, PartitionReading]:
        await self._bulk.open()
        partitions = (await self._bulk.plan()).high_water
        self._turn += 1
        if partitions <= ALL_AT_ONCE:
            self._idle.clear()
        asked = [number for number in range(partitions) if not self._rests(number)]
        loads = await asyncio.gather(*(_load(self._stores, number) for number in asked))
        for number, load in zip(asked, loads, strict=True):
            self._note(number, load)
        fresh = set(asked)
        return {
            number: PartitionReading(load, load.workers, number in fresh)
            for number, load in sorted(self._known.items())
        }

    def _rests(self, partition: int) -> bool:
        return partition in self._idle and partition % IDLE_TURNS != self._turn % IDLE_TURNS

    def _note(self, partition: int, load: PartitionLoad | None) -> None:
        """Remember a load. A partition is idle if it has no items and its load has not changed."""
        known = self._known.pop(partition, None)
        self._idle.discard(partition)
        if load is None:
            return
        self._known[partition] = load
        has_items = load.runnable or load.limited or load.delayed or load.in_flight
        if not has_items and load == known:
            self._idle.add(partition)


async def _load(stores: QueueStores, partition: int) -> PartitionLoad | None:
    """Return the load of a partition; None while it is between two places."""
    try:
        return await stores.queue.load(partition)
    except PlaceClosed:
        return None


class QueueWatch:
    """Reads every queue partition's load, decides how many workers it gets, and watches Redis.

    The decided numbers of workers (targets) are soft decisions. Every `REPEAT_S` seconds the leader
    publishes all targets again, for processes that missed one or started later.
    """

    def __init__(
        self,
        stores: QueueStores,
        bulk: Bulk,
        policy: WorkerPolicy,
        leader: Leader,
        clock: Clock,
        pins: Callable[[], Mapping[str, Decision]] = dict,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._stores = stores
        self._bulk = bulk
        self._leader = leader
        self._all_pins = pins
        self._hooks = hooks
        self._clock = clock
        self._loop = ControlLoop(self.observe, policy, self._wish)
        self._advisor = Advisor()
        self._loads = LoadWatch(stores, bulk)
        self._targets: dict[tuple[Subject, str], Decision] = {}
        self._wishes: dict[Subject, Decision] = {}
        self._pinned: set[Subject] = set()
        self._turned_s = self._examined_s = self._repeated_s = float("-inf")
        self.latest: WorkerObservation | None = None

    @property
    def targets(self) -> list[Decision]:
        return list(self._targets.values())

    def target(self, partition: int) -> Decision | None:
        return self._targets.get((workers_of(partition), WORKERS))

    async def run_once(self) -> list[Decision]:
        """Take a turn if the last one was at least a second ago.

        Returns the published decisions. The turn begins with the servers, since a server that is
        too busy may not answer when the loads of its partitions are read.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._turned_s < TURN_S:
            return []
        self._turned_s = now_s
        decided: list[Decision] = []
        if now_s - self._examined_s >= HEALTH_S:
            self._examined_s = now_s
            with suppress(Retryable):  # scaling does not depend on advice
                decided += await self._publish(await self._advice(now_s))
        decided += await self._loop.run_once() + await self._follow_pins()
        if now_s - self._repeated_s >= REPEAT_S:
            self._repeated_s = now_s
            await self._say(self.targets)
        return decided

    async def observe(self) -> WorkerObservation:
        known = await self._loads.read()
        readings = {number: reading for number, reading in known.items() if reading.workers}
        self.latest = WorkerObservation(self._clock.monotonic_s(), readings)
        return self.latest

    async def _advice(self, now_s: float) -> list[Decision]:
        partitions = (await self._bulk.plan()).high_water
        servers = await self._stores.health([LEGACY, *range(partitions)])
        advice = self._advisor.advise(now_s, servers)
        for decision in advice:
            message = f"{decision.subject}: {decision.reason}"
            self._hooks.event("advice", message, logging.WARNING)
        return advice

    async def _wish(self, decisions: list[Decision]) -> list[Decision]:
        """Publish the policy's decisions as soft ones, except those on pinned partitions."""
        self._wishes |= {decision.subject: decision for decision in decisions}
        return await self._publish([d for d in decisions if d.subject not in self._pins()])

    def _pins(self) -> Mapping[Subject, Decision]:
        pins = self._all_pins().values()
        return {pin.subject: pin for pin in pins if pin.subject.kind is Kind.WORKERS}

    async def _follow_pins(self) -> list[Decision]:
        """Publish those pins of partitions that workers do not follow yet, as soft decisions.

        If the pin of a partition was removed, publish the policy's last target for the partition.
        """
        pins, news = self._pins(), []
        for subject, pin in pins.items():
            wanted = Decision(subject, WORKERS, pin.value, PINNED + pin.reason)
            if self._targets.get((subject, WORKERS)) != wanted:
                news.append(wanted)
        for subject in self._pinned - set(pins):
            free = Decision(subject, WORKERS, None, "unpinned")
            news.append(self._wishes.get(subject, free))
        self._pinned = set(pins)
        return await self._publish(news) if news else []

    async def _publish(self, decisions: list[Decision]) -> list[Decision]:
        """Send decisions to the workers, then write them to the registry's history.

        Workers do not wait for the history. So scaling continues while the store does not answer.
        """
        for decision in decisions:
            self._targets[decision.subject, decision.setting] = decision
        await self._say(decisions)
        with suppress(Retryable):
            await self._leader.publish(decisions)
        return decisions

    async def _say(self, decisions: list[Decision]) -> None:
        term = self._leader.term
        if decisions and term is not None:
            await self._stores.soft.publish(decisions, term)
