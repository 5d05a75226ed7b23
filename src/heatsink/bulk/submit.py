"""Submitting a batch: check the options, stage the items, seal the record, release the parts.

No item of a batch runs before the batch is sealed. Whichever process crashes, the batch exists as a
whole or not at all, and the same id can be submitted again. Each submission stages parts of its own
(its *generation*). The first submission to seal the record wins, and the parts of other submissions
are dropped.

A server may lose its newest writes at any moment, for example if the power fails before its log is
on disk, or if a replica that lags behind takes over. Therefore a submission goes through these
steps:

    stage     send every chunk to a part; keep the chunks that are not confirmed yet
    confirm   read every part back (items and checksum) and make it durable, in one pipeline;
              stage again what a server has lost meanwhile
    seal      one compare-and-set of the batch's record
    confirm   read the record back and make it durable, in one pipeline

If the record that was read back has no seal, the submission starts over at the first confirmation.
When the seal is durable, the parts are released and the call returns.

Before a process drops parts of an unsealed batch, it raises the version of the record. A submission
can seal the record only if the record still has the version that the submission began with. So when
the seal succeeds, no part of the submission was dropped.

A batch with lost items is restored in the same way: the submission stages only the lost items, and
the compare-and-set adds the submission's parts to the record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from heatsink.errors import HeatsinkError, IdReused, InvalidSetting, Overloaded
from heatsink.primitives.checks import check_names, check_number, check_text, each, shown
from heatsink.primitives.clock import Clock, now_ms
from heatsink.primitives.words import counted

from . import changes
from .batch import (
    CHUNK_ITEMS_MAX,
    FOLLOWING_BYTES_MAX,
    ITEM_BYTES_MAX,
    Batch,
    Chunker,
    Cursor,
    Packed,
    PartPlace,
    Run,
    add_chunk,
    digest_of,
    digests_added,
    encoded,
    plain,
)
from .flows import FlowOptions, flow_by
from .groups import Grouper, common_lane, is_grouped, of_group
from .reconcile import Patience
from .store import BatchStore, Chunk, Part, PartCounts, PartitionLoad, QueueStores

logger = logging.getLogger("heatsink")
HAND_SHARE = 4  # a batch uses at most one in four partitions
YIELD_ITEMS = 1_000  # items between two yields to the event loop
_in_order = msgspec.msgpack.Encoder(order="deterministic").encode
BLOCK_CHUNKS = 5  # chunks per call
CALLS_MAX = 4  # concurrent calls; four times as many while items are grouped
RUN_SHARE = 32  # consecutive calls to one partition: 1, later 1/32 of the calls so far
WINDOW_BYTES = 32 << 20  # unconfirmed chunks to keep, in case they must be staged again
CONFIRMS_MAX = 20  # failed confirmations in a row before the submission gives up
FRESH_S = 15.0  # how often a submission renews its record and parts
LEFT_MS = 120_000  # a record not renewed for so long is abandoned
LEFT_BEHIND = "the submission stopped halfway"
TEXT_MAX, PRIORITY_MAX = 256, 1_000
AHEAD_S_MAX = 366 * 86_400.0
SUBMIT_NAMES = ("tenant", "priority", "rate", "id", "on_done", "spread")

Spread = tuple[int, str]
"""A part of a submission: its partition and its lane."""


# -- options -------------------------------------------------------------------------------------


class BatchOptions(FlowOptions, total=False):
    """Further options of `hs.bulk.submit`, such as `delay=60`."""

    at: datetime | None
    """The time before which no item starts. It needs a time zone."""
    delay: float | timedelta | None
    """The time from now on before which no item starts, in seconds or as a `timedelta`."""


def check_options(options: BatchOptions, now_ms: int) -> dict[str, Any]:
    """Return the fields of the record that these options set. Raises `InvalidSetting`."""
    check_names("submit()", options, [*SUBMIT_NAMES, *BatchOptions.__annotations__])
    start_ms = start_of(options.get("at"), options.get("delay"), now_ms)
    has_more = options.keys() & FlowOptions.__annotations__.keys()
    return {"start_ms": start_ms, **(flow_by(options) if has_more else {})}


def start_of(at: object, delay: object, now_ms: int) -> int:
    """Return the time before which no item starts, in milliseconds; 0 without such a time.

    A time in the past is allowed: then items start immediately.
    """
    if at is not None and delay is not None:
        raise InvalidSetting("`at` and `delay` cannot be used together: leave one out", field="at")
    if at is not None:
        return _instant_ms(at, now_ms)
    if delay is None:
        return 0
    length_s = delay.total_seconds() if isinstance(delay, timedelta) else delay
    seconds = check_number("delay", length_s, 0, AHEAD_S_MAX, "seconds")
    return now_ms + round(seconds * 1000) if seconds else 0


def _instant_ms(at: object, now_ms: int) -> int:
    if not isinstance(at, datetime):
        raise InvalidSetting(
            f"`at` must be a datetime with a time zone, not {shown(at)}: for a number of seconds "
            "from now on, use delay",
            field="at",
        )
    if at.utcoffset() is None:
        raise InvalidSetting(
            "`at` needs a time zone: write datetime(…, tzinfo=UTC), or at.astimezone() for the "
            "zone of this machine",
            field="at",
        )
    at_ms = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if at_ms - now_ms > AHEAD_S_MAX * 1000:
        days = int(AHEAD_S_MAX / 86_400)
        raise InvalidSetting(f"`at` must be at most {days} days ahead, not {at}", field="at")
    return max(at_ms, 0)


def check_id(id: str) -> str:
    """Return the id that a caller chose for a batch. Raises `InvalidSetting`."""
    check_text("id", id, TEXT_MAX)
    if mark := next((mark for mark in changes.MARKS if mark in id), ""):
        why = f"id {shown(id)} contains {mark!r}, reserved for callbacks and follow-up batches"
        raise InvalidSetting(f"{why}: choose another", field="id")
    return id


# -- the steps -----------------------------------------------------------------------------------


class Submission:
    """One submission of a batch, or of the items that an accepted batch has lost."""

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
        self._restores = batch.is_sealed
        self._shard = partitions
        self._stores = stores
        self._patience = patience
        self._clock = clock
        self._rng = rng
        self._fingerprint = fingerprint
        self._generation = f"{rng.getrandbits(64):016x}"
        self._limited = False
        self._lane = common_lane(batch) if batch.limits else batch.lane
        self._staged: dict[Spread, Staged] = {}
        self._loads: dict[int, float] = {}
        self._calls: list[asyncio.Task[None]] = []
        self._blocks = 0
        self._run_left = 0
        self._partition = partitions[0]
        self._window_bytes = 0

    async def run(self, items: Iterable[Any] | AsyncIterable[Any]) -> Batch:
        lane, rate_of = self._batch.lane, self._stores.limits.rate_of
        is_rated = await self._patience.call(rate_of, lane) is not None
        self._limited = is_rated or bool(self._batch.limits)
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
        is_following = any(mark in self._batch.id for mark in changes.MARKS)
        most = FOLLOWING_BYTES_MAX if is_following else ITEM_BYTES_MAX
        chunker, block = Chunker(most), [Packed(0, 0, b"")][:0]
        wanted = Cursor(self._batch.missing) if self._restores else None
        if self._batch.limits and is_grouped(self._batch):
            await self._stage_groups(items, wanted)
            return
        async for given in each("items", items):
            item = given if type(given) is dict else plain(given)
            is_wanted = wanted is None or wanted.has(chunker.count)
            if full := chunker.add(item) if is_wanted else chunker.skip():
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
        if self._restores:
            self._check_same(chunker.count)

    async def _stage_groups(
        self, items: Iterable[Any] | AsyncIterable[Any], wanted: Cursor | None
    ) -> None:
        """Stage items with different limit keys: each set of keys gets a part of its own."""
        grouper, fingerprint = Grouper(self._batch, wanted), self._fingerprint
        async for lane, full in grouper.chunks(items, fingerprint.add if fingerprint else None):
            await self._stage([full], lane)
        await self._finish_calls(0)
        if self._restores:
            self._check_same(grouper.count)

    def _check_same(self, items: int) -> None:
        """Raise `IdReused` unless the submitted items are those with which the batch was accepted.

        `items` is the number of submitted items.
        """
        if items != self._batch.items:
            raise IdReused(
                f"items has {counted(items, 'item')}, but batch {self._batch.id!r} was accepted "
                f"with {self._batch.items:,}: submit the same items to restore what was lost"
            )
        if self._fingerprint is not None:
            changes.check_same(
                self._batch, replace(self._batch, fingerprint=self._fingerprint.text)
            )

    async def _stage(self, block: list[Packed], lane: str = "") -> None:
        """Send chunks to a part. A group's `lane` decides its partition."""
        partition = of_group(self._shard, lane) if lane else await self._next_partition()
        spread = partition, lane or self._lane
        staged = self._staged.setdefault(spread, Staged())
        chunks = [staged.add(full) for full in block]
        items = sum(chunk.count for chunk in chunks)
        self._loads[partition] = self._loads.get(partition, 0.0) + items
        self._calls.append(asyncio.ensure_future(self._send(spread, chunks)))
        self._window_bytes += sum(len(chunk.body) for chunk in chunks)
        if self._window_bytes > WINDOW_BYTES:
            await self._confirm()
        await self._finish_calls((4 * CALLS_MAX if lane else CALLS_MAX) - 1)

    async def _next_partition(self) -> int:
        """Return the partition for the next call, chosen as the less loaded of two random ones.

        Several calls in a row use the same partition. Their number grows with the batch, so that
        the batch's record, which stores runs of consecutive chunks, stays small.
        """
        if not self._loads and len(self._shard) > 1:
            await self._look_at_loads()
        if not self._run_left:
            self._partition = less_loaded(self._shard, self._loads, self._rng)
            self._run_left = max(self._blocks // RUN_SHARE, 1)
        self._blocks += 1
        self._run_left -= 1
        return self._partition

    async def _look_at_loads(self) -> None:
        known = await asyncio.gather(
            *(self._patience.call(self._stores.queue.load, p) for p in self._shard)
        )
        self._loads = dict(zip(self._shard, map(_weight, known), strict=True))

    async def _send(self, spread: Spread, chunks: list[Chunk]) -> None:
        await self._patience.call(self._stores.queue.stage, spread[0], self._part(spread), chunks)

    async def _stay_fresh(self) -> None:
        """Renew the record and the parts regularly, even while the caller's items come slowly."""
        while True:
            await self._clock.sleep(FRESH_S)
            try:
                await asyncio.gather(self._touch(), self._renew())
            except HeatsinkError as error:
                logger.info("renewing batch %r failed: %s", self._batch.id, error)

    async def _renew(self) -> None:
        if self._restores:
            return
        wanted = replace(self._batch, renewed_ms=now_ms(self._clock))
        kept = await self._patience.call(self._stores.batches.update, wanted)
        self._batch = kept or self._batch

    async def _touch(self) -> None:
        await asyncio.gather(*(self._send(spread, []) for spread in list(self._staged)))

    async def _finish_calls(self, most: int) -> None:
        while len(self._calls) > most:
            done, _ = await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
            ended = [call for call in self._calls if call in done]
            self._calls = [call for call in self._calls if call not in done]
            await asyncio.gather(*ended)  # raises the first error

    def _part(self, spread: Spread) -> Part:
        partition, lane = spread
        generation = self._generation if lane == self._lane else f"{self._generation}/{lane}"
        return part_of(self._batch, generation, partition, self._limited, lane)

    # -- confirming ------------------------------------------------------------------------

    async def _confirm(self) -> None:
        """Ensure that every part durably holds the chunks sent to it. Stage lost chunks again."""
        await self._finish_calls(0)
        places = self._places()
        if not places:
            return
        for _ in range(CONFIRMS_MAX):
            found = await self._patience.call(self._stores.barrier.parts, places)
            wrong = [
                (spread, counts)
                for spread, counts in zip(sorted(self._staged), found, strict=True)
                if not self._staged[spread].is_as_sent(counts)
            ]
            if not wrong:
                break
            for spread, counts in wrong:
                await self._stage_again(spread, counts)
        else:
            raise Overloaded("the queue's servers keep losing staged items: check the servers")
        for staged in self._staged.values():
            staged.confirm()
        self._window_bytes = 0

    async def _stage_again(self, spread: Spread, found: PartCounts | None) -> None:
        staged, partition = self._staged[spread], spread[0]
        if (found.size if found else 0) < staged.confirmed:
            raise Overloaded(
                f"the server of queue partition {partition} lost items after confirming them"
            )
        logger.warning(
            "the server of queue partition %s lost unconfirmed items of batch %r: "
            "staging them again",
            partition,
            self._batch.id,
        )
        for first in range(0, len(staged.window), BLOCK_CHUNKS):
            await self._send(spread, staged.window[first : first + BLOCK_CHUNKS])

    def _places(self) -> list[PartPlace]:
        return [
            PartPlace(
                self._part(spread).id,
                spread[0],
                staged.items,
                staged.digest,
                tuple(staged.runs),
            )
            for spread, staged in sorted(self._staged.items())
        ]

    # -- sealing ---------------------------------------------------------------------------

    async def _seal(self) -> Batch:
        """Accept the batch in one write, unless another submission of its id was accepted first.

        Returns the accepted batch.
        """
        known, batches = self._batch, self._stores.batches
        while True:
            await self._confirm()
            await self._patience.call(batches.update, self._accepted(known))
            (found,) = await self._patience.call(self._stores.barrier.batches, [known.id])
            if found is None:
                found = await self._reopened()
            if self._is_mine(found):
                return found
            if not self._may_go_on(found):
                await self._drop_parts(keep=found)
                fingerprint = self._fingerprint.text if self._fingerprint else ""
                changes.check_same(found, replace(self._batch, fingerprint=fingerprint))
                return found
            known = found
            await self._touch()  # so that the parts do not count as stale

    def _accepted(self, known: Batch) -> Batch:
        if self._restores:
            return changes.restored(known, self._places())
        fingerprint = self._fingerprint.text if self._fingerprint else ""
        now = now_ms(self._clock)
        return changes.sealed(known, self._generation, self._places(), now, fingerprint)

    async def _reopened(self) -> Batch:
        """Create the record again. Its server lost it before the call had returned."""
        if self._restores:
            raise Overloaded(f"the queue lost the record of batch {self._batch.id!r}")
        return await self._patience.call(self._stores.batches.open, self._batch)

    def _is_mine(self, found: Batch) -> bool:
        if self._restores:
            return {place.id for place in self._places()} <= {place.id for place in found.parts}
        return found.is_sealed and found.generation == self._generation

    def _may_go_on(self, found: Batch) -> bool:
        if not self._restores:
            return not found.is_sealed
        if found.missing and found.missing != self._batch.missing:
            raise Overloaded(f"batch {found.id!r} lost more items while it was restored")
        return changes.may_restore(found)

    async def _abort(self, error: BaseException) -> None:
        """Abort the batch and drop its parts, as far as servers answer.

        The owners of the partitions drop the remaining parts later.
        """
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        text = str(error)
        reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
        try:
            await give_up(self._stores.batches, self._batch.id, reason, self._clock)
            (known,) = await self._stores.barrier.batches([self._batch.id])
            if known is None or known.state == "aborted":
                error.add_note(f"batch {self._batch.id!r} is aborted: nothing of it runs")
            await self._drop_parts(keep=known)
        except HeatsinkError:
            return

    async def _drop_parts(self, keep: Batch | None) -> None:
        kept = {part.id for part in keep.parts} if keep else set()
        for spread in self._staged:
            part = self._part(spread).id
            if part not in kept:
                await self._stores.queue.steer(spread[0], part, "drop")


@dataclass
class Staged:
    """What a submission has sent to one partition; `window` holds the unconfirmed chunks."""

    chunks: int = 0
    items: int = 0
    digest: int = 0
    confirmed: int = 0
    runs: list[Run] = field(default_factory=list)
    window: list[Chunk] = field(default_factory=list)

    def add(self, full: Packed) -> Chunk:
        chunk = Chunk(self.chunks, full.count, full.body)
        self.chunks += 1
        self.items += full.count
        self.digest = digests_added(self.digest, digest_of(full.body))
        add_chunk(self.runs, full.first, full.count)
        self.window.append(chunk)
        return chunk

    def is_as_sent(self, found: PartCounts | None) -> bool:
        return (
            found is not None
            and found.state == "staged"
            and (found.size, found.chunks, found.digest) == (self.items, self.chunks, self.digest)
        )

    def confirm(self) -> None:
        self.confirmed = self.items
        self.window.clear()


class Fingerprint:
    """A digest of the items submitted under an id.

    The order of the items counts; the order of the fields in an object does not.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16, person=b"items")
        self._count = 0

    def add(self, item: object) -> None:
        try:
            body = _in_order(item)
        except TypeError:  # keys that cannot be sorted
            body = encoded(self._count, item)
        self._hash.update(body)
        self._count += 1

    async def add_all(self, items: Iterable[Any] | AsyncIterable[Any], clock: Clock) -> None:
        async for item in each("items", items):
            self.add(plain(item))
            if self._count % YIELD_ITEMS == 0:
                await clock.sleep(0)

    @property
    def text(self) -> str:
        return self._hash.hexdigest()


def fingerprint_of(item: object) -> str:
    """Return the fingerprint of a batch of one item."""
    fingerprint = Fingerprint()
    fingerprint.add(item)
    return fingerprint.text


def hand(
    batch: str, partitions: int, spread: bool = True, leaving: Container[int] = ()
) -> list[int]:
    """Return the queue partitions that a batch may use, the first choice first.

    `batch` is the batch's id. Every id selects its own subset of the partitions (shuffle sharding).
    Two batches rarely share their whole subset, so a batch that goes wrong slows down few other
    batches. With `spread=False` the subset is one partition. Partitions that are `leaving` their
    place are left out, unless all partitions are leaving.
    """
    size = max(partitions // HAND_SHARE, 1) if spread else 1
    ranked = sorted(range(partitions), key=lambda partition: _rank(batch, partition))
    staying = [partition for partition in ranked if partition not in leaving]
    return (staying or ranked)[:size]


def _rank(batch: str, partition: int) -> bytes:
    return blake2b(f"{partition}/{batch}".encode(), digest_size=8, person=b"hand").digest()


def less_loaded(hand: Sequence[int], loads: Mapping[int, float], rng: Random) -> int:
    """Return the less loaded of two random partitions: nearly as good as the least loaded one."""
    if len(hand) == 1:
        return hand[0]
    return min(rng.sample(hand, 2), key=lambda partition: loads.get(partition, 0.0))


async def give_up(batches: BatchStore, id: str, reason: str, clock: Clock) -> Batch | None:
    """Abort a batch unless it is sealed.

    Returns the record; None if there is none. A submission that began before this call can no
    longer seal the batch.
    """
    while True:
        known = await batches.get(id)
        if known is None or known.is_sealed:
            return known
        kept = await batches.update(changes.aborted(known, reason, now_ms(clock)))
        if kept is not None:
            return kept


def is_left_behind(batch: Batch, at_ms: int) -> bool:
    """Return whether the submitter seems dead: it has not renewed the record for `LEFT_MS`."""
    return batch.state == "open" and at_ms - max(batch.submitted_ms, batch.renewed_ms) > LEFT_MS


def part_of(
    batch: Batch, generation: str, partition: int, limited: bool = False, lane: str = ""
) -> Part:
    """Return a batch's part in a partition, for one submission of the batch."""
    return Part(
        id=part_id(batch.id, generation, partition),
        batch=batch.id,
        tenant=batch.tenant,
        action=batch.action,
        submitted_ms=batch.submitted_ms,
        lane=lane or batch.lane,
        limited=limited,
        weight=batch.weight,
        priority=batch.priority,
        start_ms=batch.start_ms,
        result_bytes=batch.result_bytes,
        keeps_items=batch.then is not None,
        keep_ms=batch.keep_ms,
    )


def part_id(batch: str, generation: str, partition: int) -> str:
    text = f"{generation}/{partition}/{batch}".encode()
    return blake2b(text, digest_size=12, person=b"part").hexdigest()


def _weight(load: PartitionLoad) -> float:
    return load.runnable + load.limited + load.in_flight + CHUNK_ITEMS_MAX * (load.tenants > 0)
