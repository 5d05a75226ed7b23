"""The parts of an open client, put together.

`assemble` opens the stores, joins the registry and makes every part. The client calls `assemble`
when the client is opened, not when it is constructed, because the process may fork in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from os import getpid
from random import Random
from socket import gethostname
from typing import TYPE_CHECKING, Any

from heatsink.bulk.schedules import Schedules
from heatsink.coordinator.coordination import Coordination, CoordinationSettings
from heatsink.coordinator.explainer import Explainer
from heatsink.coordinator.keys import StorePartitions
from heatsink.coordinator.loops import BackgroundLoop, Leader, Turn
from heatsink.coordinator.reads import NearDecisions
from heatsink.errors import Misconfigured, Overloaded
from heatsink.heat.count import Tracker
from heatsink.heat.report import Reporter
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import Hooks
from heatsink.primitives.keys import SEED_BYTES
from heatsink.primitives.owner import Owner
from heatsink.primitives.words import pip_install
from heatsink.registry.decisions import Meta
from heatsink.registry.news import WatchedNews
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff
from heatsink.spread.counters import Counters
from heatsink.spread.log import Log
from heatsink.spread.observed import ObservedCounters, ObservedLog
from heatsink.spread.routing import Parts, Router
from heatsink.stores.stores import Stores

from .deployment import DeploymentSettings
from .queue import Queue
from .queue_side import QueueSide
from .read_side import ReadSide
from .settings import Settings

if TYPE_CHECKING:
    from heatsink.cluster.balance import ClusterWatch

Work = Callable[[], Coroutine[Any, Any, None]]
RESTART_S = 1.0
FOLLOW_SETTINGS_S = 0.25


@dataclass(frozen=True)
class Blueprint:
    """The settings, stores and hooks from which a client is made."""

    stores: Stores
    settings: Settings
    clock: Clock
    rng: Random
    make_queue: Callable[[], Queue] | None
    hooks: Hooks
    make_secret: Callable[[], bytes]
    founding: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the whole deployment. This process stores them if the data store is new."""


async def assemble(plan: Blueprint, owner: Owner) -> Assembly:
    """Open the stores and make the parts of a client. If opening fails, close the stores."""
    stores, settings, clock = plan.stores, plan.settings, plan.clock
    news = WatchedNews(stores.news, clock, plan.hooks) if stores.news else None
    registry = Registry(stores.registry, clock, news, plan.rng)
    tracker = Tracker(
        alarm_units=settings.alarm_units,
        gather=StorePartitions(stores.meter).count,
        rng=Random(plan.rng.getrandbits(64)),
    )
    backoff = Backoff(settings.retries, clock, plan.rng, tracker, registry.view, plan.hooks)
    try:
        await stores.open()
        await backoff.begin(partial(registry.open, _founding_meta(plan)))
    except BaseException:
        await stores.close()
        raise
    assembly = Assembly(plan, owner, registry, news, tracker, backoff)
    if plan.founding:
        await backoff.begin(partial(assembly.deployment.found, plan.founding))
    return assembly


def _make_cluster_watch(
    settings: Settings, leader: Leader, name: str, clock: Clock, hooks: Hooks
) -> ClusterWatch:
    try:
        from heatsink.cluster.balance import ClusterWatch
    except ImportError:
        raise Misconfigured(
            f"cluster needs a Redis client: {pip_install('redis')}", field="cluster"
        ) from None
    return ClusterWatch(settings.cluster, settings.slots, leader, name, clock, hooks)


def _founding_meta(plan: Blueprint) -> Meta:
    """Return the META record that this process writes if the store is new."""
    return Meta(
        closed_ms=0,
        version=0,
        term=0,
        beat=0,
        leader="",
        incarnation=f"{plan.rng.getrandbits(128):032x}",
        seed=plan.rng.randbytes(SEED_BYTES),
        id_scheme=plan.settings.ids.name,
        secret=plan.make_secret(),
    )


class Assembly:
    """All parts of an open client and its background work."""

    cluster: ClusterWatch | None = None
    _cluster_turns: BackgroundLoop | None = None

    def __init__(
        self,
        plan: Blueprint,
        owner: Owner,
        registry: Registry,
        news: WatchedNews | None,
        tracker: Tracker,
        backoff: Backoff,
    ) -> None:
        stores, clock, rng = plan.stores, plan.clock, plan.rng
        self.name = f"{plan.settings.name or gethostname()}:{getpid()}:{rng.getrandbits(32):08x}"
        self.deployment = DeploymentSettings(plan.settings, registry, self.name, plan.hooks, owner)
        settings = self.deployment.now
        self.registry = registry
        self.news = news
        self.tracker = tracker
        self.backoff = backoff
        self.stores = stores
        self._settings = settings
        self._clock = clock
        self._hooks = plan.hooks
        self.reporter: Reporter | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.reading = ReadSide(stores, settings, tracker, clock, rng, plan.hooks, owner)
        router = Router(registry, settings.ids, backoff, clock, rng)
        parts = Parts(
            registry,
            router,
            tracker,
            backoff,
            clock,
            self.reading.pages,
            stores.answers_in_s,
            owner,
        )
        self.log = self._make_log(parts)
        self.counters = self._make_counters(parts)
        self.queue = QueueSide(
            plan.make_queue,
            settings,
            clock,
            rng,
            owner,
            registry,
            backoff,
            self.log,
            self.counters,
            self.reading.reads,
            plan.hooks,
        )
        self.schedules = Schedules(registry, self.name, owner, self.queue.check_known)
        self.coordination = self._make_coordination(settings)
        self.explainer = Explainer(
            registry,
            backoff,
            self.coordination,
            tracker,
            self.reading.near_keys,
        )

    def _make_coordination(self, settings: Settings) -> Coordination:
        return Coordination(
            self.stores,
            self.registry,
            CoordinationSettings(
                self.name,
                settings.rules,
                settings.near,
                settings.report,
                settings.lease_s,
                settings.dedicated,
            ),
            NearDecisions(self.reading.near_keys, self.reading.soft),
            self._make_loops,
            self._clock,
            self.backoff,
            self._hooks,
        )

    @cached_property
    def table_counts(self) -> Counter[str]:
        """What a door or an attachment counts of requests on declared tables (`door/core.py`)."""
        return Counter()

    def _make_loops(self, leader: Leader) -> list[Turn]:
        """Make the leader's loops for the queue's workers and, if one is set, for a cluster."""
        loops: list[Turn] = [self.queue.loop_of(leader), self.queue.schedules_of(leader)]
        if self._settings.cluster:
            self.cluster = _make_cluster_watch(
                self._settings, leader, self.name, self._clock, self._hooks
            )
            self._cluster_turns = BackgroundLoop(self.cluster)
            loops.append(self._cluster_turns)
        return loops

    def _make_log(self, parts: Parts) -> Log:
        if self._hooks.observes_calls:
            return ObservedLog(self.stores.log, parts, self._hooks)
        return Log(self.stores.log, parts)

    def _make_counters(self, parts: Parts) -> Counters:
        store, token_ttl_s = self.stores.counters, self._settings.token_ttl_s
        if self._hooks.observes_calls:
            return ObservedCounters(store, parts, token_ttl_s, self._hooks)
        return Counters(store, parts, token_ttl_s)

    def start(self) -> None:
        """Start the background work."""
        self._start("following the registry", self.registry.follow)
        self.reporter = reporter = self.make_reporter()
        self._start("reporting heat", reporter.run)
        self._start("following settings", partial(self._follow_settings, reporter))
        self.reading.open()
        self._start("following soft decisions", self.reading.follow)
        if self.reading.invalidation is not None:
            self._start("invalidating caches", self.reading.invalidation.run)
        if self._settings.coordinate:
            self._start("coordinating", self.coordination.coordinator.run)

    def make_reporter(self) -> Reporter:
        bus, settings = self.stores.bus, self._settings.report
        return Reporter(self.name, self.tracker, bus, self.registry, self._clock, settings)

    async def _follow_settings(self, reporter: Reporter) -> None:
        """Adopt changes of the deployment's settings, for ever.

        Also warn if this process was started with settings that are not in force.
        """
        adopted = None
        while True:
            settings = self.deployment.now
            if settings is not adopted:
                adopted = settings
                self.tracker.adopt(settings.alarm_units)
                reporter.adopt(settings.report)
                self.coordination.adopt(settings.rules, settings.near, settings.report)
                self.queue.adopt(settings, self.deployment.controls)
                if self.cluster is not None:
                    self.cluster.adopt(settings.slots)
                self.deployment.warn_of_differences(self._settings.coordinate)
            await self._clock.sleep(FOLLOW_SETTINGS_S)

    def _start(self, name: str, work: Work) -> None:
        self.tasks.append(asyncio.ensure_future(self._keep_running(name, work)))

    async def _keep_running(self, name: str, work: Work) -> None:
        """Run background work, and restart it after an unexpected error: calls depend on it."""
        while True:
            try:
                await work()
            except Exception as error:
                self._hooks.failed(name, error)
            await self._clock.sleep(RESTART_S)

    async def close(self, deadline_s: float) -> None:
        """Stop the background work, give up the leader's lease, and close the stores.

        If the store does not answer within `deadline_s`, the lease expires by itself.
        """
        self.reading.close()
        await self.stop()
        await self.queue.stop()
        if self.cluster is not None and self._cluster_turns is not None:
            await self._cluster_turns.close()
            await self.cluster.close()
        with suppress(Overloaded):  # the next leader waits for the lease to expire
            await self.backoff.call(self.coordination.coordinator.close, "", deadline_s)
        await self.registry.close()
        await self.queue.close()
        await self.stores.close()

    async def stop(self) -> None:
        """Stop the background work."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
