"""The consumer: owns partitions of the queue in a worker process, and runs their items.

Any number of consumers may run. Each stays a member as long as it renews its membership. Members
divide the partitions evenly, so that no item waits for a member that lacks its action
(`division.py`). Each member tries the partitions in a different order, so that two members rarely
compete for a partition. Ownership only decides which consumer claims from a partition. Only the
lease of an item keeps two workers from running the item at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Never

from heatsink.bulk.actions import Actions, Once, declared_limits, no_store
from heatsink.bulk.batch import Batch, State
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.limits import LimitBook
from heatsink.bulk.plan import LEGACY, QueuePlan
from heatsink.bulk.settings import ConsumerSettings
from heatsink.bulk.store import QueueStores, Verb
from heatsink.bulk.submit import LEFT_BEHIND, give_up
from heatsink.errors import Closed, Conflict, HeatsinkError, InvalidInput, Misconfigured, Retryable
from heatsink.primitives.clock import Clock
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Targets

from .calling import Room
from .division import Division, consumer_name
from .handler_errors import HandlerErrors, give_back
from .pool import Terms
from .pump import Pump, WorkMeter
from .remote import Desk
from .webhooks import webhook_action

logger = logging.getLogger("heatsink")
Round = Callable[[], Awaitable[None]]
VERBS: dict[State, Verb] = {"cancelling": "cancel", "paused": "pause"}
WORKERS = "workers"
TIDY_S = 0.25
TIDY_PER_S = 1_024  # partitions: a process with more of them tidies each less often
ASK_S = 1.0  # how often to ask a partition whether it is idle
ASK_PER_S = 256  # partitions: a process with more of them asks each less often
OWN_AT_ONCE = 128  # partitions
CHORES_S = 60.0
ANNOUNCED = 3  # rounds for which a process's limits stay announced
LOSSES_S = 2.0
TARGETS_S = 1.0
LIMITS_S = 0.25
BELL_S = 1.0
FAREWELL_S = 2.0
CUT_OFF_S = 5.0  # how long a client that closes waits for its workers
PAGE = 100  # batches, or parts of a partition, that one round inspects
LOOK_PER_S = 500  # parts of batches that are compared with the batches' records
END_S = 0.000_25  # per part of a batch: pause after ends were added to its record


class Consumer:
    """Runs items of the queue, with several workers in each queue partition that it owns.

    Any number of processes may run a consumer::

        worker = hs.worker(actions, workers=16)
        await worker.run()  # until worker.stop()
    """

    if not TYPE_CHECKING:  # type checkers report it by themselves

        def __await__(self) -> Never:
            raise InvalidInput("a worker cannot be awaited: write `await worker.run()`")

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
        self.name = consumer_name(name, settings.partitioned)
        self.meter = WorkMeter()
        self._stores = stores
        self._bulk = bulk
        self._actions = actions.and_also(webhook_action(actions.webhooks), bulk.next_action)
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._once = once
        self._hooks = bulk.hooks
        self._errors = HandlerErrors(bulk.hooks, clock)
        self._housekeeping = Housekeeping(stores, bulk, clock)
        self._activity = Activity(stores, clock)
        self._division = Division(self.name, list(self._actions), settings.member_s, clock)
        self._targets = Targets()
        self._book = LimitBook(declared_limits(self._actions))
        self._pumps: dict[int, Pump] = {}
        self._tasks: dict[Pump, asyncio.Task[None]] = {}
        self._stopped, self._ended = asyncio.Event(), asyncio.Event()
        self._ended.set()
        self._is_cut_off = self._has_run = False
        self._state: Any = None
        self._room = None if settings.concurrency is None else Room(settings.concurrency)
        self._desk: Desk | None = None
        self._renewed_s = -inf

    def hand_over_at(self, desk: Desk) -> None:
        """Let remote workers run the items. This call must come before `run`."""
        self._desk, self._room, self.meter = desk, desk.demand, desk.meter

    @property
    def is_ready(self) -> bool:
        """Whether this process runs items: `worker.is_ready`

        It does if it has renewed its membership within `member_s`, and was not told to stop.
        """
        age_s = self._clock.monotonic_s() - self._renewed_s
        return age_s < self._settings.member_s and not self._stopped.is_set()

    @property
    def partitions(self) -> list[int]:
        """The queue partitions that this process owns now: `worker.partitions`"""
        return sorted(self._pumps)

    @property
    def lost_items(self) -> int:
        """The number of items that batches have lost, as of this process's last check.

        Only the owner of the first partition checks the batches. In other processes the number is
        0.
        """
        return self._housekeeping.lost_items

    @property
    def workers(self) -> dict[int, int]:
        """The current number of workers in each partition of this process: `worker.workers[3]`"""
        return {partition: pump.pool.size for partition, pump in self._pumps.items()}

    async def run(self) -> None:
        """Run items until `stop` is called, then give up the partitions and return.

        The lifespan of the `Actions` surrounds all of this. Raises `Closed` if the client is closed
        meanwhile, and `Misconfigured` if other workers declare a limit of these actions in another
        way. Errors of the lifespan are raised, too. A worker runs once: `run` raises `Conflict`
        while another call runs, and after a call that `stop` has ended::

            running = asyncio.create_task(hs.worker(actions).run())
        """
        self._bulk.owner.check()
        if self._has_run:
            raise Conflict("this worker runs or has run: make another one with hs.worker(actions)")
        self._has_run = True
        try:
            async with self._actions.living() as self._state:
                await self._run()
        finally:
            self._has_run = self._stopped.is_set()  # after an error, it may run again

    async def _run(self) -> None:
        rounds = (
            (self._balance, self._settings.member_s / 4),
            (self._tidy, TIDY_S),
            (self._look_for_losses, LOSSES_S),
            (self._find_work, TIDY_S),
            (self._follow_targets, TARGETS_S),
            (self._announce, self._settings.member_s),
            (self._follow_operators, LIMITS_S),
            (self._listen, 0.0),
        )
        self._ended.clear()
        try:
            with suppress(Retryable):  # the round repeats it
                await self._announce()
            await self._repeat_all(rounds)
        finally:
            self._ended.set()
        if self._is_cut_off:
            raise Closed("the client was closed while its worker ran: stop the worker first")

    async def _repeat_all(self, rounds: Iterable[tuple[Round, float]]) -> None:
        """Repeat all rounds until `stop`, then give everything back."""
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

    def stop(self) -> None:
        """Make `run` finish its running items, give back all other items, and return.

        Example::

            worker.stop()
            await running
        """
        self._stopped.set()

    async def cut_off(self) -> None:
        """Make `run` give everything back and raise `Closed`, because the client closes.

        Returns when `run` has done this, even if its task was cancelled before. Returns after
        `CUT_OFF_S` at the latest.
        """
        if not self._ended.is_set():
            self._is_cut_off = self._is_cut_off or not self._stopped.is_set()
            self._stopped.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), CUT_OFF_S)

    async def _repeat(self, work: Round, pause_s: float) -> None:
        while not self._bulk.is_closed:
            try:
                await work()
            except HeatsinkError as error:
                logger.info("%s: %s", self.name, error)
                await self._clock.sleep(TIDY_S)
            except Exception as error:
                self._hooks.failed(f"a background task of {self.name}", error)
                await self._clock.sleep(TARGETS_S)
            await self._clock.sleep(pause_s)
        if not self._stopped.is_set():
            self._is_cut_off = True
            self._stopped.set()

    # -- sharing the partitions ------------------------------------------------------------

    async def _balance(self) -> None:
        ttl_ms = int(self._settings.member_s * 1000)
        began_s = self._clock.monotonic_s()
        division, join = self._division, self._stores.fleet.join
        members, offered = await join(self.name, division.announced, ttl_ms)
        partitions = await self._all_partitions()
        await self._renew(ttl_ms)
        self._renewed_s = began_s
        share = division.share(members, offered, partitions, self.partitions)
        for partition in sorted({*self.partitions} - {*share.kept}):
            await self._hand_off(partition)  # also those that are not in the plan any more
        await self._take(share.called, share.most, ttl_ms)
        await self._take(share.others, share.even, ttl_ms)
        self._forget_ended()

    async def _take(self, wanted: list[int], most: int, ttl_ms: int) -> None:
        """Try to own these partitions in turn, until this process has `most`."""
        while wanted and len(self._pumps) < most:
            count = min(most - len(self._pumps), OWN_AT_ONCE)
            tried, wanted = wanted[:count], wanted[count:]
            owned = await asyncio.gather(*(self._own(partition, ttl_ms) for partition in tried))
            for partition, is_mine in zip(tried, owned, strict=True):
                if is_mine:
                    self._start(partition)

    async def _all_partitions(self) -> list[int]:
        if not self._settings.partitioned:
            return [LEGACY]
        return list(range((await self._bulk.plan()).high_water))

    async def _own(self, partition: int, ttl_ms: int) -> bool | None:
        """Take or renew ownership of a partition. Returns whether this consumer owns it now.

        Returns None if the partition's server does not answer, so nothing is known.
        """
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
        terms, clock, rng = self._terms(), self._clock, self._rng
        pump = Pump(partition, self._stores, self._actions, terms, self.meter, clock, rng)
        pump.pool.resize(self._target(partition))
        pump.obey(self._bulk.controls)
        self._activity.note(partition)
        self._pumps[partition] = pump
        self._tasks[pump] = asyncio.ensure_future(pump.run())

    def _terms(self) -> Terms:
        lease_s, once = self._settings.lease_s, self._once
        book, hooks = self._book, self._hooks
        shared = self._state, self._room, self._desk
        return Terms(
            *(self.name, lease_s, once, self._errors, book, hooks, *shared),
            mark=self._settings.mark,
            lacks=self._division.lacks,
        )

    async def _hand_off(self, partition: int) -> None:
        pump = self._pumps.pop(partition)
        pump.hand_off()  # what its standing claim still gets, `_listen` gives back
        await pump.flush()
        await self._stores.fleet.disown(partition, self.name)

    def _forget_ended(self) -> None:
        for pump, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[pump]
                pump.pool.resize(0)
                if not task.cancelled() and (error := task.exception()):
                    self._hooks.failed("the pump of a partition", error)
                    self._pumps = {
                        p: other for p, other in self._pumps.items() if other is not pump
                    }

    # -- the other rounds ------------------------------------------------------------------

    @property
    def _busy_partitions(self) -> list[int]:
        return [
            partition
            for partition, pump in sorted(self._pumps.items())
            if self._activity.is_busy(partition) or not pump.is_empty
        ]

    async def _find_work(self) -> None:
        """Wake pumps of partitions that are not idle: the bell may miss some work."""
        for partition, is_idle in await self._activity.ask(self.partitions):
            pump = self._pumps.get(partition)
            if pump is not None and is_idle and pump.is_empty:
                pump.rest()
            elif pump is not None and pump.rests:
                pump.ring()

    async def _tidy(self) -> None:
        busy = self._busy_partitions
        for partition in busy:  # one that fails must not hold up the others
            await self._quietly(self._housekeeping.tidy(partition))
        await self._clock.sleep(max(len(busy) / TIDY_PER_S - TIDY_S, 0.0))

    async def _look_for_losses(self) -> None:
        """Check the parts in this process's partitions for losses.

        The owner of the first partition also checks all batches.
        """
        if self.partitions and self.partitions[0] <= 0:
            await self._quietly(self._housekeeping.look_at_batches())
        for partition in self._busy_partitions:
            await self._quietly(self._housekeeping.look_at_parts(partition))

    async def _follow_operators(self) -> None:
        """Use the limits and the controls that operators have set."""
        is_new = self._book.change(self._bulk.settings.limits, self._bulk.controls)
        for pump in list(self._pumps.values()):
            pump.obey(self._bulk.controls)
            if is_new:
                pump.ask_again()

    async def _follow_targets(self) -> None:
        self._targets.apply(await self._stores.soft.read())
        for partition, pump in self._pumps.items():
            if pump.pool.size != self._target(partition):
                pump.pool.resize(self._target(partition))
                pump.ring()

    def _target(self, partition: int) -> int:
        decision = self._targets.get(Subject(Kind.WORKERS, str(partition)), WORKERS)
        wanted = self._settings.workers if decision is None else decision.value or 1
        return max(min(wanted, self._settings.workers_max), 1)

    async def _listen(self) -> None:
        for partition in await self._stores.bell.wait(BELL_S):
            if pump := self._pumps.get(partition):
                self._activity.note(partition)
                pump.ring()
        for handover in self._stores.bell.handovers():
            pump = self._pumps.get(handover.partition)
            self._activity.note(handover.partition)
            if pump is None or not pump.take_over(handover):
                await self._quietly(give_back(self._stores, handover))
        for offer in self._stores.bell.offers():
            if pump := self._pumps.get(offer.partition):
                pump.offered(offer.limit, offer.key)

    async def _announce(self) -> None:
        """Announce the limits of this process's actions, so that `submit` groups items by them.

        Raises `Misconfigured` if another live process declares a limit in another way.
        """
        own = self._book.own
        if self._book.is_empty:
            return
        ttl_ms = int(self._settings.member_s * ANNOUNCED * 1000)
        announced = await self._stores.places.declare(self.name, own, ttl_ms)
        for name, limit in own.limits.items():
            known = announced.limits.get(name, limit)
            if known != limit:
                raise Misconfigured(
                    f"limit {name!r} is declared as `{limit}` here, and as `{known}` by other "
                    "workers that run: declare it equally everywhere, or stop the others first",
                    field="limits",
                )

    # -- ending ----------------------------------------------------------------------------

    async def _close(self) -> None:
        """Finish or give back running items, then give up the partitions."""
        pumps = list(self._tasks)
        grace_s = 0.0 if self._is_cut_off else self._settings.grace_s
        await asyncio.gather(*(pump.stop(grace_s) for pump in pumps), return_exceptions=True)
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=FAREWELL_S)  # to send the last outcomes
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        disown = self._stores.fleet.disown
        await asyncio.gather(*(self._quietly(disown(p, self.name)) for p in self.partitions))
        await self._quietly(self._stores.fleet.leave(self.name))
        self._pumps.clear()
        self._tasks.clear()

    async def _quietly(self, call: Awaitable[object]) -> None:
        try:
            await call
        except HeatsinkError as error:
            logger.info("%s: %s", self.name, error)


class Activity:
    """Knows which partitions are idle, according to the store.

    The process asks the store about each of its partitions once a second, but about at most
    `ASK_PER_S` partitions a second. After `CHORES_S`, an idle partition counts as busy for a
    moment, so that old data is deleted.
    """

    def __init__(self, stores: QueueStores, clock: Clock) -> None:
        self._stores = stores
        self._clock = clock
        self._idle_since_s: dict[int, float] = {}
        self._asked_s: dict[int, float] = {}
        self._noted: set[int] = set()

    def is_busy(self, partition: int) -> bool:
        return partition not in self._idle_since_s

    def note(self, partition: int) -> None:
        """Remember that the partition has work, or may have."""
        self._idle_since_s.pop(partition, None)
        self._noted.add(partition)

    async def ask(self, partitions: Sequence[int]) -> list[tuple[int, bool]]:
        """Ask the store which of these partitions are idle, those asked longest ago first."""
        now_s = self._clock.monotonic_s()
        before_s = now_s - max(ASK_S, len(partitions) / ASK_PER_S) + TIDY_S / 2
        waiting = [p for p in partitions if self._asked_s.get(p, 0.0) <= before_s]
        due = sorted(waiting, key=lambda p: self._asked_s.get(p, 0.0))
        due = due[: int(max(ASK_PER_S * TIDY_S, 1))]
        self._asked_s = {p: self._asked_s.get(p, 0.0) for p in partitions} | dict.fromkeys(
            due, now_s
        )
        self._noted.clear()
        answers = await asyncio.gather(*map(self._ask, due))
        return [
            (p, is_idle) for p, is_idle in zip(due, answers, strict=True) if is_idle is not None
        ]

    async def _ask(self, partition: int) -> bool | None:
        try:
            is_idle = await self._stores.queue.is_idle(partition)
        except HeatsinkError:
            return None
        if is_idle and partition in self._noted:
            return None  # work came while the store answered
        now_s = self._clock.monotonic_s()
        if not is_idle or now_s - self._idle_since_s.get(partition, now_s) > CHORES_S:
            self.note(partition)
        else:
            self._idle_since_s.setdefault(partition, now_s)
        return is_idle


class Housekeeping:
    """The duties of a partition's owner besides running items.

    The owner reports ends of parts, removes parts of aborted submissions, and looks for data that
    servers have lost. A partition forgets that a part has ended only after the batch's record
    counts the end and the callback is submitted. `lost_items` is the number of lost items that
    nobody has submitted again, counted in the last pass over all batches.
    """

    def __init__(self, stores: QueueStores, bulk: Bulk, clock: Clock) -> None:
        self._stores = stores
        self._bulk = bulk
        self._clock = clock
        self._place = 0
        self._lost_so_far = 0
        self._after: dict[int, str] = {}
        self._look_s, self._tidy_s = 0.0, dict[int, float]()
        self.lost_items = 0

    async def tidy(self, partition: int) -> None:
        if (now_s := self._clock.monotonic_s()) < self._tidy_s.get(partition, 0.0):
            return
        chores = await self._stores.queue.chores(partition, [])
        if chores.ends:
            recorded, parts = await self._bulk.reconciler.record_ends(partition, chores.ends)
            self._tidy_s[partition] = now_s + parts * END_S
            if recorded:
                await self._stores.queue.chores(partition, recorded)
        for part, batch, stamp in chores.stale:
            await self._clear(partition, part, batch, stamp)

    async def _clear(self, partition: int, part: str, id: str, stamp: int) -> None:
        """Release a part whose submission stopped halfway, or drop it if its batch was not
        accepted.

        Before a part is dropped, the batch's record is durably marked as aborted. So a batch with a
        dropped part can never be accepted, even if a server loses its newest writes.
        """
        await give_up(self._stores.batches, id, LEFT_BEHIND, self._clock)
        (batch,) = await self._stores.barrier.batches([id])
        steer = self._stores.queue.steer
        if batch is not None and batch.is_sealed and part in {place.id for place in batch.parts}:
            verb = VERBS.get(batch.state, "release")
            await steer(partition, part, verb, batch.lap, batch.version, batch)
        elif batch is None or batch.state != "open":
            await steer(partition, part, "drop", 0, stamp)

    # -- looking for losses ----------------------------------------------------------------

    async def look_at_parts(self, partition: int) -> None:
        """Check that the batches of a page of running parts have their records. Restore them."""
        after = self._after.get(partition, "")
        parts = await self._stores.losses.live_parts(partition, after, PAGE)
        self._after[partition] = parts[-1].id if len(parts) == PAGE else ""
        await self._bulk.reconciler.records.check(partition, parts)

    async def look_at_batches(self) -> None:
        """Check that a page of running batches have their parts, and record what is lost."""
        if (now_s := self._clock.monotonic_s()) < self._look_s:
            return
        batches = await self._stores.batches.browse(self._place, PAGE)
        if not batches:
            self.lost_items, self._lost_so_far, self._place = self._lost_so_far, 0, 0
            return
        self._place += PAGE
        plan = await self._bulk.plan()
        looked = await asyncio.gather(*(self._look(batch, plan) for batch in batches))
        self._lost_so_far += sum(looked)
        self._look_s = now_s + sum(len(b.parts) for b in batches if not b.is_final) / LOOK_PER_S

    async def _look(self, batch: Batch, plan: QueuePlan) -> int:
        """Compare a batch's record with its parts, and repair it. Returns the number of lost items.

        Also restores the batch's rate limit and `plan`, if a server has lost them.
        """
        if not batch.is_sealed or (batch.is_final and batch.state != "lost"):
            return 0
        try:
            batch = await self._bulk.reconciler.inspect(batch)
            if not batch.is_final:
                await self._declare_again(batch)
                await self._drain_all([part.partition for part in batch.parts], plan)
        except HeatsinkError as error:
            logger.info("checking batch %r for losses failed: %s", batch.id, error)
        return batch.lost if batch.state != "cancelled" else 0

    async def _declare_again(self, batch: Batch) -> None:
        """Restore a rate limit that its server has lost."""
        limits, lane = self._stores.limits, batch.lane
        if batch.rate is not None and await limits.rate_of(lane) is None:
            await limits.declare(lane, batch.rate)

    async def _drain_all(self, partitions: Sequence[int], plan: QueuePlan) -> None:
        """Raise the plan's `high_water` if a batch has parts in `partitions` beyond it.

        A batch has such parts if the server has lost a change of the plan.
        """
        most = max(partitions, default=-1) + 1
        if most > plan.high_water:
            await self._stores.fleet.change(plan.reaching(most))
