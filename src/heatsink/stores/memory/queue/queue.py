"""All partitions of a queue in memory."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from heatsink.bulk.batch import Batch, PartEnd
from heatsink.bulk.spans import Gap
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
from heatsink.clock import Clock

from .partition import Partition


class MemoryBell:
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


class MemoryQueue:
    """Time is the store's own, as it is with Redis."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.partitions: defaultdict[int, Partition] = defaultdict(Partition)
        self.bells: list[MemoryBell] = []

    def now_ms(self) -> float:
        return self._clock.now_s() * 1000

    async def stage(self, partition: int, part: Part, chunks: Sequence[Chunk]) -> PartitionLoad:
        queue = self.partitions[partition]
        queue.stage(part, chunks, self.now_ms())
        return queue.load(self.now_ms())

    async def steer(
        self,
        partition: int,
        part: str,
        verb: Verb,
        lap: int = 0,
        since: int = 0,
        record: Batch | None = None,
    ) -> bool:
        found = self.partitions[partition].steer(part, verb, lap, since, record, self.now_ms())
        if verb in ("release", "resume", "retry"):
            for bell in self.bells:
                bell.ring(partition)
        return found

    async def claim(self, partition: int, request: ClaimRequest) -> Claimed:
        return self.partitions[partition].claim(request, self.now_ms())

    async def settle(
        self, partition: int, outcomes: Sequence[Outcome], beats: Sequence[str], lease_ms: int
    ) -> list[str]:
        return self.partitions[partition].settle(outcomes, beats, lease_ms, self.now_ms())

    async def chores(self, partition: int, reported: Sequence[PartEnd]) -> Chores:
        return self.partitions[partition].chores(reported, self.now_ms())

    async def load(self, partition: int) -> PartitionLoad:
        return self.partitions[partition].load(self.now_ms())

    async def part(self, partition: int, part: str) -> PartCounts | None:
        return self.partitions[partition].part(part)

    async def failures(self, partition: int, part: str, after: str, limit: int) -> list[FailedItem]:
        return self.partitions[partition].failures(part, after, limit)

    async def gaps(self, partition: int, part: str, chunks: int) -> list[Gap]:
        return self.partitions[partition].gaps(part, chunks)

    async def live_parts(self, partition: int, after: str, limit: int) -> list[LivePart]:
        return self.partitions[partition].live_parts(after, limit)

    async def record_of(self, partition: int, part: str) -> Batch | None:
        return self.partitions[partition].record_of(part)
