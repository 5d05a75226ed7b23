"""Moves of partitions in memory. They define how every queue store must move them."""

from __future__ import annotations

from copy import deepcopy

from msgspec.structs import replace

from heatsink.bulk.plan import Remains

from .parts import PartShare
from .queue import MemoryQueue, QueuePartition


class MemoryMoves:
    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def close_place(self, partition: int, version: int, to: str) -> Remains:
        queue = self._queue.held(partition)
        left = [share for share in queue.shares.values() if share.state != "finished"]
        marks, is_target = queue.marks, queue.marks.prepared == version
        is_empty = not left and not queue.outbox and not queue.leases
        if is_empty and not is_target and marks.moved < version:
            marks = queue.marks = replace(marks, moved=version, to=to)
        items = sum(share.waiting + share.running for share in left)
        return Remains(marks.moved, len(left), len(queue.outbox), items, is_target, marks.to)

    async def prepare(self, partition: int, version: int) -> int:
        queue = self._queue.held(partition)
        if queue.marks.prepared >= version:
            return queue.marks.prepared
        is_holder = queue.since > max(queue.marks.moved, queue.marks.prepared)
        is_live = any(share.state != "finished" for share in queue.shares.values())
        if is_live or queue.outbox or (is_holder and queue.shares):
            return -1
        time, marks = queue.time, replace(queue.marks, prepared=version)
        queue.__dict__.update(QueuePartition(time=time, marks=marks, since=queue.since).__dict__)
        return version

    async def take_over(self, source: int, target: int, version: int) -> None:
        old = self._queue.held(source)
        await self.learn(target, version, dict(old.tally), old.rotation.learned())

    async def learn(
        self, target: int, version: int, tally: dict[str, int], service_us: dict[str, float]
    ) -> None:
        new = self._queue.held(target)
        if new.marks.prepared == version and new.since <= version:
            new.tally = dict(tally)
            new.rotation.take_over(service_us)

    async def finished(self, partition: int, start: int, limit: int) -> list[str]:
        shares = self._queue.held(partition).shares.values()
        ended = sorted(share.part.id for share in shares if share.state == "finished")
        return ended[start : start + limit]

    async def copy(self, source: int, target: int, version: int, part: str) -> None:
        share = self._queue.held(source).shares.get(part)
        if share is not None:
            await self.take(target, version, share)

    async def take(self, target: int, version: int, share: PartShare) -> None:
        new = self._queue.held(target)
        if new.marks.prepared == version:
            new.shares.setdefault(share.part.id, deepcopy(share))
