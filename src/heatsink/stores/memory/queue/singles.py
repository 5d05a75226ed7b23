"""Batches of one item in memory: one call accepts all that it brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from msgspec.structs import replace

from heatsink.bulk.plan import spot_of
from heatsink.bulk.store import Single
from heatsink.primitives.clock import Clock
from heatsink.primitives.slot_time import SlotWitness, Timed

from .homes import MemoryBatches, MemoryLimits
from .queue import MemoryQueue, QueuePartition


class MemorySingles(Timed):
    """Batches of one item, in partitions at the queue's home."""

    def __init__(
        self, clock: Clock, queue: MemoryQueue, batches: MemoryBatches, limits: MemoryLimits
    ) -> None:
        super().__init__(clock)
        self._queue = queue
        self._batches = batches
        self._limits = limits

    def seen_by(self, witness: SlotWitness) -> Self:
        view = super().seen_by(witness)
        view._queue = self._queue.seen_by(witness)
        view._limits = self._limits.seen_by(witness)
        return view

    async def accept(self, partition: int, singles: Sequence[Single]) -> list[bool]:
        queue, now_ms = self._queue.at(partition), self._queue.now_ms(partition)
        if spot_of(partition).url:
            return [False] * len(singles)
        waiting = 0  # singles of this call that wait for a claim
        answers = []
        for single in singles:
            is_new = await self._batches.get(single.record.id) is None
            answers.append(await self._accept(queue, single, now_ms))
            if (
                is_new
                and answers[-1]
                and (waiting or not self._hand_over(partition, single, now_ms))
            ):
                waiting += 1
        if waiting:
            self._queue.ring(partition)
        return answers

    def _hand_over(self, partition: int, single: Single, now_ms: float) -> bool:
        """Hand a single over that was just accepted, if there is a standing claim for it."""
        queue = self._queue.at(partition)
        request, share = queue.standing, queue.shares[single.part.id]
        taken = queue.hand_over(share.part, single.chunk.body, now_ms)
        if request is None or taken is None:
            return False
        self._queue.hand_over(partition, request.bell, taken, now_ms)
        return True

    async def _accept(self, queue: QueuePartition, single: Single, now_ms: float) -> bool:
        record = single.record
        if await self._batches.get(record.id) is None:
            if record.rate is not None and not self._limits.is_declared(record.lane, record.rate):
                return False
            is_rated = await self._limits.rate_of(record.lane) is not None
            part = replace(single.part, limited=single.part.limited or is_rated)
            queue.accept(part, single.chunk, self._batches, now_ms)
        return self._batches.accept(record)
