"""Batches of one item in Redis: one script accepts all that one call brings.

The script runs in the pipeline that also waits for the disk (`durability.py`). So the batches are
durable when the pipeline has ended. If the server restarts before, it confirms nothing. All
submissions of a process that wait at the same moment share the pipeline.

Records and parts are in different slots. So the script needs a server that has all slots, and a
partition that is at the queue's home.
"""

from __future__ import annotations

from collections.abc import Sequence

from heatsink.bulk.plan import spot_of
from heatsink.bulk.store import Single
from heatsink.stores.redis.connection import RedisRefused, Word

from .durability import RedisBarrier
from .homes import INDEX_KEEP_S, INDEX_MAX, text_of
from .keys import QueueKeys, QueuePlaces
from .queue import RedisQueue, part_words


class RedisSingles:
    """Batches of one item. The script behaves like `MemorySingles`."""

    def __init__(
        self, places: QueuePlaces, keys: QueueKeys, queue: RedisQueue, barrier: RedisBarrier
    ) -> None:
        self._keys = keys
        self._queue = queue
        self._barrier = barrier
        self._has_all_slots = places.home_address.kind != "cluster"

    async def accept(self, partition: int, singles: Sequence[Single]) -> list[bool]:
        if spot_of(partition).url or not self._has_all_slots:
            return [False] * len(singles)
        keys = self._keys
        kinds: dict[tuple[Word, ...], int] = {}
        each: list[Word] = []
        for single in singles:
            kind = kinds.setdefault(self._kind(single), len(kinds) + 1)
            each += (*self._words(single), kind)
        shared: list[Word] = [keys.bell, int(partition), keys.newest(), INDEX_MAX, INDEX_KEEP_S]
        words = [*shared, len(kinds), *(word for kind in kinds for word in kind), *each]
        is_lone = len(singles) == 1  # its worker is idle: it should not wait for the reply
        for whole in (False, True):
            try:
                command = self._queue.command("accept", partition, *words, whole=whole)
                answers = await self._barrier.run(partition, command, is_lone)
                return [answer == 1 for answer in answers]
            except RedisRefused as refused:
                if refused.code != "NOSCRIPT" or whole:
                    self._queue.check_moved(partition, refused)
                    raise
        raise AssertionError("Redis misses a script that the same call contains")

    def _words(self, single: Single) -> tuple[Word, ...]:
        record, part = single.record, single.part
        body, digest = single.chunk.body, f"{record.parts[0].digest:012x}"
        return (*part_words(part), body, digest, self._keys.batch(record.id), text_of(record))

    def _kind(self, single: Single) -> tuple[Word, ...]:
        """Return what the script is told once for all batches that have it in common."""
        record, keys = single.record, self._keys
        rate = record.rate
        return (
            *(keys.limit(record.lane), keys.newest(record.tenant)),
            *((rate.count, rate.period_s) if rate else ("", "")),
            0 if record.is_followed else record.keep_single_ms,
        )
