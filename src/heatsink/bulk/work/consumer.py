"""The process that owns queue partitions and runs their items.

Any number may run. Each is a member for as long as it renews that; members share the partitions
evenly and hand over what others are short of. Who owns a partition decides who claims from it:
that items run safely rests on their leases alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

import msgspec

from heatsink.bulk.actions import Actions, Once, no_store
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.store import LEGACY, QueueStores
from heatsink.checks import check_kind, check_number, check_whole
from heatsink.clock import Clock
from heatsink.errors import Closed, HeatsinkError
from heatsink.registry.soft import Targets

from .chores import Housekeeping
from .meter import WorkMeter
from .pump import Pump, Terms
from .sharing import quota, wanted_first
from .webhook import webhook_action

logger = logging.getLogger("heatsink")
WORKERS = "workers"
TIDY_S = 0.25
LOSSES_S = 2.0
TARGETS_S = 1.0
BELL_S = 1.0
FAREWELL_S = 2.0
WORKERS_MAX = 10_000
LEGACY_PREFIX = "unpartitioned/"  # these share their own queue among themselves


class ConsumerSettings(msgspec.Struct, frozen=True):
    """What `hs.worker(actions, …)` may be told."""

    workers: int = 8
    """In each partition, until a coordinator decides otherwise."""
    workers_max: int = 256
    """The most of them in one partition."""
    lease_s: float = 10.0
    """How long a silent worker keeps its items."""
    member_s: float = 5.0
    """How long a silent process keeps its partitions."""
    grace_s: float = 8.0
    """What runs may take so long to finish when the process is told to end."""
    partitioned: bool = True
    """As in `BulkSettings`."""

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, 1, WORKERS_MAX)
        check_whole("workers_max", self.workers_max, self.workers, WORKERS_MAX)
        check_number("lease_s", self.lease_s, 0.1, 3_600)
        check_number("member_s", self.member_s, 0.1, 3_600)
        check_number("grace_s", self.grace_s, 0, 3_600)
        check_kind("partitioned", self.partitioned, bool)


class Consumer:
    """A process's part in running items: owns queue partitions, and workers in each of them."""

    def __init__(
        self,
        stores: QueueStores,
        bulk: Bulk,
        actions: Actions,
        settings: ConsumerSettings,
        name: str,
        clock: Clock,
        rng: Random,
        once: Once = no_store,
    ) -> None:
        self.name = name if settings.partitioned else LEGACY_PREFIX + name
        self.meter = WorkMeter()
        self._stores = stores
        self._bulk = bulk
        self._actions = actions.and_also(webhook_action(actions.webhooks))
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._once = once
        self._housekeeping = Housekeeping(stores, bulk, clock)
        self._targets = Targets()
        self._pumps: dict[int, Pump] = {}
        self._tasks: dict[Pump, asyncio.Task[None]] = {}
        self._stopped = asyncio.Event()
        self._is_cut_off = False

    @property
    def partitions(self) -> list[int]:
        """Those that this process owns now."""
        return sorted(self._pumps)

    @property
    def lost_items(self) -> int:
        """Items that batches have lost, if this process is the one that looks."""
        return self._housekeeping.lost_items

    @property
    def workers(self) -> dict[int, int]:
        """How many run in each of its partitions now."""
        return {partition: pump.pool.size for partition, pump in self._pumps.items()}

    async def run(self) -> None:
        """Until `stop` is called; then hands everything over and returns."""
        self._bulk.owner.check()
        rounds = (
            (self._balance, self._settings.member_s / 4),
            (self._tidy, TIDY_S),
            (self._look_for_losses, LOSSES_S),
            (self._follow_targets, TARGETS_S),
            (self._listen, 0.0),
        )
        loops = [asyncio.ensure_future(self._repeat(*one)) for one in rounds]
        try:
            await self._stopped.wait()
        finally:
            for pump in self._tasks:
                pump.pool.is_ending = True
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._close()
        if self._is_cut_off:
            raise Closed("the client was closed while its worker ran: stop the worker first")

    def stop(self) -> None:
        """Let `run` finish what is under way, give back the rest, and return."""
        self._stopped.set()

    async def _repeat(self, work: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while not self._bulk.is_closed:
            try:
                await work()
            except HeatsinkError as error:
                logger.info("%s: %s", self.name, error)
                await self._clock.sleep(TIDY_S)
            except Exception:
                logger.exception("%s: a round failed and is made again", self.name)
                await self._clock.sleep(TARGETS_S)
            await self._clock.sleep(pause_s)
        if not self._stopped.is_set():
            self._is_cut_off = True
            self._stopped.set()

    # -- sharing the partitions ------------------------------------------------------------

    async def _balance(self) -> None:
        ttl_ms = int(self._settings.member_s * 1000)
        everybody = await self._stores.fleet.join(self.name, list(self._actions), ttl_ms)
        members = [name for name in everybody if self._is_of_my_kind(name)]
        partitions = await self._all_partitions()
        await self._renew(ttl_ms)
        most = quota(self.name, members, len(partitions))
        mine = [partition for partition in self.partitions if partition in partitions]
        for partition in sorted({*self.partitions} - {*mine[:most]}):
            await self._hand_off(partition)  # also those that a lost plan had, and this one has not
        for partition in wanted_first(self.name, members, partitions):
            if len(self._pumps) >= most:
                break
            if partition not in self._pumps and await self._own(partition, ttl_ms):
                self._start(partition)
        self._forget_ended()

    def _is_of_my_kind(self, member: str) -> bool:
        return member.startswith(LEGACY_PREFIX) != self._settings.partitioned

    async def _all_partitions(self) -> list[int]:
        if not self._settings.partitioned:
            return [LEGACY]
        return list(range((await self._bulk.plan()).high_water))

    async def _own(self, partition: int, ttl_ms: int) -> bool | None:
        """None if there was no answer: partitions may be on several servers, and one be away."""
        workers = self._target(partition)
        try:
            return await self._stores.fleet.own(partition, self.name, ttl_ms, workers)
        except HeatsinkError as error:
            logger.info("%s: %s", self.name, error)
            return None

    async def _renew(self, ttl_ms: int) -> None:
        owned = await asyncio.gather(*(self._own(p, ttl_ms) for p in self.partitions))
        for partition, mine in zip(self.partitions, owned, strict=True):
            if mine is False:
                self._pumps.pop(partition).hand_off()

    def _start(self, partition: int) -> None:
        pump = Pump(
            partition,
            self._stores,
            self._actions,
            Terms(self.name, self._settings.lease_s, self._once),
            self.meter,
            self._clock,
            self._rng,
        )
        pump.pool.resize(self._target(partition))
        self._pumps[partition] = pump
        self._tasks[pump] = asyncio.ensure_future(pump.run())

    async def _hand_off(self, partition: int) -> None:
        pump = self._pumps.pop(partition)
        pump.hand_off()
        await pump.flush()
        await self._stores.fleet.disown(partition, self.name)

    def _forget_ended(self) -> None:
        for pump, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[pump]
                pump.pool.resize(0)
                if not task.cancelled() and (error := task.exception()):
                    logger.error("a pump failed", exc_info=error)
                    self._pumps = {
                        p: other for p, other in self._pumps.items() if other is not pump
                    }

    # -- the other rounds ------------------------------------------------------------------

    async def _tidy(self) -> None:
        for partition in self.partitions:  # one that is away must not keep the others waiting
            await self._quietly(self._housekeeping.tidy(partition))

    async def _look_for_losses(self) -> None:
        """The owner of the first partition looks at the batches, everybody at its own parts."""
        if self.partitions and self.partitions[0] <= 0:
            await self._quietly(self._housekeeping.look_at_batches())
        for partition in self.partitions:
            await self._quietly(self._housekeeping.look_at_parts(partition))

    async def _follow_targets(self) -> None:
        self._targets.apply(await self._stores.soft.read())
        for partition, pump in self._pumps.items():
            if pump.pool.size != self._target(partition):
                pump.pool.resize(self._target(partition))
                pump.ring()

    def _target(self, partition: int) -> int:
        decision = self._targets.get(f"partition:{partition}", WORKERS)
        wanted = self._settings.workers if decision is None else decision.value or 1
        return max(min(wanted, self._settings.workers_max), 1)

    async def _listen(self) -> None:
        for partition in await self._stores.bell.wait(BELL_S):
            if pump := self._pumps.get(partition):
                pump.ring()

    # -- ending ----------------------------------------------------------------------------

    async def _close(self) -> None:
        """Finish or give back what runs, then let others have the partitions at once."""
        pumps = list(self._tasks)
        grace_s = 0.0 if self._is_cut_off else self._settings.grace_s
        await asyncio.gather(*(pump.stop(grace_s) for pump in pumps), return_exceptions=True)
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=FAREWELL_S)  # the last outcomes are told
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for partition in self.partitions:
            await self._quietly(self._stores.fleet.disown(partition, self.name))
        await self._quietly(self._stores.fleet.leave(self.name))
        self._pumps.clear()
        self._tasks.clear()

    async def _quietly(self, call: Awaitable[object]) -> None:
        try:
            await call
        except HeatsinkError as error:
            logger.info("%s: %s", self.name, error)
