"""What a partition's owner does beside running items: report ends, clear what was left behind."""

from __future__ import annotations

import logging

from heatsink.bulk import changes
from heatsink.bulk.batch import PartEnd
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.store import QueueStores, Verb
from heatsink.clock import Clock, now_ms
from heatsink.errors import HeatsinkError, InvalidSetting

logger = logging.getLogger("heatsink")
KEEP_MS = 7 * 86_400_000


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
        for part, batch in chores.stale:
            await self._clear(partition, part, batch)

    async def _report(self, end: PartEnd) -> bool:
        """Whether the end is known at home, with all that follows from it."""
        try:
            batch = await self._bulk.change(
                end.batch, lambda batch: changes.with_end(batch, end, now_ms(self._clock))
            )
            if batch.is_final:
                await self._bulk.tell_done(batch)
                await self._stores.batches.forget(batch.id, KEEP_MS)
        except InvalidSetting:
            return True  # the batch is long forgotten
        except HeatsinkError as error:
            logger.info("the end of a part could not be reported: %s", error)
            return False
        return True

    async def _clear(self, partition: int, part: str, id: str) -> None:
        """A submission stopped half way: its batch's record says whether it was accepted."""
        batch = await self._stores.batches.get(id)
        verb: Verb = "drop"
        if batch is not None and batch.state == "open":
            return
        if batch is not None and part in {place.id for place in batch.parts}:
            verb = "cancel" if batch.state == "cancelling" else "release"
        await self._stores.queue.steer(partition, part, verb)
