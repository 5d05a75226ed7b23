"""The partitions of a queue in Redis: one Lua script per operation.

`stores/memory/queue` defines the behaviour of each operation, and the scripts behave the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from heatsink.bulk.batch import Batch, Gap, PartEnd
from heatsink.bulk.controls import CONTROL_PAGE, Controls
from heatsink.bulk.plan import PlaceClosed, Remains, spot_of
from heatsink.bulk.store import (
    RESULTS_PAGE_BYTES,
    Chores,
    Chunk,
    Claimed,
    ClaimRequest,
    FailedItem,
    Handover,
    KeptChunk,
    LaneDepth,
    LivePart,
    Outcome,
    Part,
    PartCounts,
    PartitionLoad,
    PartState,
    Slice,
    Verb,
)
from heatsink.stores.redis.connection import RedisRefused, Word

from .keys import QueueKeys, QueuePlaces, handle, handle_of_few
from .scripts import Script, SlotClock

_SHARED = ("clock numbers", "state rotation", "items")
_SHARED_BY_OWNERS = ("clock numbers",)  # they run often: loading the rest would cost more
_SHARED_BY_ACCEPT = ("clock lone numbers", "state rotation")
_SHARED_BY_LOADS = ("clock numbers", "state rotation", "items load")
_OPERATIONS = (
    *(
        "steer",
        "control",
        "claim",
        "settle",
        "chores",
        "part",
        "failures",
        "results",
        "gaps",
        "live_parts",
    ),
    "record_of",
    *("close_place", "learned", "prepare", "take_over", "finished", "copy_out", "copy_in"),
)
_OWNERSHIP = ("own", "disown")
_OTHERS = (
    (_OWNERSHIP, _SHARED_BY_OWNERS),
    (("stage", "load"), _SHARED_BY_LOADS),
    (("accept",), _SHARED_BY_ACCEPT),
)
_SLICE_WORDS = 5
_RESULT_BYTES = 12  # in the fields of a part: see `_info`. Parts of older versions lack it
CLOSED = "PLACE"  # the first word of the reply of a place that gave the partition away
NOT_OWNED = Claimed(False, [], [], False, None)
_INFO: msgspec.msgpack.Decoder[tuple[Any, ...]] = msgspec.msgpack.Decoder(tuple)
_END: msgspec.msgpack.Decoder[tuple[str, str, int, int, int, int]] = msgspec.msgpack.Decoder(
    tuple[str, str, int, int, int, int]
)
_BATCH = msgspec.msgpack.Decoder(Batch)
_STATE: msgspec.json.Decoder[PartState] = msgspec.json.Decoder(PartState)
_packed = msgspec.msgpack.Encoder().encode
NUMBERS = (  # in the order of scripts/shared/numbers.lua
    *("lap", "stamp", "since", "fresh", "next_chunk", "next_offset", "done", "failed"),
    *("cancelled", "running", "delayed", "suspects", "lost", "digest", "staged", "recorded"),
)
PART_SUFFIXES = (  # of a part's keys besides its own hash
    *("/chunks", "/notes", "/failures", "/reasons", "/missing", "/record", "/results"),
)
_GAUGES = ("waiting", "in_flight")
_TOTALS = (*("claimed", "done", "failed", "retried", "fenced", "expired", "workers", "used_us"),)
_SIGNS_OF_WORK = ("live", "tenants", "lanes", "expiry", "outbox", "staged")
DIGEST = 12  # digits, in the short form of a part
COUNTED = ("state", "packed", "at", "numbers", *NUMBERS)


class RedisQueue:
    """All partitions of a queue. Each method of `QueueStore` runs one script."""

    def __init__(self, places: QueuePlaces, keys: QueueKeys, keep_ms: int, time: SlotClock) -> None:
        self._places = places
        self._keys = keys
        self._keep_ms = keep_ms
        self._time = time
        self._scripts = {name: Script(f"partition/{name}", *_SHARED) for name in _OPERATIONS}
        for names, levels in _OTHERS:
            self._scripts |= {name: Script(f"partition/{name}", *levels) for name in names}

    async def run(
        self, operation: str, partition: int, *words: Word, together: bool = False
    ) -> Any:
        """Run the script `operation` on a partition, with the arguments `words`.

        With `together`, the call shares a pipeline with other calls.
        """
        connection, key = self._places.connection(partition), self._keys.partition(partition)
        now = f"{self._time.words(self._slot(partition))} {spot_of(partition).since}"
        try:
            return await self._scripts[operation].run(
                connection, key, now, *words, others=[f"{key}meta"], together=together
            )
        except RedisRefused as refused:
            self.check_moved(partition, refused)
            raise

    def command(
        self, operation: str, partition: int, *words: Word, whole: bool = False
    ) -> tuple[Word, ...]:
        """Return the command that runs the script `operation` on a partition.

        With `whole` it contains the script's text, for a server that does not have the script.
        """
        key = self._keys.partition(partition)
        now = f"{self._time.words(self._slot(partition))} {spot_of(partition).since}"
        others = [f"{key}meta"]
        return self._scripts[operation].words(key, now, *words, others=others, whole=whole)

    def check_moved(self, partition: int, refused: RedisRefused) -> None:
        """Raise `PlaceClosed` if a place refused a call because it gave the partition away."""
        if refused.code == CLOSED:
            raise closed_place(partition, refused.said) from None

    def heard(self, partition: int, told: bytes) -> None:
        """Remember the slot time of a partition, which one of its scripts returned."""
        self._time.heard(self._slot(partition), told)

    def _slot(self, partition: int) -> str:
        """Return the name of the partition's slot. At every place the slot has its own time."""
        return f"{self._keys.partition(partition)}{spot_of(partition).url}"

    async def stage(self, partition: int, part: Part, chunks: Sequence[Chunk]) -> PartitionLoad:
        words: list[Word] = [*part_words(part)]
        for chunk in chunks:
            words += (chunk.number, chunk.count, chunk.body)
        return _load(await self.run("stage", partition, *words))

    async def steer(
        self,
        partition: int,
        part: str,
        verb: Verb,
        lap: int = 0,
        since: int = 0,
        record: Batch | str | None = None,
    ) -> bool:
        kept = _packed(record) if isinstance(record, Batch) else b""
        carrier = _handle(record) if isinstance(record, str) else ""
        words = (_handle(part), verb, lap, since, self._keys.bell, partition, kept, carrier)
        return bool(await self.run("steer", partition, *words, together=bool(carrier)))

    async def control(self, partition: int, controls: Controls) -> bool:
        words: list[Word] = [controls.incarnation, controls.version, CONTROL_PAGE]
        for tenant, weight in controls.weights.items():
            words += (f"w{_purse(tenant)}", repr(weight))
        for tenant in sorted(controls.tenants):
            words += (f"t{_purse(tenant)}", 1)
        for action in sorted(controls.actions):
            words += (f"a{action}", 1)
        return bool(await self.run("control", partition, *words))

    async def claim(self, partition: int, request: ClaimRequest) -> Claimed:
        grants = _packed([(_lane(lane), allowed) for lane, allowed in request.grants.items()])
        unanswered = _packed(request.unanswered)
        words = (
            *(request.owner, request.attempt, request.want, request.lease_ms),
            *(grants, unanswered, request.controls.incarnation, request.controls.version),
            *(request.each_max, request.bell),
        )
        owned, told, *rest = await self.run("claim", partition, *words)
        self.heard(partition, told)
        return _claimed(rest, request.attempt, float(told)) if owned else NOT_OWNED

    async def settle(
        self, partition: int, outcomes: Sequence[Outcome], beats: Sequence[str], lease_ms: int
    ) -> list[str]:
        settled = _packed([_outcome(outcome) for outcome in outcomes])
        results = [body for outcome in outcomes for _, body in outcome.results]
        words: list[Word] = [lease_ms, settled, _packed(list(beats)), *results]
        lost = await self.run("settle", partition, *words)
        return [attempt.decode() for attempt in lost]

    async def chores(self, partition: int, reported: Sequence[PartEnd]) -> Chores:
        words: list[Word] = [self._keep_ms]
        for end in reported:
            words += (_handle(end.part), _packed(msgspec.structs.astuple(end)))
        ends, stale = await self.run("chores", partition, *words)
        return Chores(
            [PartEnd(*_END.decode(end)) for end in ends],
            [(part.decode(), batch.decode(), stamp) for part, batch, stamp in stale],
        )

    async def load(self, partition: int) -> PartitionLoad:
        """Read the partition's load, in a pipeline with the loads of other partitions.

        Only if items wait or run there, or if the partition has moved, run the script.
        """
        key = f"{self._keys.partition(partition)}meta"
        connection = self._places.connection(partition)
        words = await connection.run_together("HMGET", key, "moved", *_GAUGES, *_TOTALS)
        waiting, in_flight, *totals = (int(word or 0) for word in words[1:])
        if words[0] is not None or waiting or in_flight:
            return _load(await self.run("load", partition))
        return PartitionLoad(**dict(zip(_TOTALS, totals, strict=True)))

    async def is_idle(self, partition: int) -> bool:
        root = self._keys.partition(partition)
        keys = (f"{root}{name}" for name in _SIGNS_OF_WORK)
        return not await self._places.connection(partition).run_together("EXISTS", *keys)

    async def part(self, partition: int, part: str) -> PartCounts | None:
        found = await self.run("part", partition, _handle(part), together=True)
        if not found:
            return None
        state, *numbers, held = found
        return PartCounts(*(state.decode(), *numbers, held.decode()))

    async def failures(self, partition: int, part: str, after: str, limit: int) -> list[FailedItem]:
        found = await self.run("failures", partition, _handle(part), after, limit)
        return [
            FailedItem(place.decode(), offset, tries, reason.decode(), body or b"")
            for place, offset, tries, reason, body in found
        ]

    async def results(
        self, partition: int, part: str, chunks: Sequence[tuple[int, int]], with_items: bool
    ) -> list[KeptChunk]:
        words: list[Word] = [_handle(part), RESULTS_PAGE_BYTES, int(with_items)]
        words += [word for chunk in chunks for word in chunk]
        found = await self.run("results", partition, *words)
        return [
            KeptChunk(number, list(zip(kept[::3], kept[1::3], kept[2::3], strict=True)), body)
            for number, kept, body in found
        ]

    async def gaps(self, partition: int, part: str, chunks: int) -> list[Gap]:
        found = await self.run("gaps", partition, _handle(part), chunks)
        return [(chunk, offset, count) for chunk, offset, count in found]

    async def live_parts(self, partition: int, after: str, limit: int) -> list[LivePart]:
        first = _handle(after) if after else ""
        found = await self.run("live_parts", partition, first, limit)
        return [LivePart(part.decode(), batch.decode()) for part, batch in found]

    async def record_of(self, partition: int, part: str) -> Batch | None:
        record = await self.run("record_of", partition, _handle(part))
        return _BATCH.decode(record) if record else None


class RedisMoves:
    """Moves partitions between servers. Calls are at spots that `bulk/moving.py` chooses."""

    def __init__(self, queue: RedisQueue) -> None:
        self._run = queue.run

    async def close_place(self, partition: int, version: int, to: str) -> Remains:
        closed, parts, ends, items, is_same, moved_to = await self._run(
            "close_place", partition, version, to
        )
        return Remains(closed, parts, ends, items, bool(is_same), moved_to.decode())

    async def prepare(self, partition: int, version: int) -> int:
        return int(await self._run("prepare", partition, version))

    async def take_over(self, source: int, target: int, version: int) -> None:
        totals, service = await self._run("learned", source)
        words = (version, len(totals) // 2, *totals, *service)
        await self._run("take_over", target, *words)

    async def finished(self, partition: int, start: int, limit: int) -> list[str]:
        found = await self._run("finished", partition, start, limit)
        return [id.decode() for id in found]

    async def copy(self, source: int, target: int, version: int, part: str) -> None:
        for suffix in (*PART_SUFFIXES, ""):
            cursor = b"0"
            while True:
                page = await self._run("copy_out", source, _handle(part), suffix, cursor)
                kind, ttl_ms, following, *words = page
                if words:
                    sent = (_handle(part), suffix, kind, ttl_ms, cursor, *words)
                    await self._run("copy_in", target, version, *sent)
                cursor = following
                if cursor == b"0":
                    break


def closed_place(partition: int, said: str) -> PlaceClosed:
    """Return the error for the reply of a place that has given the partition away.

    The reply has the version of the move and the new place: `PLACE 5 redis://other:6379`.
    """
    _, version, *to = said.split(" ", 2)
    return PlaceClosed(partition, int(version), "".join(to))


def counts_of(words: Sequence[bytes | None]) -> PartCounts | None:
    """Return a part's counts from the values of its fields `COUNTED`, without its back-off.

    Returns None if the part is gone. A part that has lost one of these fields counts as gone, as in
    the scripts.
    """
    state, packed, at, written, *numbers = words
    if state is None or packed is None or (written is not None and at is None):
        return None
    if None in numbers[: int(written or 0)]:
        return None
    found = {name: int(word or 0) for name, word in zip(NUMBERS, numbers, strict=True)}
    ended = ("running", "done", "failed", "cancelled", "lost")
    return PartCounts(
        state=_STATE.decode(b'"%s"' % state),
        size=sum(found[name] for name in ("fresh", "delayed", "suspects", *ended)),
        done=found["done"],
        failed=found["failed"],
        cancelled=found["cancelled"],
        running=found["running"],
        delayed=found["delayed"],
        lost=found["lost"],
        lap=found["lap"],
        digest=found["digest"],
        chunks=found["staged"],
        recorded=found["recorded"],
    )


def short_counts_of(text: bytes) -> PartCounts:
    """Return the counts of a part in short form: its only item waits or runs."""
    running, digest = int(text[:1]), int(text[1 : DIGEST + 1], 16)
    return PartCounts("ready", 1, 0, 0, 0, running, 0, 0, 0, digest, 1, 0)


def _handle(part: str) -> str:
    return handle("part", part)


def part_words(part: Part) -> tuple[str, bytes]:
    """Return how scripts get a part: its name in keys, and its packed fields."""
    return _handle(part.id), _packed(_info(part))


def _purse(tenant: str) -> str:
    return handle_of_few("tenant", tenant)


def _lane(lane: str) -> str:
    return handle_of_few("lane", lane)


def _info(part: Part) -> tuple[Any, ...]:
    """Return the fields of a part, in the order of scripts/shared/numbers.lua.

    A hash of the tenant and a hash of the lane come before the fields that newer versions added.
    """
    fields = msgspec.structs.astuple(part)
    return *fields[:9], _purse(part.tenant), _lane(part.lane), *fields[9:]


def _outcome(outcome: Outcome) -> tuple[Any, ...]:
    setbacks = [msgspec.structs.astuple(setback) for setback in outcome.setbacks]
    words = outcome.attempt, outcome.marks, outcome.used_us, setbacks
    offsets = [offset for offset, _ in outcome.results]
    return (*words, offsets) if offsets else words


def _load(answer: Sequence[Any]) -> PartitionLoad:
    words = [*answer[:5], float(answer[5]), *answer[6:]]
    return PartitionLoad(*words)


def _claimed(answer: Sequence[Any], attempt: str, now_ms: float) -> Claimed:
    more, wake_ms, lanes, infos, bodies, slices, controlled, stands = answer
    depths = zip(lanes[::2], lanes[1::2], strict=True)
    parts = [_INFO.decode(info) for info in infos]
    return Claimed(
        True,
        list(_slices(attempt, parts, bodies, slices)),
        [LaneDepth(lane.decode(), int(waiting)) for lane, waiting in depths],
        bool(more),
        None if wake_ms < 0 else wake_ms,
        bool(controlled),
        now_ms if stands else 0.0,
    )


def handover_of(message: bytes) -> Handover:
    """Return what `accept.lua` sent to a bell."""
    partition, now_ms, attempt, size, rest = message[1:].split(b" ", 4)
    info, body = _INFO.decode(rest[: int(size)]), rest[int(size) :]
    (taken,) = _slices(attempt.decode(), [info], [body], [0, 0, 0, 1, 0])
    name = f"{attempt.decode()}:{taken.part}"
    return Handover(int(partition), float(now_ms), msgspec.structs.replace(taken, attempt=name))


def _slices(
    attempt: str, parts: list[tuple[Any, ...]], bodies: list[bytes], words: list[int]
) -> Iterable[Slice]:
    for number, at in enumerate(range(0, len(words), _SLICE_WORDS)):
        info, body, start, count, tries = words[at : at + _SLICE_WORDS]
        part, batch, tenant, action, submitted_ms, lane, limited = parts[info][:7]
        yield Slice(
            attempt=f"{attempt}:{number}",
            part=part,
            batch=batch,
            tenant=tenant,
            action=action,
            lane=lane,
            limited=limited,
            submitted_ms=submitted_ms,
            start=start,
            count=count,
            tries=tries,
            body=bodies[body],
            result_bytes=parts[info][_RESULT_BYTES] if len(parts[info]) > _RESULT_BYTES else 0,
        )
