"""All partitions of a queue in memory."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from typing import Self

from heatsink.bulk.batch import Batch, PartEnd
from heatsink.bulk.items import Gap
from heatsink.bulk.slot_time import SlotTime, SlotWitness, time_after
from heatsink.bulk.store import (
    Chores,
    Chunk,
    Claimed,
    ClaimRequest,
    FailedItem,
    LivePart,
    Outcome,
    Part,
    PartCounts,
    PartitionLoad,
    Verb,
)
from heatsink.primitives.clock import Clock

from .partition import QueuePartition


class MemoryBell:
    """Wakes one process when a partition may have something new to claim."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung: set[int] = set()
        self._waiter: asyncio.Future[None] | None = None

    def ring(self, partition: int) -> None:
        self._rung.add(partition)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> set[int]:
        if not self._rung:
            self._waiter = asyncio.get_running_loop().create_future()
            pause = asyncio.ensure_future(self._clock.sleep(timeout_s))
            try:
                await asyncio.wait({self._waiter, pause}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
                self._waiter = None
        rung, self._rung = self._rung, set()
        return rung


class Timed:
    """A store whose slots keep their own time; each process has a view with its own `SlotWitness`.

    Views share all other state. So methods change shared objects in place and never rebind a field.
    """

    def __init__(self, clock: Clock, witness: SlotWitness | None = None) -> None:
        self._clock = clock
        self._witness = witness or SlotWitness(clock)

    def seen_by(self, witness: SlotWitness) -> Self:
        view = copy(self)
        view._witness = witness
        return view

    def as_of_now(self) -> Self:
        """A view for one call, with what the caller knows of the time when it sends the call."""
        return self.seen_by(self._witness.as_of_now())

    def _time(self, slot: str, known: SlotTime | None) -> SlotTime:
        return time_after(known, self._clock.now_s() * 1000, self._witness.evidence(slot))


class MemoryQueue(Timed):
    """All partitions of a queue."""

    def __init__(self, clock: Clock, witness: SlotWitness | None = None) -> None:
        super().__init__(clock, witness)
        self.partitions: defaultdict[int, QueuePartition] = defaultdict(QueuePartition)
        self.bells: list[MemoryBell] = []

    def seen_ms(self, partition: int) -> float:
        """The partition's time, for calls that only read."""
        return self._time(str(partition), self.partitions[partition].time).own_ms

    def now_ms(self, partition: int) -> float:
        """Advance the partition's time and return it."""
        queue = self.partitions[partition]
        queue.pass_time(self._time(str(partition), queue.time))
        return queue.time.own_ms if queue.time else 0.0

    def told_ms(self, partition: int) -> float:
        """Like `now_ms`, and let the caller's witness remember it."""
        now_ms, known = self.now_ms(partition), self.partitions[partition].time
        self._witness.heard(str(partition), known.told_ms if known else 0.0)
        return now_ms

    async def stage(self, partition: int, part: Part, chunks: Sequence[Chunk]) -> PartitionLoad:
        queue, now_ms = self.partitions[partition], self.now_ms(partition)
        queue.stage(part, chunks, now_ms)
        return queue.load(now_ms)

    async def steer(
        self,
        partition: int,
        part: str,
        verb: Verb,
        lap: int = 0,
        since: int = 0,
        record: Batch | None = None,
    ) -> bool:
        queue = self.partitions[partition]
        found = queue.steer(part, verb, lap, since, record, self.now_ms(partition))
        if verb in ("release", "resume", "retry"):
            for bell in self.bells:
                bell.ring(partition)
        return found

    async def claim(self, partition: int, request: ClaimRequest) -> Claimed:
        return self.partitions[partition].claim(request, self.told_ms(partition))

    async def settle(
        self, partition: int, outcomes: Sequence[Outcome], beats: Sequence[str], lease_ms: int
    ) -> list[str]:
        now_ms = self.now_ms(partition)
        return self.partitions[partition].settle(outcomes, beats, lease_ms, now_ms)

    async def chores(self, partition: int, reported: Sequence[PartEnd]) -> Chores:
        return self.partitions[partition].chores(reported, self.now_ms(partition))

    async def load(self, partition: int) -> PartitionLoad:
        return self.partitions[partition].load(self.seen_ms(partition))

    async def part(self, partition: int, part: str) -> PartCounts | None:
        return self.partitions[partition].part(part, self.seen_ms(partition))

    async def failures(self, partition: int, part: str, after: str, limit: int) -> list[FailedItem]:
        return self.partitions[partition].failures(part, after, limit)

    async def gaps(self, partition: int, part: str, chunks: int) -> list[Gap]:
        return self.partitions[partition].gaps(part, chunks)

    async def live_parts(self, partition: int, after: str, limit: int) -> list[LivePart]:
        return self.partitions[partition].live_parts(after, limit)

    async def record_of(self, partition: int, part: str) -> Batch | None:
        return self.partitions[partition].record_of(part)
