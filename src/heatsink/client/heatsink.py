"""The client of one process: its logs, counters and reads, and a coordinator in the background."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Never, Unpack

from heatsink.bulk.actions import Actions
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.plan import place_in
from heatsink.bulk.schedules import Schedules
from heatsink.bulk.work.consumer import Consumer
from heatsink.coordinator.coordination import Hottest
from heatsink.coordinator.explainer import Explanation
from heatsink.coordinator.lease import Leadership
from heatsink.coordinator.workers import (
    PartitionStatus,
    QueueWatch,
    read_loads,
    worker_pin,
    workers_of,
)
from heatsink.errors import Closed, InvalidInput, NotFound
from heatsink.primitives.chance import fresh_secret
from heatsink.primitives.checks import check_text, check_whole, shown
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import NO_HOOKS, Hooks
from heatsink.primitives.keys import check_key
from heatsink.primitives.owner import Owner
from heatsink.primitives.subjects import AnyKey
from heatsink.reads.near_cache import ReadStats
from heatsink.reads.reads import Reads
from heatsink.registry.decisions import PIN, Decision, LogEntry, for_key
from heatsink.spread.counters import Counters
from heatsink.spread.log import Log
from heatsink.spread.policy import BucketRules
from heatsink.stores.stores import Stores
from heatsink.timelines.timelines import Timelines

from .assembly import Assembly, Blueprint, assemble
from .deployment import DeploymentSettings
from .queue import Queue, once_in
from .settings import Settings, WorkerOptions
from .status import Status, status_of

if TYPE_CHECKING:
    from heatsink.cluster.balance import ClusterWatch

NOT_WITH = (
    "this client needs `async with`: write `async with heatsink.connect(…) as hs:`, or use "
    "`with heatsink.connect_sync(…) as hs:` in code without asyncio"
)
NOT_AWAIT = "connect() is not awaited: write `async with heatsink.connect(…) as hs:`"
REASON_MAX = 500
HEAT_MAX = 10**12
HOTTEST_MAX = 1_000
DECISIONS_MAX = 1_000


class Heatsink:
    """A client, made by `heatsink.connect`.

    Outside `async with` every call raises `Closed`. A call that asks the store raises `Overloaded`
    if the store does not answer in time, and an argument outside its range raises `InvalidInput`::

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
        hooks: Hooks = NO_HOOKS,
        make_secret: Callable[[], bytes] | None = None,
        founding: Mapping[str, Any] | None = None,
    ) -> None:
        secret = make_secret or fresh_secret
        self._plan = Blueprint(stores, settings, clock, rng, queue, hooks, secret, founding or {})
        self._owner = Owner()
        self._is_entered = False
        self._assembly: Assembly | None = None

    async def __aenter__(self) -> Heatsink:
        if self._is_entered:
            raise Closed("a client can be opened once only: call heatsink.connect() again")
        self._is_entered = True
        self._owner.check()
        self._assembly = await assemble(self._plan, self._owner)
        self._assembly.start()
        self._plan.hooks.opened(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    if not TYPE_CHECKING:  # type checkers report `with` by themselves

        def __enter__(self) -> Never:
            raise InvalidInput(NOT_WITH)

        def __exit__(self, *_: object) -> None: ...

        def __await__(self) -> Never:
            raise InvalidInput(NOT_AWAIT)

    async def close(self) -> None:
        """Stop the background work and give up the leader's lease, if the store answers.

        The end of `async with` does this. In a forked child the call does nothing, since the
        client belongs to the parent: `await hs.close()`
        """
        if self._owner.is_forked or self._owner.is_closed:
            return
        if self._is_entered:
            self._owner.check()
        assembly, self._assembly = self._assembly, None
        if assembly is not None:
            self._plan.hooks.closing(self)
            try:
                await assembly.close(assembly.backoff.deadline_s())
            finally:
                self._owner.close()
        elif not self._is_entered:
            await self._plan.stores.close()

    @property
    def parts(self) -> Assembly:
        """The internal parts of this client. They may change in any release.

        Raises `Closed` while the client is not open.
        """
        assembly = self._assembly
        if assembly is None or self._owner.is_forked:
            raise self._owner.closed()
        return assembly

    @property
    def _here(self) -> Assembly:
        """The parts of this client.

        Raises `Closed` while the client is not open, and in an event loop that did not open it.
        """
        assembly = self.parts
        self._owner.check()
        return assembly

    @property
    def log(self) -> Log:
        """Logs: conversations, feeds, audit trails: `await hs.log.append("conv_1", b"hello")`"""
        return self.parts.log

    @property
    def counters(self) -> Counters:
        """Counters for many concurrent writers: `await hs.counters.add("video:42:views", 1)`"""
        return self.parts.counters

    @property
    def reads(self) -> Reads:
        """A cache for hot reads. Simultaneous readers of a key share one call of your function.

        `await hs.reads.get("product:7", load)`
        """
        return self.parts.reading.reads

    @property
    def bulk(self) -> Bulk:
        """Bulk actions; the first call opens the queue: `await hs.bulk.submit("resize", items)`"""
        return self.parts.queue.queue.bulk

    @property
    def timelines(self) -> Timelines:
        """Follows, posts and home timelines: `await hs.timelines.home("ada")`"""
        return self.parts.queue.timelines

    def worker(self, actions: Actions, **settings: Unpack[WorkerOptions]) -> Consumer:
        """Return a consumer, which runs bulk actions in this process.

        `settings` are the fields of `ConsumerSettings`. Raises `InvalidSetting` for a value that is
        not valid::

            await hs.worker(actions, workers=16).run()
        """
        assembly, chosen = self.parts, self._plan.settings
        once = once_in(assembly.log, chosen.ids)
        return assembly.queue.queue.worker(actions, once=once, name=chosen.name, **settings)

    def page_stats(self) -> ReadStats:
        """Return statistics of log pages read with `fresh_for`.

        For all other reads see `hs.reads.stats()`. For example: `hs.page_stats().hits`
        """
        return self.parts.reading.page_stats()

    def record(self, key: str, writes: int = 1, written_bytes: int = 0) -> None:
        """Add to a key's heat the writes that the application made without Heatsink.

        Raises `InvalidKey` and, for a number below 0, `InvalidSetting`::

            hs.record("conv_1", writes=25, written_bytes=4_000)
        """
        self.parts.tracker.record(
            check_key(key),
            check_whole("writes", writes, 0, HEAT_MAX),
            check_whole("written_bytes", written_bytes, 0, HEAT_MAX),
        )

    def status(self) -> Status:
        """Return the state of this process, for health checks and metrics: `hs.status().ready`"""
        parts = self.parts
        found = parts.coordination.leadership()
        leads = parts.coordination.leader.leads
        news_lost = parts.news.lost if parts.news else None
        return status_of(parts.name, parts.registry, leads, found, news_lost)

    async def leadership(self) -> Leadership:
        """Return the current leader, or how long there has been no leader.

        Raises `Overloaded` if the store does not answer in time::

            print((await hs.leadership()).leader)
        """
        parts = self.parts
        return await parts.coordination.look_who_leads(parts.backoff.deadline_s())

    async def hottest(self, limit: int = 20) -> Hottest:
        """Return the hottest keys of all processes, and an upper bound for any other key's load.

        `limit` is 1 to 1,000; any other value raises `InvalidSetting`::

            for key in (await hs.hottest(limit=5)).keys:
                print(key)
        """
        coordination = self._here.coordination
        return await coordination.hottest(check_whole("limit", limit, 1, HOTTEST_MAX))

    async def decisions(self, limit: int = 50, before: int | None = None) -> list[LogEntry]:
        """Return decisions with their reasons, newest first.

        For the next page, pass the last version of this page as `before`. Raises `InvalidSetting`
        if `limit` is not 1 to 1,000, and `Overloaded` if the store does not answer in time::

            for entry in await hs.decisions(limit=10):
                print(entry)
        """
        parts = self._here
        check_whole("limit", limit, 1, DECISIONS_MAX)
        if before is not None:
            check_whole("before", before, 1, HEAT_MAX)
        ask = partial(parts.registry.history, limit, before)
        return await parts.backoff.call(ask, "", parts.backoff.deadline_s())

    async def queue_partitions(self) -> list[PartitionStatus]:
        """Return the load, the workers' target, the pin and the place of each queue partition.

        The first call opens the queue::

            for partition in await hs.queue_partitions():
                print(partition.number, partition.load)
        """
        parts = self.parts
        queue, pins = parts.queue.queue, parts.registry.view.pins
        loads = await read_loads(queue.stores, queue.bulk)
        target = parts.queue.watch.target if parts.queue.watch else lambda _: None
        plan = await queue.bulk.plan()
        return [
            PartitionStatus(
                number,
                load,
                target(number),
                pins.get(workers_of(number).text),
                place_in(plan, number),
            )
            for number, load in loads.items()
        ]

    async def pin_workers(self, partition: int, workers: int | None, *, reason: str) -> None:
        """Give a queue partition a fixed number of workers; None removes the pin.

        Raises `NotFound` if there is no such partition, and `InvalidSetting` for more workers than
        the setting `workers.workers_max` allows::

            await hs.pin_workers(3, 8, reason="a large import tonight")
        """
        parts = self.parts
        partitions = (await parts.queue.queue.bulk.plan()).high_water
        if not isinstance(partition, int) or not 0 <= partition < partitions:
            raise NotFound(f"there is no partition {shown(partition)}: use 0 to {partitions - 1}")
        if workers is not None:
            check_whole("workers", workers, 1, parts.deployment.now.workers.workers_max)
        check_text("reason", reason, REASON_MAX)
        await parts.registry.publish([worker_pin(partition, workers, reason)], term=None)

    async def explain(self, key: AnyKey) -> Explanation:
        """Return a key's buckets, epochs and heat, the reason for them, and what a read costs.

        Raises `InvalidKey` for a key that cannot be stored::

            print(await hs.explain("conv_1"))
        """
        key = check_key(key)
        parts = self._here
        parts.registry.check()
        return await parts.explainer.explain(key)

    @property
    def settings(self) -> DeploymentSettings:
        """The settings of the whole deployment, and the values in force in this process.

        `hs.settings.get("rules.buckets_max").value`
        """
        return self.parts.deployment

    @property
    def schedules(self) -> Schedules:
        """Schedules: batches that start by themselves at certain times.

        `await hs.schedules.set("tidy", "delete-old", [{"days": 30}], every=3600)`
        """
        return self.parts.schedules

    @property
    def rules(self) -> BucketRules:
        """The bucket rules in force: `hs.rules.buckets_max`"""
        return self.parts.deployment.now.rules

    async def pin(self, key: AnyKey, *, buckets: int, reason: str) -> None:
        """Give a key a fixed number of buckets until `unpin`, whatever its heat.

        Raises `InvalidKey`, and `InvalidSetting` for more buckets than the setting
        `rules.buckets_max` allows::

            await hs.pin("conv_1", buckets=8, reason="launch day")
        """
        key = check_key(key)
        parts = self._here
        check_whole("buckets", buckets, 1, self.rules.buckets_max)
        check_text("reason", reason, REASON_MAX)
        await _publish(parts, for_key(key, PIN, buckets, reason))

    async def unpin(self, key: AnyKey, *, reason: str = "unpinned") -> bool:
        """Remove a key's pin, so that Heatsink again decides the number of buckets by heat.

        Returns False if there was no pin to remove. Raises `InvalidKey`::

            await hs.unpin("conv_1", reason="the launch is over")
        """
        key = check_key(key)
        parts = self._here
        check_text("reason", reason, REASON_MAX)
        return bool(await _publish(parts, for_key(key, PIN, None, reason)))

    @property
    def queue_watch(self) -> QueueWatch | None:
        """The queue's load as the leader sees it; None until a first call uses the queue."""
        return self.parts.queue.watch

    @property
    def cluster_watch(self) -> ClusterWatch | None:
        """The cluster that this process watches while it leads; None if it watches none."""
        return self.parts.cluster


async def _publish(parts: Assembly, decision: Decision) -> list[Decision]:
    """Publish a decision, with retries. Returns what it changed.

    A decision states the new value, not a difference, so committing it twice is safe.
    """
    publish = partial(parts.registry.publish, [decision], None)
    return await parts.backoff.call(publish, decision.key, parts.backoff.deadline_s())
