"""Calls to the queue's servers, which may be unreachable and may lose data.

While a server does not answer, `Patience` retries the call. If a partition has moved, the
`PartitionRouter` repeats the call at the new place. After a server has lost data, the `Reconciler`
compares a batch's record with its parts.

The record of a batch is stored in the batch's home slot. The parts with its items are stored in
partitions. The slot and the partitions may be on different servers. A server may lose its newest
writes or restart with an old file. Therefore:

- The record counts the end of a part only when the part is durable. The part remembers its end
  until a record that counts this end is durable.
- If a part is gone, the record counts the part as ended and its items as missing. So the batch
  reaches a final state. If the same items are submitted again, only the missing ones are restored.
- In each partition, a part carries a copy of the record: see `lost_records.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import Any, TypeVar

import msgspec

from heatsink.errors import (
    Closed,
    HeatsinkError,
    InvalidSetting,
    Overloaded,
    Retryable,
    Unavailable,
)
from heatsink.primitives.clock import Clock, now_ms
from heatsink.primitives.owner import CLOSED, Owner
from heatsink.primitives.retry import FailedAttempt, Pauses, Retrier, shortened

from . import changes, flows
from .actions import BUILT_IN
from .batch import KEEP_MS, Batch, PartEnd, PartPlace, Span, chunks_in, total
from .lost_records import LostRecords
from .plan import PlaceClosed, PlaceMarks, QueuePlan, Spot
from .store import (
    Barrier,
    FleetStore,
    LivePart,
    PartCounts,
    QueueStores,
    ServerHealth,
    Verb,
)

logger = logging.getLogger("heatsink")
Result = TypeVar("Result")
Step = Callable[[Batch], Batch]
PAUSES = Pauses(0.05, 1.0, jitter=0.5)
FIRST_S = 3.0  # for a queue that has never answered: its URL is probably wrong
PAGE = 512  # calls at a time
HOPS_MAX = 4  # how often one call follows a partition that moves
PARTITION_CALLS = frozenset(
    {
        *("stage", "steer", "control", "claim", "settle", "chores", "load", "part", "failures"),
        *("is_idle", "gaps", "live_parts", "record_of", "accept"),
    }
)


class Opening:
    """Opens the queue once, when the first call needs it."""

    def __init__(self, open_queue: Callable[[], Awaitable[None]]) -> None:
        self._open = open_queue
        self._turn = asyncio.Lock()
        self.is_open = False

    async def __call__(self) -> None:
        async with self._turn:
            if not self.is_open:
                await self._open()
                self.is_open = True


class Patience:
    """Retries calls to the queue store until the deadline. All these calls are idempotent."""

    def __init__(self, deadline_s: float, clock: Clock, rng: Random, opening: Opening) -> None:
        self._deadline_s = deadline_s
        self._clock = clock
        self._retrier = Retrier(PAUSES, clock, rng)
        self._opening = opening
        self.is_closed = False
        self.owner = Owner()

    async def open(self) -> None:
        self.owner.check()
        try:
            await self._opening()
        except Retryable as error:
            raise Unavailable(_never_reached(error)) from error

    async def call(self, method: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        self.owner.check()
        began_s, attempt = self._clock.monotonic_s(), partial(self._once, method, *arguments)
        try:
            return await attempt()
        except Retryable as error:
            return await self._retrier.after(error, attempt, partial(self._check, began_s))

    async def _once(self, method: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        if self.is_closed:
            raise Closed(CLOSED)
        if not self._opening.is_open:
            await self._opening()
        return await method(*arguments)

    def _check(self, began_s: float, refused: FailedAttempt) -> None:
        """Raise `Overloaded` if the next attempt would come after the deadline.

        If the queue has never answered this process, the deadline comes after `FIRST_S` at the
        latest.
        """
        error, deadline_s = refused.error, shortened(self._deadline_s)
        passed_s = refused.next_s - began_s
        if self._opening.is_open:
            if passed_s > deadline_s:
                said = f"the queue did not answer for {deadline_s:g} s ({error}): retry"
                raise Overloaded(said) from error
        elif passed_s > min(FIRST_S, deadline_s):
            never = Overloaded(_never_reached(error))
            never.add_note("nothing was accepted")
            raise never from error


def _never_reached(error: Retryable) -> str:
    why = str(error).partition(": retry later")[0]
    return f"the queue was never reached: {why}. Check its URL, and that its server runs"


async def check_known(stores: QueueStores, patience: Patience, wanted: Batch) -> list[str]:
    """Return the announced actions. Raise `InvalidSetting` if an action of the batch is missing.

    Without announced actions, every action is allowed, and so is every accepted batch.
    """
    known = await patience.call(stores.fleet.actions)
    callback = "" if "://" in wanted.on_done else wanted.on_done
    follows = flows.actions_of(wanted) if wanted.then or wanted.otherwise else ()
    for field, name in (("action", wanted.action), ("on_done", callback), *follows):
        if known and name and name not in known and not name.startswith(BUILT_IN):
            found = await patience.call(stores.batches.get, wanted.id)
            if found is None or not found.is_sealed:
                wrong = f"{field} {name!r} is unknown: workers have {', '.join(known[:20])}"
                raise InvalidSetting(wrong, field=field)
    return known


# -- partitions that move -------------------------------------------------------------------------


class PartitionRouter:
    """Sends each call to the server that holds the partition, by the router's copy of the plan.

    The plan says how many partitions the queue has, and which of them are on another Redis than the
    queue's home (its *places*). If a server answers that the partition has moved, the router reads
    the stored plan, adopts it and repeats the call at the new place. The router adopts a plan with
    places only if this plan is durable in the queue's home. Otherwise the home could lose the plan,
    and other processes would look for items in the wrong place. The router passes each call to one
    of `stores`, with a `Spot` (the partition and where it is) instead of a partition number.

    If the queue does not exist yet, its plan is `first`. This plan is stored only if it has places:
    without places, all partitions are at the queue's home anyway.
    """

    def __init__(self, stores: QueueStores, first: QueuePlan) -> None:
        self._stores = stores
        self._first = first
        self._turn = asyncio.Lock()
        self._plan: QueuePlan | None = None

    async def spot(self, partition: int) -> Spot:
        plan = self._plan or await self._refresh(None)
        return plan.spot(partition)

    async def call(
        self, method: Callable[..., Awaitable[Any]], partition: int, *arguments: Any
    ) -> Any:
        """Call `method` with the partition's spot. If the partition moves, follow it."""
        return await self.follow([partition], lambda spots: method(*spots, *arguments))

    async def follow(
        self, partitions: Sequence[int], call: Callable[[list[Spot]], Awaitable[Any]]
    ) -> Any:
        for _ in range(HOPS_MAX):
            plan = self._plan or await self._refresh(None)
            try:
                return await call([plan.spot(partition) for partition in partitions])
            except PlaceClosed:
                newer = await self._refresh(plan)
                if newer.routes == plan.routes:
                    raise
        raise Unavailable("the queue's partitions keep moving: retry later")

    async def _refresh(self, seen: QueuePlan | None) -> QueuePlan:
        """Adopt the stored plan, unless another call has already replaced the plan `seen`."""
        async with self._turn:
            if self._plan is not None and self._plan is not seen:
                return self._plan
            stored = await self._stores.fleet.plan(self._first, bool(self._first.places))
            return await self._adopted(stored)

    async def adopt(self, stored: QueuePlan) -> QueuePlan:
        """Follow a plan that was read from the store. Returns the plan that is in force then."""
        async with self._turn:
            return await self._adopted(stored)

    async def _adopted(self, stored: QueuePlan) -> QueuePlan:
        is_new = self._plan is None or self._plan.routes != stored.routes
        if is_new and any(stored.routes):
            stored = await self._durable(stored)
        self._plan = stored
        return stored

    async def _durable(self, stored: QueuePlan) -> QueuePlan:
        if await self._stores.fleet.durable() >= stored.version:
            return stored
        kept = await self._stores.barrier.plan()
        if kept is None:
            raise Unavailable("the queue's home lost the plan of the queue: retry")
        await self._stores.fleet.made_durable(kept.version)
        return kept


class _RoutedCalls:
    """The store `below`, with one difference: calls on partitions go to the partition's server."""

    def __init__(self, router: PartitionRouter, below: object) -> None:
        self._router = router
        self.below = below

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.below, name)
        if name not in PARTITION_CALLS:
            return found
        call = partial(self._router.call, found)
        self.__dict__[name] = call
        return call


class _RoutedFleet:
    """The fleet's store, but `own` calls the partition's server. Adopts plans that it reads."""

    def __init__(self, router: PartitionRouter, below: FleetStore) -> None:
        self._router = router
        self.below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)

    async def own(self, partition: int, consumer: str, ttl_ms: int, workers: int = 0) -> bool:
        owned: bool = await self._router.call(self.below.own, partition, consumer, ttl_ms, workers)
        return owned

    async def disown(self, partition: int, consumer: str, mark: str = "") -> None:
        await self._router.call(self.below.disown, partition, consumer, mark)

    async def plan(self, default: QueuePlan, keep: bool = True) -> QueuePlan:
        found = await self.below.plan(default, keep)
        is_stored = keep or found is not default
        return await self._router.adopt(found) if is_stored else found

    async def change(self, plan: QueuePlan) -> QueuePlan:
        return await self._router.adopt(await self.below.change(plan))


class _RoutedBarrier:
    def __init__(self, router: PartitionRouter, below: Barrier) -> None:
        self._router = router
        self.below = below

    async def parts(self, places: Sequence[PartPlace]) -> list[PartCounts | None]:
        def read(spots: list[Spot]) -> Awaitable[list[PartCounts | None]]:
            pairs = zip(places, spots, strict=True)
            return self.below.parts(
                [msgspec.structs.replace(place, partition=spot) for place, spot in pairs]
            )

        partitions = [place.partition for place in places]
        found: list[PartCounts | None] = await self._router.follow(partitions, read)
        return found

    async def batches(self, ids: Sequence[str]) -> list[Batch | None]:
        return await self.below.batches(ids)

    async def plan(self) -> QueuePlan | None:
        return await self.below.plan()

    async def place(self, partition: int, parts: Sequence[str] = ()) -> PlaceMarks:
        return await self.below.place(partition, parts)


def routed(stores: QueueStores, first: QueuePlan) -> QueueStores:
    """Return the stores of one process. Calls find partitions by the process's copy of the plan."""
    router = PartitionRouter(stores, first)

    def calls(store: object) -> Any:
        return _RoutedCalls(router, store)

    def fleet(store: FleetStore) -> Any:
        return _RoutedFleet(router, store)

    async def health(partitions: Sequence[int]) -> list[ServerHealth]:
        return await stores.health([await router.spot(partition) for partition in partitions])

    return dataclasses.replace(
        stores,
        queue=calls(stores.queue),
        singles=calls(stores.singles),
        losses=calls(stores.losses),
        fleet=fleet(stores.fleet),
        barrier=_RoutedBarrier(router, stores.barrier),
        health=health,
    )


# -- servers that lose data -----------------------------------------------------------------------


class Reconciler:
    """Compares the records of batches with the parts of these batches, and repairs the records.

    `tell_done` submits a batch's completion callback.
    """

    def __init__(
        self,
        stores: QueueStores,
        patience: Patience,
        clock: Clock,
        tell_done: Callable[[Batch], Awaitable[None]],
    ) -> None:
        self._stores = stores
        self._patience = patience
        self._clock = clock
        self._tell_done = tell_done
        self.records = LostRecords(stores, patience.call, self.inspect)

    async def change(self, id: str, step: Step) -> Batch:
        """Store `step(record)` as the batch's new record, and return the new record.

        If another process changes the record at the same time, `step` is applied to its result.
        """
        while True:
            found = await self._patience.call(self._stores.batches.get, id)
            batch = changes.check_found(found, id)
            wanted = step(batch)
            if wanted == batch:
                return batch
            kept = await self._patience.call(self._stores.batches.update, wanted)
            if kept is not None:
                return kept

    async def outlook(
        self, batch: Batch, counts: Sequence[PartCounts], left: int
    ) -> tuple[float | None, str]:
        """Return `eta_s` and `reason` of `Progress`. `left` is the number of unfinished items."""
        if batch.is_final or not left or batch.state == "paused":
            eta_s = None if left and batch.state == "paused" else 0.0
            return eta_s, changes.reason(batch, [batch.action])
        call, limits = self._patience.call, self._stores.limits
        offered, now = await call(self._stores.fleet.offered), now_ms(self._clock)
        waits = changes.reason(batch, offered) or changes.waits_to_start(batch, now)
        if reason := waits or changes.held_back(batch, counts):
            return None, reason
        rate = await call(limits.rate_of, batch.lane)
        start_ms = 0.0 if rate is None else (await call(limits.reserve, batch.lane, 0, 0)).then_ms
        ahead = changes.ahead_of(counts, left, rate, start_ms)
        reason = changes.waits_for(ahead, batch, offered)
        return changes.eta_s(batch, ahead, now_ms(self._clock)), reason

    # -- ends of parts ---------------------------------------------------------------------

    async def record_ends(
        self, partition: int, ends: Sequence[PartEnd]
    ) -> tuple[list[PartEnd], int]:
        """Add the ends of parts of one partition to the records of their batches.

        Returns the ends that the partition may forget: the batch's record with the end is durable
        and, if the batch has ended, its callback is submitted. Also returns how many parts the
        largest of these batches has.
        """
        places = [PartPlace(end.part, partition, end.items) for end in ends]
        found = await self._patience.call(self._stores.barrier.parts, places)
        sure = [
            end for end, counts in zip(ends, found, strict=True) if changes.has_ended(counts, end)
        ]
        by_batch: dict[str, list[PartEnd]] = {}
        for end in sure:
            by_batch.setdefault(end.batch, []).append(end)
        counted = await asyncio.gather(
            *(self._record_ends_of(partition, id, mine) for id, mine in by_batch.items())
        )
        known = await self._conclude(sorted(id for id, is_counted in counted if is_counted))
        most = max((len(batch.parts) for batch in known.values() if batch), default=0)
        return [e for id in known for e in changes.counted_ends(known[id], by_batch[id])], most

    async def _record_ends_of(
        self, partition: int, id: str, ends: Sequence[PartEnd]
    ) -> tuple[str, bool]:
        """Add the ends of a batch's parts to its record, in one change. Returns (id, success)."""
        try:
            batch = await self._get_or_rebuild(partition, id, ends)
            if batch is None:
                return id, True  # its record has expired, and no part has a copy
            missing = await self._missing(batch, ends)
            now = now_ms(self._clock)
            ended = await self.change(id, lambda b: changes.with_ends(b, ends, now, missing))
            _log_losses(batch, ended)
        except HeatsinkError as error:
            logger.info("recording ends of parts of batch %r failed: %s", id, error)
            return id, False
        return id, True

    async def _get_or_rebuild(
        self, partition: int, id: str, ends: Sequence[PartEnd]
    ) -> Batch | None:
        for end in ends:
            found = await self._patience.call(self._stores.batches.get, id)
            if found is not None and found.is_sealed:
                return found
            await self.records.adopt(partition, LivePart(end.part, id))
        return await self._patience.call(self._stores.batches.get, id)

    async def _missing(self, batch: Batch, ends: Sequence[PartEnd]) -> Mapping[str, Sequence[Span]]:
        """Return the items that the server of these ended parts has lost, by part."""
        places = {place.id: place for place in batch.parts}
        found: dict[str, Sequence[Span]] = {}
        for end in ends:
            place = places.get(end.part)
            if place is not None and place.items > end.items:
                found[end.part] = await self._gaps(place, place.items - end.items)
        return found

    async def _gaps(self, place: PartPlace, lost: int) -> tuple[Span, ...]:
        """Return the missing items of a part that has lost `lost` items.

        If the server does not know which items are missing, return all items of the part: an item
        that runs twice does less harm than an item that never runs.
        """
        gaps = await self._patience.call(
            self._stores.losses.gaps, place.partition, place.id, chunks_in(place.runs)
        )
        found = place.at(gaps)
        return found if total(found) >= lost else place.spans

    async def _conclude(self, ids: Sequence[str]) -> dict[str, Batch | None]:
        """Make the records of these batches durable.

        If a batch has ended, also submit its callback and let its record expire. Returns the
        durable records of the batches for which this succeeded; None for one without a record.
        """
        if not ids:
            return {}
        found = await self._patience.call(self._stores.barrier.batches, ids)
        told = await asyncio.gather(*(self._end(batch) for batch in found if batch))
        records = dict(zip(ids, found, strict=True))
        return {id: batch for id, batch in records.items() if batch is None or id in told}

    async def _end(self, batch: Batch) -> str:
        try:
            if batch.is_final:
                await self._tell_done(batch)
                await self._patience.call(
                    self._stores.batches.forget, batch.id, batch.keep_ms or KEEP_MS
                )
        except HeatsinkError as error:
            logger.info("concluding batch %r failed: %s", batch.id, error)
            return ""
        return batch.id

    # -- lost parts and items --------------------------------------------------------------

    async def inspect(self, batch: Batch) -> Batch:
        """Correct a batch's record where it differs from the batch's parts. Returns the record."""
        found = await self.counts(batch)
        odd = changes.odd_parts(batch, found)
        if not odd:
            return batch
        sure = await self._patience.call(self._stores.barrier.parts, odd)
        for place, counts in zip(odd, sure, strict=True):
            if counts is not None and counts.recorded > batch.version:
                live = LivePart(place.id, batch.id)
                return await self.records.rebuild(place.partition, live, batch) or batch
        missing, now = dict[str, Sequence[Span]](), now_ms(self._clock)
        news = [
            await self._news(batch, place, counts, missing)
            for place, counts in zip(odd, sure, strict=True)
        ]
        changed = await self.change(batch.id, lambda known: _repaired(known, news, missing, now))
        _log_losses(batch, changed)
        if changed.is_final:
            await self._conclude([batch.id])
        return changed

    async def counts(self, batch: Batch) -> list[PartCounts | None]:
        """Return the counts of each part; None for a part that does not exist."""
        call, ask = self._patience.call, self._stores.queue.part
        return await in_pages(partial(call, ask, each.partition, each.id) for each in batch.parts)

    async def _news(
        self,
        batch: Batch,
        place: PartPlace,
        counts: PartCounts | None,
        missing: dict[str, Sequence[Span]],
    ) -> PartEnd | Step:
        """Return the end of a part, or another change of the batch's record.

        Adds the part's lost items to `missing`.
        """
        if counts is None:
            missing[place.id] = place.spans
            return changes.gone(batch, place.id)
        if any(end.part == place.id for end in batch.ends):
            return lambda known: changes.found_again(known, place.id)
        lost = place.items - (counts.size - counts.lost)
        gaps = await self._gaps(place, lost) if changes.lacks(place, counts) else place.missing
        if counts.state != "finished":
            return lambda known: changes.short(known, place.id, gaps)
        missing[place.id] = gaps
        return PartEnd(batch.id, place.id, counts.lap, counts.done, counts.failed, counts.cancelled)

    # -- commands --------------------------------------------------------------------------

    async def tell_parts(self, batch: Batch, verb: Verb) -> bool:
        """Send the command `verb` to all parts. Returns False if a part does not exist.

        One part in each partition keeps the batch's record as its copy; the others name this part.
        """
        told = batch.told.items()
        return all(await asyncio.gather(*(self._tell(p, mine, batch, verb) for p, mine in told)))

    async def _tell(
        self, partition: int, places: Sequence[PartPlace], batch: Batch, verb: Verb
    ) -> bool:
        steer, wish = self._stores.queue.steer, (verb, batch.lap, batch.version)
        for at, place in enumerate(places):
            if not await self._patience.call(steer, partition, place.id, *wish, batch):
                continue
            others = places[at + 1 :]
            call = partial(self._patience.call, steer, partition)
            calls = (partial(call, other.id, *wish, place.id) for other in others)
            return all(await in_pages(calls)) and not at
        return not places


async def in_pages(calls: Iterable[Callable[[], Awaitable[Result]]]) -> list[Result]:
    """Make many calls, some of them at a time, so that the event loop is not blocked."""
    left, found = iter(calls), list[Result]()
    while page := list(islice(left, PAGE)):
        found += await asyncio.gather(*(call() for call in page))
    return found


def _log_losses(before: Batch, after: Batch) -> None:
    if after.lost > before.lost:
        logger.error("batch %r: %s", after.id, changes.reason(after, ()))


def _repaired(
    batch: Batch,
    found: Sequence[PartEnd | Step],
    missing: Mapping[str, Sequence[Span]],
    now_ms: int,
) -> Batch:
    ends: list[PartEnd] = []
    for each in found:
        if isinstance(each, PartEnd):
            ends.append(each)
        else:
            batch = each(batch)
    return changes.with_ends(batch, ends, now_ms, missing)
