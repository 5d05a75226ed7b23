"""The client of one process: its logs, counters and reads, and a coordinator in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from os import getpid
from random import Random
from socket import gethostname
from typing import Any

from heatsink.bulk.actions import Actions
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.scaling.policy import POLICIES
from heatsink.bulk.work.consumer import Consumer
from heatsink.coordinator.explainer import Explainer, Explanation
from heatsink.coordinator.keys import Coordination, Hottest, StorePartitions, coordinate_keys
from heatsink.coordinator.lease import Leadership, Lease
from heatsink.coordinator.loops import Beside
from heatsink.coordinator.workers import (
    PartitionStatus,
    QueueWatch,
    read_loads,
    worker_pin,
    workers_of,
)
from heatsink.errors import Closed, InvalidSetting, NotFound, Overloaded
from heatsink.heat.count import Tracker
from heatsink.heat.report import Reporter, ReportSettings
from heatsink.primitives.chance import fresh_secret
from heatsink.primitives.checks import check_text, check_whole, shown
from heatsink.primitives.clock import Clock
from heatsink.primitives.keys import SEED_BYTES, check_key
from heatsink.primitives.owner import Owner
from heatsink.primitives.subjects import AnyKey
from heatsink.reads.near_cache import ReadStats
from heatsink.reads.reads import Reads
from heatsink.registry.decisions import PIN, Decision, LogEntry, Meta, for_key
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff
from heatsink.spread.counters import Counters
from heatsink.spread.log import Log
from heatsink.spread.policy import BucketRules
from heatsink.spread.routing import Parts, Router
from heatsink.stores.stores import Stores
from heatsink.timelines.timelines import Timelines

from .instruments import NONE, Instruments
from .queue import Queue, once_in
from .read_side import ReadSide
from .settings import Settings
from .status import Status, status_of
from .timelines import make_timelines

logger = logging.getLogger("heatsink")
Work = Callable[[], Coroutine[Any, Any, None]]
CLOSED = "this client is closed: use it inside `async with heatsink.connect(…)`"
RESTART_S = 1.0
REASON_MAX = 500
HEAT_MAX = 10**12
HOTTEST_MAX = 1_000
DECISIONS_MAX = 1_000


class Heatsink:
    """A client, made by `heatsink.connect`.

    Outside `async with` every call raises `Closed`::

        async with heatsink.connect("sqlite:///chat.db") as hs:
            await hs.log.append("conv_1", b"hello")
    """

    def __init__(
        self,
        stores: Stores,
        settings: Settings,
        clock: Clock,
        rng: Random,
        queue: Callable[[], Queue] | None = None,
        instruments: Instruments = NONE,
        make_secret: Callable[[], bytes] = fresh_secret,
    ) -> None:
        self._stores = stores
        self._make_queue = queue
        self._instruments = instruments
        self._queue: Queue | None = None
        self._timelines: Timelines | None = None
        self.queue_watch: QueueWatch | None = None
        self._queue_turns: Beside | None = None
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._make_secret = make_secret
        self._owner = Owner()
        self._registry = Registry(stores.registry, clock, stores.news, rng)
        self._tracker = Tracker(alarm_units=settings.alarm_units)
        self._tracker.gather = StorePartitions(self._tracker, stores.meter).count
        view = self._registry.view
        self._backoff = Backoff(settings.retries, clock, rng, self._tracker, view)
        self._coordination: Coordination | None = None
        self._explainer: Explainer | None = None
        self._entered = False
        self._log: Log | None = None
        self._read_side: ReadSide | None = None
        self._counters: Counters | None = None
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Heatsink:
        if self._entered:
            raise Closed("a client can be opened once only: call heatsink.connect() again")
        self._entered = True
        self._owner.check()
        try:
            await self._stores.open()
            await self._backoff.begin(partial(self._registry.open, self._founding_meta()))
        except BaseException:
            await self._stores.close()
            raise
        self._open_for_use()
        self._start_background_work()
        return self

    def _open_for_use(self) -> None:
        """Make the parts here and not in the constructor, which may run before a fork."""
        who = self._settings.name or gethostname()
        self._name = f"{who}:{getpid()}:{self._rng.getrandbits(32):08x}"
        fleet_now_s = self._registry.fleet_now_s
        lease_s = self._settings.lease_s
        lease = Lease(self._stores.lease, self._name, self._clock, lease_s, fleet_now_s)
        self._coordination = coordinate_keys(
            self._stores,
            self._registry,
            lease,
            self._clock,
            self._backoff,
            self._settings.rules,
            self._settings.window_s,
        )
        ids = self._settings.ids
        router = Router(self._registry, ids, self._backoff, self._clock, self._rng)
        reading = ReadSide(
            self._stores,
            self._settings,
            self._tracker,
            self._clock,
            self._rng,
            self._instruments,
            self._owner,
        )
        self._read_side = reading
        self._coordination.coordinator.loops.append(reading.coordinate(self._coordination))
        self._explainer = Explainer(
            self._registry,
            self._backoff,
            self._coordination,
            self._tracker,
            reading.near_keys,
            self._settings.rules,
        )
        parts = Parts(
            self._registry,
            router,
            self._tracker,
            self._backoff,
            self._clock,
            reading.pages,
            self._stores.answers_in_s,
            self._owner,
        )
        self._log = Log(self._stores.log, parts)
        self._counters = Counters(self._stores.counters, parts, self._settings.token_ttl_s)
        self._instruments.log(self._log)
        self._instruments.counters(self._counters)

    def _start_background_work(self) -> None:
        reporter = self._make_reporter()
        self._start("following the registry", self._registry.follow)
        self._start("reporting heat", reporter.run)
        assert self._read_side is not None
        self._start("following soft decisions", self._read_side.follow)
        if self._read_side.invalidation is not None:
            self._start("invalidating caches", self._read_side.invalidation.run)
        if self._settings.coordinate and self._coordination:
            self._start("coordinating", self._coordination.coordinator.run)

    def _founding_meta(self) -> Meta:
        return Meta(
            closed_ms=0,
            version=0,
            term=0,
            beat=0,
            leader="",
            incarnation=f"{self._rng.getrandbits(128):032x}",
            seed=self._rng.randbytes(SEED_BYTES),
            id_scheme=self._settings.ids.name,
            secret=self._make_secret(),
        )

    def _make_reporter(self) -> Reporter:
        settings = ReportSettings(self._settings.window_s, self._settings.rules.bucket_units_s)
        bus, fleet = self._stores.bus, self._registry
        return Reporter(self._name, self._tracker, bus, fleet, self._clock, settings)

    def _start(self, name: str, work: Work) -> None:
        self._running.append(asyncio.ensure_future(self._keep_running(name, work)))

    async def _keep_running(self, name: str, work: Work) -> None:
        """Restart background work after an unexpected error, since calls depend on it."""
        while True:
            try:
                await work()
            except Exception:
                logger.exception("%s failed, restarting", name)
            await self._clock.sleep(RESTART_S)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the background work and give up the leader's lease, if the store answers.

        In a forked child this does nothing: the client belongs to the parent.
        """
        if self._owner.is_forked:
            return
        if self._entered:
            self._owner.check()
        deadline_s = self._backoff.deadline_s()
        self._log = self._counters = None
        if self._read_side is not None:
            self._read_side.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        if self._queue_turns is not None:
            await self._queue_turns.close()
        if self._coordination is not None:
            with suppress(Overloaded):  # the next leader waits for the lease to expire
                resign = self._coordination.coordinator.close
                await self._backoff.call(resign, "", deadline_s)
        await self._registry.close()
        if self._queue is not None:
            await self._queue.close()
        await self._stores.close()

    @property
    def bulk(self) -> Bulk:
        """Bulk actions; the first call opens the queue."""
        return self._the_queue().bulk

    @property
    def timelines(self) -> Timelines:
        """Follows, posts and home timelines."""
        queue = self._the_queue()
        if self._timelines is None:
            self._timelines = make_timelines(
                self.log,
                self.counters,
                self._registry,
                queue,
                self.reads,
                self._settings.timelines,
                self._rng,
                self._backoff,
            )
        return self._timelines

    def worker(self, actions: Actions, **settings: Any) -> Consumer:
        """A consumer that runs bulk actions here; `settings` are those of `ConsumerSettings`.

        `await hs.worker(actions, workers=16).run()`
        """
        once = once_in(self.log, self._settings.ids)
        return self._the_queue().worker(actions, once=once, name=self._settings.name, **settings)

    def _the_queue(self) -> Queue:
        self._check_open()
        if self._queue is None:
            if self._make_queue is None:
                raise InvalidSetting("this client has no queue: make it with heatsink.connect()")
            self._queue = self._make_queue()
            self._queue.bulk.owner.follow(self._owner)
            if self._settings.coordinate:
                self._coordinate_queue(self._queue)
        return self._queue

    def _coordinate_queue(self, queue: Queue) -> None:
        """Scale the queue's workers too, while this process leads."""
        assert self._coordination is not None
        coordinator = self._coordination.coordinator
        policy = POLICIES[self._settings.scaling](self._settings.workers)
        self.queue_watch = QueueWatch(
            queue.stores,
            queue.bulk,
            policy,
            coordinator,
            self._clock,
            lambda: self._registry.view.pins,
        )
        self._queue_turns = Beside(self.queue_watch)
        coordinator.loops.append(self._queue_turns)

    @property
    def log(self) -> Log:
        """Logs: conversations, feeds, audit trails."""
        if self._log is None or self._owner.is_forked:
            raise self._owner.closed(CLOSED)
        return self._log

    @property
    def counters(self) -> Counters:
        """Counters for many concurrent writers."""
        if self._counters is None or self._owner.is_forked:
            raise self._owner.closed(CLOSED)
        return self._counters

    @property
    def reads(self) -> Reads:
        """A coalescing cache in front of your loads."""
        return self._reading().reads

    def page_stats(self) -> ReadStats:
        """Statistics of pages read with `fresh_for`; those of other reads are `reads.stats()`."""
        return self._reading().page_stats()

    def _reading(self) -> ReadSide:
        self._check_open()
        assert self._read_side is not None
        return self._read_side

    def record(self, key: str, writes: int = 1, written_bytes: int = 0) -> None:
        """Count writes to a key that do not go through Heatsink, as part of its heat."""
        self._owner.check_process()
        self._tracker.record(
            check_key(key),
            check_whole("writes", writes, 0, HEAT_MAX),
            check_whole("written_bytes", written_bytes, 0, HEAT_MAX),
        )

    def status(self) -> Status:
        """The state of this process, for health checks and metrics."""
        self._check_open()
        assert self._coordination is not None
        coordination = self._coordination
        found = coordination.leadership()
        return status_of(self._name, self._registry, coordination.coordinator.leads, found)

    async def leadership(self) -> Leadership:
        """The current leader, or how long there has been none."""
        self._check_open()
        assert self._coordination is not None
        return await self._coordination.look_who_leads(self._backoff.deadline_s())

    async def hottest(self, limit: int = 20) -> Hottest:
        """The hottest keys of all processes, with bounds on what went unreported."""
        self._check_here()
        assert self._coordination is not None
        return await self._coordination.hottest(check_whole("limit", limit, 1, HOTTEST_MAX))

    async def decisions(self, limit: int = 50, before: int | None = None) -> list[LogEntry]:
        """Decisions with their reasons, newest first; `before` is a version, for the next page."""
        self._check_here()
        check_whole("limit", limit, 1, DECISIONS_MAX)
        if before is not None:
            check_whole("before", before, 1, HEAT_MAX)
        ask = partial(self._registry.history, limit, before)
        return await self._backoff.call(ask, "", self._backoff.deadline_s())

    async def queue_partitions(self) -> list[PartitionStatus]:
        """The queue's partitions: load, target number of workers, and pins."""
        queue, pins = self._the_queue(), self._registry.view.pins
        loads = await read_loads(queue.stores, queue.bulk)
        target = self.queue_watch.target if self.queue_watch else lambda _: None
        return [
            PartitionStatus(number, load, target(number), pins.get(workers_of(number).text))
            for number, load in loads.items()
        ]

    async def pin_workers(self, partition: int, workers: int | None, *, reason: str) -> None:
        """Give a queue partition a fixed number of workers; None removes the pin.

        Raises `NotFound` if there is no such partition.
        """
        partitions = (await self._the_queue().bulk.plan()).high_water
        if not isinstance(partition, int) or not 0 <= partition < partitions:
            raise NotFound(f"there is no partition {shown(partition)}: use 0 to {partitions - 1}")
        if workers is not None:
            check_whole("workers", workers, 1, self._settings.workers.workers_max)
        check_text("reason", reason, REASON_MAX)
        await self._registry.publish([worker_pin(partition, workers, reason)], term=None)

    async def explain(self, key: AnyKey) -> Explanation:
        """A key's buckets, epochs and heat, the reason for them, and what a read costs."""
        key = check_key(key)
        self._check_here()
        self._registry.check()
        assert self._explainer is not None
        return await self._explainer.explain(key)

    @property
    def rules(self) -> BucketRules:
        """The bucket rules of this process's settings."""
        return self._settings.rules

    async def pin(self, key: AnyKey, *, buckets: int, reason: str) -> None:
        """Give a key a fixed number of buckets until `unpin`, whatever its heat.

        `await hs.pin("conv_1", buckets=8, reason="launch day")`
        """
        key = check_key(key)
        self._check_here()
        check_whole("buckets", buckets, 1, self._settings.rules.buckets_max)
        check_text("reason", reason, REASON_MAX)
        await self._publish(for_key(key, PIN, buckets, reason))

    async def unpin(self, key: AnyKey, *, reason: str = "unpinned") -> None:
        """Remove a pin, so that the policy decides again."""
        key = check_key(key)
        self._check_here()
        check_text("reason", reason, REASON_MAX)
        await self._publish(for_key(key, PIN, None, reason))

    async def _publish(self, decision: Decision) -> None:
        """Publish a decision with retries: it is a target, so committing it twice is safe."""
        publish = partial(self._registry.publish, [decision], None)
        await self._backoff.call(publish, decision.key, self._backoff.deadline_s())

    def _check_open(self) -> None:
        _ = self.log

    def _check_here(self) -> None:
        """Check that the client is open, and used in the event loop that opened it."""
        self._check_open()
        self._owner.check()
