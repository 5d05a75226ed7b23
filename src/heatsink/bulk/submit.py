"""How a batch gets in: staged chunk by chunk, accepted by one write, then released.

Nothing of a batch runs before it is sealed. Whatever dies on the way, the batch is either there
whole or not at all, and the same id can be submitted again: each submission stages parts of its
own (its *generation*), the first to seal wins, and what the others staged is dropped.

Who drops parts of a batch that is not sealed first raises the version of its record. So a seal of
the version that the submission began with finds all of its parts; after any other it must look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Iterable, Sequence
from hashlib import blake2b
from random import Random
from typing import Any

from msgspec.structs import replace

from heatsink.checks import each
from heatsink.clock import Clock, now_ms
from heatsink.errors import HeatsinkError, Overloaded

from . import changes
from .batch import Batch, PartPlace
from .fingerprint import Fingerprint
from .items import CHUNK_ITEMS_MAX, Chunker
from .patience import Patience
from .placement import less_loaded
from .store import BatchStore, Chunk, Part, PartitionLoad, QueueStores

logger = logging.getLogger("heatsink")
BLOCK_CHUNKS = 5  # staged with one call
CALLS_MAX = 4  # at once
FRESH_S = 15.0  # what nobody touches for long is taken for left behind
LEFT_MS = 120_000
LEFT_BEHIND = "its submission stopped half way"


class Submission:
    """One attempt to get one batch in."""

    def __init__(
        self,
        batch: Batch,
        partitions: Sequence[int],
        stores: QueueStores,
        patience: Patience,
        clock: Clock,
        rng: Random,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        self._batch = batch
        self._hand = partitions
        self._stores = stores
        self._patience = patience
        self._clock = clock
        self._rng = rng
        self._fingerprint = fingerprint
        self._generation = f"{rng.getrandbits(64):016x}"
        self._limited = False
        self._counts: dict[int, int] = {}
        self._chunks: dict[int, int] = {}
        self._loads: dict[int, float] = {}
        self._calls: list[asyncio.Task[None]] = []

    async def run(self, items: Iterable[Any] | AsyncIterable[Any]) -> Batch:
        lane = lane_of(self._batch)
        self._limited = await self._patience.call(self._stores.limits.rate_of, lane) is not None
        if now_ms(self._clock) - self._batch.submitted_ms > FRESH_S * 1000:
            await self._renew()  # the record of an earlier submission
        freshening = asyncio.ensure_future(self._stay_fresh())
        try:
            await self._stage_all(items)
            batch = await self._seal()
        except BaseException as error:
            await self._abort(error)
            raise
        finally:
            freshening.cancel()
        return batch

    # -- staging ---------------------------------------------------------------------------

    async def _stage_all(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        chunker, block = Chunker(), [(0, b"")][:0]
        async for item in each("items", items):
            if full := chunker.add(item):
                block.append(full)
                if len(block) == BLOCK_CHUNKS:
                    await self._stage(block)
                    block = []
            if self._fingerprint is not None:
                self._fingerprint.add(item)
        if rest := chunker.rest():
            block.append(rest)
        if block:
            await self._stage(block)
        await self._finish_calls(0)

    async def _stage(self, block: list[tuple[int, bytes]]) -> None:
        if not self._loads and len(self._hand) > 1:
            await self._look_at_loads()
        partition = less_loaded(self._hand, self._loads, self._rng)
        first = self._chunks.get(partition, 0)
        chunks = [Chunk(first + i, count, body) for i, (count, body) in enumerate(block)]
        items = sum(chunk.count for chunk in chunks)
        self._chunks[partition] = first + len(chunks)
        self._counts[partition] = self._counts.get(partition, 0) + items
        self._loads[partition] = self._loads.get(partition, 0.0) + items
        self._calls.append(asyncio.ensure_future(self._send(partition, chunks)))
        await self._finish_calls(CALLS_MAX - 1)

    async def _look_at_loads(self) -> None:
        known = await asyncio.gather(
            *(self._patience.call(self._stores.queue.load, p) for p in self._hand)
        )
        self._loads = dict(zip(self._hand, map(_weight, known), strict=True))

    async def _send(self, partition: int, chunks: list[Chunk]) -> None:
        await self._patience.call(
            self._stores.queue.stage, partition, self._part(partition), chunks
        )

    async def _stay_fresh(self) -> None:
        """However slowly the items come."""
        while True:
            await self._clock.sleep(FRESH_S)
            try:
                await asyncio.gather(self._touch(), self._renew())
            except HeatsinkError as error:
                logger.info("parts of batch %r were not kept fresh: %s", self._batch.id, error)

    async def _renew(self) -> None:
        wanted = replace(self._batch, renewed_ms=now_ms(self._clock))
        kept = await self._patience.call(self._stores.batches.update, wanted)
        self._batch = kept or self._batch

    async def _touch(self) -> None:
        await asyncio.gather(*(self._send(partition, []) for partition in list(self._counts)))

    async def _finish_calls(self, most: int) -> None:
        while len(self._calls) > most:
            done, _ = await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
            ended = [call for call in self._calls if call in done]
            self._calls = [call for call in self._calls if call not in done]
            await asyncio.gather(*ended)  # looks at all of them, and raises the first error

    def _part(self, partition: int) -> Part:
        batch = self._batch
        return Part(
            id=part_id(batch.id, self._generation, partition),
            batch=batch.id,
            tenant=batch.tenant,
            action=batch.action,
            submitted_ms=batch.submitted_ms,
            lane=lane_of(batch),
            limited=self._limited,
            weight=batch.weight,
            priority=batch.priority,
        )

    # -- sealing ---------------------------------------------------------------------------

    async def _seal(self) -> Batch:
        """The one write that accepts the batch. Somebody may have been faster with the same id."""
        if self._stores.scattered:
            await self._patience.call(self._stores.sync)
        parts = [PartPlace(self._part(p).id, p, n) for p, n in sorted(self._counts.items())]
        known, fingerprint = self._batch, self._fingerprint.text if self._fingerprint else ""
        while True:
            wanted = changes.sealed(
                known, self._generation, parts, now_ms(self._clock), fingerprint
            )
            kept = await self._patience.call(self._stores.batches.update, wanted)
            if kept is not None:
                return kept
            found = await self._patience.call(self._stores.batches.get, self._batch.id)
            if found is None:
                raise Overloaded("the queue lost its data while the batch was submitted")
            known = found
            if known.is_sealed:
                await self._drop_parts(keep=known)
                changes.check_same(known, replace(self._batch, fingerprint=fingerprint))
                return known
            await self._check_intact(parts)

    async def _check_intact(self, parts: Sequence[PartPlace]) -> None:
        """Touched, a part is not dropped any more by those who took it for stale."""
        await self._touch()
        for part in parts:
            counts = await self._patience.call(self._stores.queue.part, part.partition, part.id)
            if counts is None or counts.size != part.items:
                raise Overloaded("the submission stood still for so long that it was given up")

    async def _abort(self, error: BaseException) -> None:
        """Best effort: what is not dropped now, the partitions' owners drop later."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        reason = f"{type(error).__name__}: {error}"
        try:
            known = await give_up(self._stores.batches, self._batch.id, reason, self._clock)
            if known is None or known.state == "aborted":
                error.add_note(f"batch {self._batch.id!r} is aborted: nothing of it runs")
            await self._drop_parts(keep=known)
        except HeatsinkError:
            return

    async def _drop_parts(self, keep: Batch | None) -> None:
        kept = {part.id for part in keep.parts} if keep else set()
        for partition in self._counts:
            part = self._part(partition).id
            if part not in kept:
                await self._stores.queue.steer(partition, part, "drop")


async def give_up(batches: BatchStore, id: str, reason: str, clock: Clock) -> Batch | None:
    """Abort a batch unless it is sealed. Its record as it is then: no earlier seal can land."""
    while True:
        known = await batches.get(id)
        if known is None or known.is_sealed:
            return known
        kept = await batches.update(changes.aborted(known, reason, now_ms(clock)))
        if kept is not None:
            return kept


def is_left_behind(batch: Batch, at_ms: int) -> bool:
    """Whoever submitted it is gone."""
    return batch.state == "open" and at_ms - max(batch.submitted_ms, batch.renewed_ms) > LEFT_MS


def lane_of(batch: Batch) -> str:
    """An action's name has no slash, so no two pairs share a lane."""
    return f"{batch.action}/{batch.tenant}"


def part_id(batch: str, generation: str, partition: int) -> str:
    text = f"{generation}/{partition}/{batch}".encode()
    return blake2b(text, digest_size=12, person=b"part").hexdigest()


def _weight(load: PartitionLoad) -> float:
    return load.runnable + load.limited + load.in_flight + CHUNK_ITEMS_MAX * (load.tenants > 0)
