"""A batch: its items, stored in chunks, and its record.

Items are encoded one by one and numbered from 0. The record says what was
submitted, where the parts of the batch are, and how the parts ended. It also says which items are
in which part, so that Heatsink can name lost items. For this purpose the record stores *runs*. A
run is a sequence of consecutive chunks that have the same number of items. A large batch has a few
hundred runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b, sha1
from math import isfinite
from typing import Any, Literal

import msgspec

from heatsink.errors import InvalidBody, InvalidSetting
from heatsink.primitives.checks import shown

from .objects import LOSSY, changed, dumped, extension, is_object, lossy

State = Literal[
    "open", "running", "paused", "cancelling", "done", "failed", "lost", "cancelled", "aborted"
]
FINAL: frozenset[State] = frozenset(("done", "failed", "lost", "cancelled", "aborted"))
PERIODS_S = {"s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0}
PERIODS_S |= {"h": 3600.0, "hour": 3600.0}
KEEP_MS = 7 * 86_400_000  # how long the record of an ended or abandoned batch is kept
KEEP_SINGLE_MS = 3_600_000  # of a batch with one item that is done, and no id of the caller's
RATE_MAX = 10_000_000
ITEM_BYTES_MAX = 256 * 1024
FOLLOWING_BYTES_MAX = 16 * ITEM_BYTES_MAX  # an item with its result, in a chain of batches
CHUNK_BYTES_MAX = 256 * 1024
CHUNK_ITEMS_MAX = 100
ITEMS_MAX = 50_000_000
NAMED_MAX = 5  # spans that a message names
NOT_FINITE = (b"\xcb\x7f", b"\xcb\xff")  # how MessagePack begins NaN and infinity
UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, InvalidBody)

Span = tuple[int, int]
"""A range of items: the first index, and how many."""
Run = tuple[int, int, int]
"""Consecutive chunks: the first item, the number of chunks, and the items in each."""
Gap = tuple[int, int, int]
"""Missing items of a chunk: the chunk's number, the offset of the first missing item in the chunk,
and how many items are missing (-1: all items up to the end of the chunk)."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any], ext_hook=extension).decode
decoded_value = msgspec.msgpack.Decoder().decode


# -- the record --------------------------------------------------------------------------------


class Rate(msgspec.Struct, frozen=True):
    """At most `count` items may start in any period of `period_s` seconds."""

    count: int
    period_s: float = 1.0

    @property
    def per_s(self) -> float:
        """How many items may start per second."""
        return self.count / self.period_s

    def __str__(self) -> str:
        unit = next(name for name, length_s in PERIODS_S.items() if length_s == self.period_s)
        return f"{self.count}/{unit}"


def parse_rate(text: str) -> Rate:
    count, slash, unit = text.partition("/") if isinstance(text, str) else ("", "", "")
    number = count.strip()
    whole = number.isascii() and number.isdecimal()
    if not slash or not whole or unit.strip() not in PERIODS_S or not 0 < int(number) <= RATE_MAX:
        raise InvalidSetting(
            f"rate must be like '500/s', '30000/min' or '100/h', not {shown(text)}", field="rate"
        )
    return Rate(int(number), PERIODS_S[unit.strip()])


class Next(msgspec.Struct, frozen=True):
    """A batch that follows another one: `then=Next("pack", rate="10/s", then="ship")`.

    It has the tenant of the batch that it follows, and its priority if `priority` is 0. With
    `each`, a result is a list, and each of its values becomes an item.
    """

    action: str
    rate: str | None = None
    priority: int = 0
    results: Literal["keep"] | None = None
    each: bool = False
    then: Next | str | None = None
    otherwise: Next | str | None = None


class PartEnd(msgspec.Struct, frozen=True):
    """How many items of a part were done, failed and cancelled when the part ended.

    The partition reports this to the batch's record. A part ends again after each `retry_failed`:
    `lap` says how many calls of `retry_failed` came before this end.
    """

    batch: str
    part: str
    lap: int
    done: int
    failed: int
    cancelled: int

    @property
    def items(self) -> int:
        """The number of items with a result; 0 if a server lost the whole part."""
        return self.done + self.failed + self.cancelled


class PartPlace(msgspec.Struct, frozen=True):
    """What a batch's record says about one part of the batch.

    The part is in queue partition `partition`. `runs` say which items the part holds: `(0, 3, 100)`
    means 3 chunks of 100 items each, from item 0 on. `digest` is the checksum of these items.
    `missing` are items that the partition's server has lost. `moved` are lost items that were
    submitted again and are now in another part.
    """

    id: str
    partition: int
    items: int
    digest: int = 0
    runs: tuple[Run, ...] = ()
    missing: tuple[Span, ...] = ()
    moved: tuple[Span, ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The items that the part should hold: all items that were staged, except `moved` ones."""
        return without(spans_of(self.runs), self.moved)

    def at(self, gaps: Iterable[Gap]) -> tuple[Span, ...]:
        """Return the items of the part that are in these gaps, without `moved` items."""
        return without((span_of_gap(self.runs, gap) for gap in gaps), self.moved)


class Batch(msgspec.Struct, frozen=True):
    """The record of a batch.

    `generation` distinguishes submissions with the same id. At most one of these submissions is
    ever sealed, that is, accepted. Before the batch is sealed, the submitter regularly renews
    `renewed_ms`. `lap` counts how often `retry_failed` has retried the failed items. `on_done` is
    an action or a URL. `trace` is the trace in which the batch was submitted. `fingerprint` is a
    digest of the items, if the caller chose the id. `restored` counts how often lost items were
    submitted again. `tag` is a digest of the record. It distinguishes records with the same
    version, since a server that lost its newest writes may assign a version twice. No item starts
    before `start_ms`. With `result_bytes`, the queue keeps what handlers return: at most this many
    bytes per item. The batch is kept for `keep_ms` after its end; 0 means `KEEP_MS`. When the batch
    has ended, `then` gets the items that are done, and `otherwise` those that failed. `limits` are
    the limits that the action had when the batch was opened, each as the fields of a `Counting`.
    """

    id: str
    action: str
    tenant: str
    submitted_ms: int
    state: State = "open"
    generation: str = ""
    priority: int = 0
    weight: float = 1.0
    rate: Rate | None = None
    on_done: str = ""
    items: int = 0
    parts: tuple[PartPlace, ...] = ()
    ends: tuple[PartEnd, ...] = ()
    lap: int = 0
    ended_ms: int = 0
    reason: str = ""
    version: int = 0
    renewed_ms: int = 0
    trace: str = ""
    fingerprint: str = ""
    restored: int = 0
    tag: str = ""
    start_ms: int = 0
    result_bytes: int = 0
    keep_ms: int = 0
    then: Next | None = None
    otherwise: Next | None = None
    limits: tuple[tuple[str, str, str], ...] = ()

    def next(self) -> Batch:
        """Return the record with the next version and a new tag, as it will be stored."""
        newer = msgspec.structs.replace(self, version=self.version + 1, tag="")
        return newer.tagged()

    def tagged(self) -> Batch:
        digest = blake2b(_encode(msgspec.structs.replace(self, tag="")), digest_size=8)
        return msgspec.structs.replace(self, tag=digest.hexdigest())

    @property
    def missing(self) -> tuple[Span, ...]:
        """The items that servers are known to have lost."""
        return merged(span for part in self.parts for span in part.missing)

    @property
    def lost(self) -> int:
        return total(self.missing)

    @property
    def told(self) -> dict[int, list[PartPlace]]:
        """The parts that get commands, by partition: all parts that are not recorded as lost.

        The newest part of a partition comes first.
        """
        ends, found = {end.part: end.items for end in self.ends}, dict[int, list[PartPlace]]()
        for place in reversed(self.parts):
            if ends.get(place.id) != 0 or not place.items:
                found.setdefault(place.partition, []).append(place)
        return found

    @property
    def lane(self) -> str:
        """The name of the batch's lane. Names are unique, since an action has no slash."""
        return f"{self.action}/{self.tenant}"

    @property
    def is_final(self) -> bool:
        """Whether the batch has ended."""
        return self.state in FINAL

    @property
    def is_followed(self) -> bool:
        """Whether its end calls something: a callback, or batches that follow."""
        return bool(self.on_done or self.then or self.otherwise)

    @property
    def keep_single_ms(self) -> int:
        """How long the record of this single item is kept once the item is done."""
        return self.keep_ms or (KEEP_MS if self.fingerprint else KEEP_SINGLE_MS)

    @property
    def is_sealed(self) -> bool:
        return self.state not in ("open", "aborted")


class Progress(msgspec.Struct, frozen=True):
    """The progress of a batch."""

    id: str
    action: str
    tenant: str
    state: State
    accepted: int
    """All items of the batch, stored durably."""
    done: int
    """Items that succeeded."""
    failed: int
    """Items that failed for good."""
    cancelled: int
    """Items that will not run."""
    lost: int
    """Items that the queue's servers have lost. Submit the same items with the same id to run
    exactly these."""
    running: int
    """Items that workers are running."""
    waiting: int
    """Items that wait for a worker, for their rate limit or for their next attempt."""
    eta_s: float | None
    """Estimated seconds until the batch ends, at its speed so far. The estimate is at least the
    time that the rate limit and the back-off require. None while the batch is paused, before its
    start time, and while no worker has the action. Without a rate limit, also None before the first
    item is done."""
    reason: str = ""
    """Why the batch was aborted, which items were lost, or what the batch waits for: a worker with
    the action, the rate limit, or the next retry of its items."""
    missing: list[Span] = []
    """The lost items as ranges: the index of the first item, and how many."""
    start_ms: int = 0
    """The time before which no item starts, in milliseconds since 1970; 0 if there is none."""

    @property
    def left(self) -> int:
        """The number of items that have not ended."""
        return self.waiting + self.running

    @property
    def is_final(self) -> bool:
        """Whether the batch has ended."""
        return self.state in FINAL


class Result(msgspec.Struct, frozen=True):
    """What the handler returned for an item that is done. `index` counts from 0, as submitted."""

    index: int
    value: object


class Failure(msgspec.Struct, frozen=True):
    """An item that failed for good. `index` counts from 0 in the order of submission."""

    index: int
    item: object
    reason: str
    attempts: int


# -- items and results ----------------------------------------------------------------------


def encoded(index: int, item: object, bytes_max: int = ITEM_BYTES_MAX) -> bytes:
    """Encode an item. Raises `InvalidBody` if a worker would decode a value of another type.

    The exceptions are tuples, which become lists, and objects, which become dicts of their fields.
    """
    try:
        body, lost = encoded_value(item)
    except UNENCODABLE as error:
        raise InvalidBody(
            f"item {index} cannot be stored ({error}): items are JSON values or bytes"
        ) from None
    if lost is not None:
        if not is_object(item):
            raise InvalidBody(
                f"item {index}{lost}, which a handler would get as another type: items are JSON "
                "values or bytes, so convert it first, for example to text. An action that "
                "declares a type, such as item=UUID, converts the text back"
            )
        body = lossy(body, lost)
    if len(body) > bytes_max:
        raise InvalidBody(
            f"item {index} has {len(body):,} bytes, more than {bytes_max:,}: "
            "store the item elsewhere and submit a reference to it"
        )
    return body


def encoded_value(value: object) -> tuple[bytes, str | None]:
    """Encode a value. Also return where decoding would change a type, or None.

    Raises one of `UNENCODABLE` if the value cannot be encoded.
    """
    body = _encode(value)
    if any(each in body for each in NOT_FINITE):  # or bytes that look like it
        _check_finite(decoded_value(body))
    if isinstance(value, LOSSY):
        return body, value.changed
    if decoded_value(body) == value:
        return body, None
    return body, changed(value, in_object=is_object(value))


def plain(item: Any) -> Any:
    """Return a pydantic model as a dict of JSON values, and any other item as it is."""
    return dumped(item) if hasattr(type(item), "model_dump") else item


def only_item(items: object) -> tuple[Any, ...]:
    """Return the only item of a collection, in a tuple.

    The tuple is empty if `items` has more or fewer items than one, or is no collection.
    """
    if not isinstance(items, Collection) or isinstance(items, Mapping | str | bytes | bytearray):
        return ()
    return tuple(items) if len(items) == 1 else ()


def _check_finite(value: object) -> None:
    """Raise `InvalidBody` if a number in the value is NaN or infinite: JSON has no such numbers."""
    if isinstance(value, float) and not isfinite(value):
        raise InvalidBody(f"{value} is not a JSON value")
    if isinstance(value, dict):
        value = [*value, *value.values()]
    for each in value if isinstance(value, list | tuple) else ():
        _check_finite(each)


# -- items in chunks ---------------------------------------------------------------------------


def packed(first: int, bodies: list[bytes], indexes: Sequence[int] = ()) -> bytes:
    """Encode a chunk: the index of its first item, and its encoded items.

    If the indexes of the items are not consecutive, pass all of them as `indexes`.
    """
    raw = [msgspec.Raw(body) for body in bodies]
    return _encode((first, raw, indexes) if indexes else (first, raw))


def unpacked(body: bytes) -> tuple[Sequence[int], list[Any]]:
    """Return the indexes of a chunk's items, and the items."""
    first, items, *indexes = _decode(body)
    return (indexes[0] if indexes else range(first, first + len(items))), items


def digest_of(body: bytes) -> int:
    """Return a chunk's checksum. It has 48 bits, so that Lua can add checksums exactly."""
    return int(sha1(body, usedforsecurity=False).hexdigest()[:12], 16)


def digests_added(one: int, other: int) -> int:
    """Add two checksums. The sum for several chunks does not depend on the order of the chunks."""
    return (one + other) % (1 << 48)


class Packed(msgspec.Struct, frozen=True):
    """An encoded chunk: the index of its first item, the number of items, and the body."""

    first: int
    count: int
    body: bytes


class Chunker:
    """Packs items into chunks; the indexes in a chunk are consecutive."""

    def __init__(self, item_bytes_max: int = ITEM_BYTES_MAX) -> None:
        self.count = 0
        self._item_bytes_max = item_bytes_max
        self._bodies: list[bytes] = []
        self._bytes = 0

    def add(self, item: object) -> Packed | None:
        """Add an item to the current chunk. Returns the chunk if it is full now, otherwise None.

        If the item does not fit into the current chunk, the item goes into the next chunk.
        """
        body = encoded(self.count, item, self._item_bytes_max)
        full = None
        if self._bytes + len(body) > CHUNK_BYTES_MAX:
            full = self.rest()
        self._bodies.append(body)
        self._bytes += len(body)
        self._count_one()
        if len(self._bodies) == CHUNK_ITEMS_MAX:
            full = full or self.rest()
        return full

    def skip(self) -> Packed | None:
        """Skip an item: it gets the next index, but is not stored.

        Returns the current chunk, which ends before the skipped item; None if the chunk is empty.
        """
        full = self.rest()
        self._count_one()
        return full

    def _count_one(self) -> None:
        self.count += 1
        if self.count > ITEMS_MAX:
            raise InvalidSetting(f"a batch has at most {ITEMS_MAX:,} items: submit several batches")

    def rest(self) -> Packed | None:
        if not self._bodies:
            return None
        first, bodies = self.count - len(self._bodies), self._bodies
        self._bodies, self._bytes = [], 0
        return Packed(first, len(bodies), packed(first, bodies))


def add_chunk(runs: list[Run], first: int, count: int) -> None:
    """Add a chunk of `count` items to the runs of a part. `first` is the index of its first item.

    If the chunk continues the last run, that run becomes one chunk longer: after `(0, 3, 100)`, a
    chunk of 100 items from index 300 on gives `(0, 4, 100)`. Any other chunk begins a new run.
    """
    if runs:
        start, chunks, each = runs[-1]
        if each == count and start + chunks * each == first:
            runs[-1] = (start, chunks + 1, each)
            return
    runs.append((first, 1, count))


def chunks_in(runs: Iterable[Run]) -> int:
    return sum(chunks for _, chunks, _ in runs)


def spans_of(runs: Iterable[Run]) -> tuple[Span, ...]:
    return merged((first, chunks * each) for first, chunks, each in runs)


def span_of_gap(runs: Iterable[Run], gap: Gap) -> Span:
    """Return the missing items of a gap as a range of the batch's items: first index and count.

    A gap counts chunks in the part, and `runs` are the runs of this part. If the part has the run
    `(500, 4, 100)`, the gap `(2, 10, 5)` is the range `(710, 5)`.
    """
    number, offset, count = gap
    for first, chunks, each in runs:
        if number < chunks:
            left = each - offset
            return first + number * each + offset, left if count < 0 else min(count, left)
        number -= chunks
    return 0, 0


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sort the ranges, and join ranges that touch or overlap."""
    joined: list[Span] = []
    for first, count in sorted(spans):
        if joined and first <= joined[-1][0] + joined[-1][1]:
            start, length = joined[-1]
            joined[-1] = start, max(length, first + count - start)
        elif count:
            joined.append((first, count))
    return tuple(joined)


def without(spans: Iterable[Span], taken: Iterable[Span]) -> tuple[Span, ...]:
    """Return the items of `spans` that are not in `taken`."""
    left = list(merged(spans))
    for start, length in taken:
        pieces = []
        for first, count in left:
            before = min(max(start - first, 0), count)
            after = min(max(first + count - start - length, 0), count)
            pieces += [(first, before), (first + count - after, after)]
        left = [piece for piece in pieces if piece[1] > 0]
    return merged(left)


def total(spans: Iterable[Span]) -> int:
    return sum(count for _, count in spans)


def named(spans: Sequence[Span]) -> str:
    """Return the ranges as text for a message: "7, 1,000 to 1,999 and 3 more ranges"."""
    words = [
        f"{first:,}" if count == 1 else f"{first:,} to {first + count - 1:,}"
        for first, count in spans[:NAMED_MAX]
    ]
    if len(spans) > NAMED_MAX:
        words.append(f"{len(spans) - NAMED_MAX} more ranges")
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


class Cursor:
    """Tests whether an index is in one of some ranges.

    The caller must pass indexes in rising order.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = iter(spans)
        self._first, self._end = 0, 0
        self._advance()

    def _advance(self) -> None:
        first, count = next(self._spans, (1 << 62, 1))
        self._first, self._end = first, first + count

    def has(self, index: int) -> bool:
        while index >= self._end:
            self._advance()
        return index >= self._first
