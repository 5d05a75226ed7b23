"""The queue of a client, and the parts that use it. The first call that needs the queue opens it.

Timelines push posts through the queue. The leader scales the queue's workers.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from random import Random
from typing import Any

from heatsink.bulk.batch import Batch
from heatsink.bulk.controls import NO_CONTROLS, Controls
from heatsink.bulk.scaling.policy import POLICIES, WorkerPolicy
from heatsink.coordinator.loops import BackgroundLoop, Leader
from heatsink.coordinator.schedules import ScheduleWatch
from heatsink.coordinator.workers import QueueWatch
from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import Hooks
from heatsink.primitives.ids import minter_of
from heatsink.primitives.owner import Owner
from heatsink.registry.decisions import Decision
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff
from heatsink.spread.counters import Counters
from heatsink.spread.log import Log
from heatsink.timelines.graph import Graph
from heatsink.timelines.modes import Choice, CostMeter, Modes
from heatsink.timelines.store import Cache, FanOut
from heatsink.timelines.timelines import FAN_OUT, PRIORITY, Timelines

from .queue import PatientHomes, Queue
from .settings import Settings


@dataclass
class QueueSide:
    """The queue and the timelines of one client; each is made when it is first used."""

    make_queue: Callable[[], Queue] | None
    settings: Settings
    clock: Clock
    rng: Random
    owner: Owner
    registry: Registry
    backoff: Backoff
    log: Log
    counters: Counters
    cache: Cache
    hooks: Hooks
    controls: Controls = NO_CONTROLS
    opened: Queue | None = None
    _loop: WorkersLoop | None = None
    _schedules: SchedulesLoop | None = None

    @cached_property
    def queue(self) -> Queue:
        """The queue; the first call makes it."""
        if self.opened is None:
            if self.make_queue is None:
                raise InvalidSetting(
                    "this client has no queue: open the client with heatsink.connect()"
                )
            self.opened = self.make_queue()
            self.opened.bulk.owner.follow(self.owner)
            self.opened.bulk.adopt(self.settings.bulk, self.controls)
        return self.opened

    async def check_known(self, wanted: Batch) -> None:
        """Raise if no worker knows the action of a batch, as `submit` does.

        Without a queue, do nothing.
        """
        try:
            bulk = self.queue.bulk
        except InvalidSetting:
            return
        await bulk.check_known(wanted)

    @cached_property
    def timelines(self) -> Timelines:
        registry, backoff = self.registry, self.backoff
        minter = minter_of(self.log.scheme, self.rng)

        def mint() -> bytes:
            return minter.mint(registry.now_ms(), registry.view.horizon_ms)[0]

        async def reach(time_ms: int) -> None:
            deadline_s = backoff.deadline_s()
            await backoff.call(partial(registry.reach, time_ms, deadline_s), "", deadline_s)

        async def reach_buckets(key: str, buckets: int) -> None:
            await registry.reach_buckets(key, buckets, backoff.deadline_s())

        settings = self.settings.timelines
        graph = Graph(self.log, self.counters, self.cache, mint, self.rng)
        modes = Modes(registry, reach, reach_buckets)
        homes = PatientHomes(self.queue.homes, backoff)
        meter = CostMeter(self.log, graph, homes, self.cache, registry.now_ms)
        choice = Choice(graph, modes, meter, settings, registry.now_ms)
        fan_out = _through(self.queue)
        return Timelines(self.log, graph, homes, modes, choice, self.cache, fan_out, settings)

    def adopt(self, settings: Settings, controls: Controls) -> None:
        """Use these settings of the deployment from now on."""
        self.settings, self.controls = settings, controls
        if self._loop is not None:
            self._loop.adopt(settings)
        if self.opened is not None:
            self.opened.bulk.adopt(settings.bulk, controls)
        if "timelines" in self.__dict__:  # made by the first call that needs them
            self.timelines.adopt(settings.timelines)

    def schedules_of(self, leader: Leader) -> SchedulesLoop:
        """Make the leader's loop that starts schedules, and return it."""
        self._schedules = SchedulesLoop(self, leader)
        return self._schedules

    def loop_of(self, leader: Leader) -> WorkersLoop:
        """Make the leader's control loop for the queue's workers, and return it."""
        self._loop = WorkersLoop(self, leader)
        return self._loop

    @property
    def watch(self) -> QueueWatch | None:
        """The queue's load as the leader sees it; None until a first call uses the queue."""
        return self._loop.watch if self._loop and self.opened else None

    async def stop(self) -> None:
        """Cancel the running turns, if any, of the control loops of the queue."""
        if self._schedules is not None:
            await self._schedules.close()
        if self._loop is not None and self.opened:
            await self._loop.close()

    async def close(self) -> None:
        if self.opened is not None:
            await self.opened.close()
            self.opened.bulk.owner.close()


class WorkersLoop:
    """Scales the queue's workers while this process leads and has opened the queue."""

    def __init__(self, side: QueueSide, leader: Leader) -> None:
        self._side = side
        self._leader = leader

    @cached_property
    def watch(self) -> QueueWatch:
        side = self._side
        return QueueWatch(
            side.queue.stores,
            side.queue.bulk,
            self._policy,
            self._leader,
            side.clock,
            lambda: side.registry.view.pins,
            side.hooks,
        )

    @cached_property
    def _policy(self) -> WorkerPolicy:
        settings = self._side.settings
        return POLICIES[settings.scaling](settings.workers)

    @cached_property
    def _turns(self) -> BackgroundLoop:
        return BackgroundLoop(self.watch)

    async def run_once(self) -> list[Decision]:
        return await self._turns.run_once() if self._side.opened else []

    def adopt(self, settings: Settings) -> None:
        self._policy.adopt(settings.scaling, settings.workers)

    async def close(self) -> None:
        await self._turns.close()


class SchedulesLoop:
    """Submits the batches of schedules while this process leads.

    The first batch opens the queue.
    """

    def __init__(self, side: QueueSide, leader: Leader) -> None:
        self._watch = ScheduleWatch(
            side.registry, lambda: side.queue.bulk, leader, side.clock, side.hooks
        )
        self._turns = BackgroundLoop(self._watch)

    async def run_once(self) -> list[Decision]:
        return await self._turns.run_once() if self._watch.is_time else []

    async def close(self) -> None:
        await self._turns.close()


def _through(queue: Queue) -> FanOut:
    async def fan_out(author: str, post: str, items: AsyncIterable[Any]) -> str:
        """Submit the push of a post.

        The batch's id is made from the post's id and author, so a repeated post is pushed once.
        """
        name = blake2b(author.encode(), digest_size=8).hexdigest()
        batch = await queue.bulk.submit(
            FAN_OUT, items, tenant=author, priority=PRIORITY, id=f"push:{post}:{name}"
        )
        return batch.id

    return fan_out
