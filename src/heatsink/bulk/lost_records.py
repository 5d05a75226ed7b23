"""Restores the records of batches that their server has lost, from copies in the parts.

The record of a batch and its parts may be on different servers. If the record's server loses it,
the record is restored from the newest copy in a part that still runs. A batch has one copy in each
of its partitions. If it has many parts in a partition, one for each group of its items, then one
part carries the copy, and the others name this part. So the copies do not grow with the square of
the number of groups. The copy is kept as long as any of these parts runs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from heatsink.errors import HeatsinkError

from . import changes
from .batch import Batch
from .store import LivePart, QueueStores

logger = logging.getLogger("heatsink")


class LostRecords:
    """Checks that the batches of running parts have their records.

    `call` calls the queue's servers, and retries. `inspect` compares a record with its parts.
    """

    def __init__(
        self,
        stores: QueueStores,
        call: Callable[..., Awaitable[Any]],
        inspect: Callable[[Batch], Awaitable[Batch]],
    ) -> None:
        self._stores = stores
        self._call = call
        self._inspect = inspect

    async def check(self, partition: int, parts: Sequence[LivePart]) -> None:
        """Check the records of the batches to which these running parts of a partition belong."""
        by_batch: dict[str, list[LivePart]] = {}
        for live in parts:
            by_batch.setdefault(live.batch, []).append(live)
        for id, mine in by_batch.items():
            known = await self._call(self._stores.batches.get, id)
            is_running = known is not None and known.is_sealed and not known.is_final
            listed = {place.id for place in known.parts} if known and is_running else set()
            for live in mine:
                if live.id not in listed:
                    await self.adopt(partition, live)

    async def adopt(self, partition: int, live: LivePart) -> None:
        """Check the record of the batch to which a running part belongs.

        Restore the record if it is lost or does not list the part. Cancel the part if the batch was
        cancelled, or if the part does not belong to the batch any more.
        """
        known = await self._call(self._stores.batches.get, live.batch)
        if known is None or not known.is_sealed:
            await self.rebuild(partition, live, known)
        elif not known.is_final and changes.has_part(known, live.id):
            return  # as it should be
        else:
            known = await self.rebuild(partition, live, known) or known
            if known.state == "lost" and changes.has_part(known, live.id):
                await self._inspect(known)  # the part was recorded as lost
            elif known.state == "cancelled" or not changes.has_part(known, live.id):
                # its server came back with old data, or its items are in another part now
                await self._cancel(partition, live, known)

    async def rebuild(self, partition: int, live: LivePart, known: Batch | None) -> Batch | None:
        """Restore a batch's record from the newest copy in its parts, if the copy is newer.

        `known` is the record that was found before. Returns the record that is stored now.
        """
        carried = await self._newest(partition, live)
        if carried is None:
            return known
        known = await self._call(self._stores.batches.get, live.batch)  # after the copy
        if known is not None and known.is_sealed and carried.version <= known.version:
            return known
        logger.error(
            "the queue's server lost the record of batch %r: restoring it from its parts",
            live.batch,
        )
        rebuilt = changes.rebuilt(carried, known)
        restored: Batch = await self._call(self._stores.batches.restore, rebuilt)
        return restored

    async def _newest(self, partition: int, live: LivePart) -> Batch | None:
        """Return the newest copy of the record in the batch's parts; None if there is no copy."""
        newest: Batch | None = await self._call(self._stores.losses.record_of, partition, live.id)
        places = newest.parts if newest else ()
        for place in {place.partition: place for place in places}.values():
            try:
                other = await self._stores.losses.record_of(place.partition, place.id)
            except HeatsinkError:
                continue  # that server does not answer
            if newest is not None and other is not None and other.version > newest.version:
                newest = other
        return newest

    async def _cancel(self, partition: int, live: LivePart, known: Batch) -> None:
        wish = ("cancel", known.lap, known.version)
        await self._call(self._stores.queue.steer, partition, live.id, *wish)
