"""Sends each call on a partition to the server that holds the partition.

A process keeps a copy of the queue's plan. If a server answers that the partition has moved, the
process reads the stored plan, adopts it and repeats the call at the new place. A process adopts a
plan with places only if this plan is durable in the queue's home. Otherwise the home could lose the
plan, and other processes would look for items where they are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from heatsink.errors import Unavailable

from .batch import Batch, PartPlace
from .plan import PlaceClosed, QueuePlan, Spot
from .store import Barrier, FleetStore, PartCounts, PlaceMarks, QueueStores, ServerHealth

HOPS_MAX = 4  # how often one call follows a partition that moves
PARTITION_CALLS = frozenset(
    {
        *("stage", "steer", "claim", "settle", "chores", "load", "part", "failures"),
        *("gaps", "live_parts", "record_of"),
    }
)


class Router:
    """This process's copy of the plan. `stores` are the stores below, which get spots.

    `first` is the plan of a queue that does not exist yet. It is stored only if it has places:
    without any, partitions are at the queue's home anyway.
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
        """Adopt the stored plan, unless another call has replaced the plan `seen` meanwhile."""
        async with self._turn:
            if self._plan is not None and self._plan is not seen:
                return self._plan
            stored = await self._stores.fleet.plan(self._first, bool(self._first.places))
            return await self._adopted(stored)

    async def adopt(self, stored: QueuePlan) -> QueuePlan:
        """Follow a plan that was read from the store. Returns the plan that is then followed."""
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
    """A store of partitions. All its other attributes are those of the store `below`."""

    def __init__(self, router: Router, below: object) -> None:
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
    """The fleet: owners are stored in the partitions, and whoever reads the plan follows it."""

    def __init__(self, router: Router, below: FleetStore) -> None:
        self._router = router
        self.below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)

    async def own(self, partition: int, consumer: str, ttl_ms: int, workers: int = 0) -> bool:
        owned: bool = await self._router.call(self.below.own, partition, consumer, ttl_ms, workers)
        return owned

    async def disown(self, partition: int, consumer: str) -> None:
        await self._router.call(self.below.disown, partition, consumer)

    async def plan(self, default: QueuePlan, keep: bool = True) -> QueuePlan:
        found = await self.below.plan(default, keep)
        is_stored = keep or found is not default
        return await self._router.adopt(found) if is_stored else found

    async def change(self, plan: QueuePlan) -> QueuePlan:
        return await self._router.adopt(await self.below.change(plan))


class _RoutedBarrier:
    def __init__(self, router: Router, below: Barrier) -> None:
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
    """Return the stores of one process, which finds partitions by its copy of the plan."""
    router = Router(stores, first)

    def calls(store: object) -> Any:
        return _RoutedCalls(router, store)

    def fleet(store: FleetStore) -> Any:
        return _RoutedFleet(router, store)

    async def health(partitions: Sequence[int]) -> list[ServerHealth]:
        return await stores.health([await router.spot(partition) for partition in partitions])

    return replace(
        stores,
        queue=calls(stores.queue),
        losses=calls(stores.losses),
        fleet=fleet(stores.fleet),
        barrier=_RoutedBarrier(router, stores.barrier),
        health=health,
    )
