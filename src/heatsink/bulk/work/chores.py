"""What a partition's owner does beside running items: report ends, clear what was left behind."""

from __future__ import annotations

import logging

from heatsink.bulk import changes
from heatsink.bulk.batch import KEEP_MS, PartEnd, State
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.store import QueueStores, Verb
from heatsink.bulk.submit import LEFT_BEHIND, give_up
from heatsink.clock import Clock, now_ms
from heatsink.errors import HeatsinkError, NotFound

logger = logging.getLogger("heatsink")
VERBS: dict[State, Verb] = {"cancelling": "cancel", "paused": "pause"}


class Housekeeping:
    """An end is forgotten by its partition only after the batch's home and callback have it."""

    def __init__(self, stores: QueueStores, bulk: Bulk, clock: Clock) -> None:
        self._stores = stores
        self._bulk = bulk
        self._clock = clock

    async def tidy(self, partition: int) -> None:
        chores = await self._stores.queue.chores(partition, [])
        reported = [end for end in chores.ends if await self._report(end)]
        if reported:
            await self._stores.queue.chores(partition, reported)
        for part, batch, stamp in chores.stale:
            await self._clear(partition, part, batch, stamp)

    async def _report(self, end: PartEnd) -> bool:
        """Whether the end is known at home, with all that follows from it."""
        try:
            batch = await self._bulk.change(
                end.batch, lambda batch: changes.with_end(batch, end, now_ms(self._clock))
            )
            if batch.is_final:
                await self._bulk.tell_done(batch)
                await self._stores.batches.forget(batch.id, KEEP_MS)
        except NotFound:
            return True  # the batch is long forgotten
        except HeatsinkError as error:
            logger.info("the end of a part could not be reported: %s", error)
            return False
        return True

    async def _clear(self, partition: int, part: str, id: str, stamp: int) -> None:
        """A submission stopped half way: its batch's record says whether it was accepted."""
        batch = await give_up(self._stores.batches, id, LEFT_BEHIND, self._clock)
        steer = self._stores.queue.steer
        if batch is not None and part in {place.id for place in batch.parts}:
            verb = VERBS.get(batch.state, "release")
            await steer(partition, part, verb, batch.lap, batch.version)
        else:
            await steer(partition, part, "drop", 0, stamp)
