"""What a partition's owner does beside running items.

It reports ends, clears what submissions left behind, and looks for what servers have lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from heatsink.bulk.batch import Batch, State
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.store import Plan, QueueStores, Verb
from heatsink.bulk.submit import LEFT_BEHIND, give_up, lane_of
from heatsink.clock import Clock
from heatsink.errors import HeatsinkError

logger = logging.getLogger("heatsink")
VERBS: dict[State, Verb] = {"cancelling": "cancel", "paused": "pause"}
PAGE = 100  # batches, or parts of a partition, that are looked at in one round


class Housekeeping:
    """An end is forgotten by its partition only after the batch's home and callback have it.

    `lost_items` are those that batches have lost and nobody has submitted again, by the last look
    at all of them.
    """

    def __init__(self, stores: QueueStores, bulk: Bulk, clock: Clock) -> None:
        self._stores = stores
        self._bulk = bulk
        self._clock = clock
        self._place = 0
        self._lost_so_far = 0
        self._after: dict[int, str] = {}
        self.lost_items = 0

    async def tidy(self, partition: int) -> None:
        chores = await self._stores.queue.chores(partition, [])
        if chores.ends:
            recorded = await self._bulk.reconciler.record_ends(partition, chores.ends)
            if recorded:
                await self._stores.queue.chores(partition, recorded)
        for part, batch, stamp in chores.stale:
            await self._clear(partition, part, batch, stamp)

    async def _clear(self, partition: int, part: str, id: str, stamp: int) -> None:
        """A submission stopped half way: its batch's record says whether it was accepted.

        It says so for good: what is dropped on one server must not be accepted on another that has
        lost its newest writes.
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
        """The records of parts that run must be there, some parts at a time."""
        after = self._after.get(partition, "")
        parts = await self._stores.losses.live_parts(partition, after, PAGE)
        self._after[partition] = parts[-1].id if len(parts) == PAGE else ""
        for part in parts:
            await self._bulk.reconciler.adopt(partition, part)

    async def look_at_batches(self) -> None:
        """The parts of batches that run must be there, some batches at a time."""
        batches = await self._stores.batches.browse(self._place, PAGE)
        if not batches:
            self.lost_items, self._lost_so_far, self._place = self._lost_so_far, 0, 0
            return
        self._place += PAGE
        plan = await self._bulk.plan()
        looked = await asyncio.gather(*(self._look(batch, plan) for batch in batches))
        self._lost_so_far += sum(looked)

    async def _look(self, batch: Batch, plan: Plan) -> int:
        """How many items it has lost."""
        if not batch.is_sealed or (batch.is_final and batch.state != "lost"):
            return 0
        try:
            batch = await self._bulk.reconciler.inspect(batch)
            if not batch.is_final:
                await self._declare_again(batch)
                await self._drain_all([part.partition for part in batch.parts], plan)
        except HeatsinkError as error:
            logger.info("batch %r could not be looked at: %s", batch.id, error)
        return batch.lost if batch.state != "cancelled" else 0

    async def _declare_again(self, batch: Batch) -> None:
        """A rate limit whose server has lost it."""
        limits, lane = self._stores.limits, lane_of(batch)
        if batch.rate is not None and await limits.rate_of(lane) is None:
            await limits.declare(lane, batch.rate)

    async def _drain_all(self, partitions: Sequence[int], plan: Plan) -> None:
        """A change of the number of partitions that was lost: there are parts beyond it."""
        most = max(partitions, default=-1) + 1
        if most > plan.high_water:
            await self._stores.fleet.change(Plan(plan.partitions, most, plan.version + 1))
