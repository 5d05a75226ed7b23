"""The results of a batch: what handlers returned for its items, kept with the parts of the batch.

A worker sends an item's result in the call that acknowledges the item. So the result is recorded
exactly once, with the item's outcome: a worker whose lease is lost changes nothing. The results of
a part are in its queue partition, and are deleted with the part.

A reader gets the results in the order of the items. The batch's record says which chunk of which
part holds which items. The reader merges the chunks of all parts by their first item, and reads a
few chunks at a time. So its memory does not grow with the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Literal, TypedDict

from heatsink.errors import Conflict, InvalidSetting
from heatsink.primitives.checks import check_number, check_whole, shown

from .actions import Fail
from .batch import (
    ITEM_BYTES_MAX,
    KEEP_MS,
    UNENCODABLE,
    Batch,
    Cursor,
    Failure,
    PartPlace,
    decoded_value,
    encoded_value,
    span_of_gap,
    unpacked,
)
from .store import FailedItem, KeptChunk

RESULT_BYTES = 16 * 1024
RESULT_BYTES_MAX = ITEM_BYTES_MAX
DAYS_MAX = 90.0
DAYS_MIN = 0.01
DAY_MS = 86_400_000
CHUNKS_AT_ONCE = 40  # chunks that a reader asks for at a time
Ask = Callable[[int, str, Sequence[tuple[int, int]], bool], Awaitable[list[KeptChunk]]]
"""Asks the store for results: `QueueStore.results`, with retries."""


class ResultOptions(TypedDict, total=False):
    """The options of `hs.bulk.submit` about results."""

    results: Literal["keep"] | None
    """`"keep"` keeps what the handler returns for each item: see `hs.bulk.results`."""
    result_bytes: int
    """Maximum size of one result, encoded. An item with a larger result fails."""
    result_days: float
    """How long the batch and its results are kept after its end, in days."""


def kept_by(options: ResultOptions) -> dict[str, int]:
    """Return the fields of the record that these options set. Raises `InvalidSetting`."""
    results = options.get("results")
    if results not in (None, "keep"):
        raise InvalidSetting(
            f"results must be 'keep' or None, not {shown(results)}", field="results"
        )
    for name in ("result_bytes", "result_days"):
        if name in options and results is None:
            raise InvalidSetting(f"{name} needs results='keep'", field=name)
    if results is None:
        return {}
    size = options.get("result_bytes", RESULT_BYTES)
    days = options.get("result_days", KEEP_MS / DAY_MS)
    check_number("result_days", days, DAYS_MIN, DAYS_MAX, "days")
    return {
        "result_bytes": check_whole("result_bytes", size, 1, RESULT_BYTES_MAX),
        "keep_ms": round(days * DAY_MS),
    }


def kept(value: Any, bytes_max: int) -> bytes:
    """Encode what a handler returned. Raises `Fail` if it cannot be kept as it is."""
    try:
        body, changed = encoded_value(value)
    except UNENCODABLE as error:
        raise Fail(f"the result cannot be kept ({error}): return JSON values or bytes") from None
    if changed is not None:
        raise Fail(
            f"the result cannot be kept: the value{changed}, which would be read as another type. "
            "Convert it first, for example to text"
        )
    if len(body) > bytes_max:
        raise Fail(
            f"the result cannot be kept: it has {len(body):,} bytes, more than {bytes_max:,}. "
            "Store it elsewhere and return a reference to it, or submit with a larger result_bytes"
        )
    return body


@dataclass(frozen=True, slots=True)
class KeptResult:
    """A result with its item; the item is None if it was not asked for."""

    index: int
    lap: int
    value: Any
    item: Any


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """A chunk: the index of its first item, its number of items, and its number in its part."""

    first: int
    size: int
    number: int
    part: int


async def read_results(
    batch: Batch, ask: Ask, after: int = -1, with_items: bool = False
) -> AsyncIterator[KeptResult]:
    """Yield the results of items with an index above `after`, in the order of the items."""
    places = (place for place in _places(batch.parts) if place.first + place.size > after + 1)
    groups = _overlapping(places)
    while window := list(islice(groups, CHUNKS_AT_ONCE)):
        found: dict[_Place, KeptChunk] = {}
        for group in window:
            while any(place not in found for place in group):
                left = [place for each in window for place in each if place not in found]
                before = len(found)
                found |= await _read(batch.parts, left, ask, with_items)
                if len(found) == before:
                    return  # the parts have expired
            for result in _in_order(batch.parts, group, found, with_items):
                if result.index > after:
                    yield result
            for place in group:  # it is only needed as a mark that it was read
                found[place] = KeptChunk(place.number, [])


def _places(parts: Sequence[PartPlace]) -> Iterator[_Place]:
    """Return the chunks of all parts, ordered by their first item."""

    def chunks(part: int) -> Iterator[_Place]:
        number = 0
        for first, count, size in parts[part].runs:
            for step in range(count):
                yield _Place(first + step * size, size, number + step, part)
            number += count

    return merge(*(chunks(part) for part in range(len(parts))))


def _overlapping(places: Iterable[_Place]) -> Iterator[list[_Place]]:
    """Group chunks that have items in common, so that each item's newest result is found.

    Chunks overlap only if lost items were submitted again.
    """
    group: list[_Place] = []
    end = -1
    for place in places:
        if group and place.first >= end:
            yield group
            group = []
        group.append(place)
        end = max(end, place.first + place.size)
    if group:
        yield group


async def _read(
    parts: Sequence[PartPlace], places: Sequence[_Place], ask: Ask, with_items: bool
) -> dict[_Place, KeptChunk]:
    """Ask all parts for these chunks at the same time. Returns the chunks that were in the answers.

    An answer may be short: it ends when it reaches its maximum size.
    """
    by_part = {part: list(each) for part, each in groupby(sorted(places, key=_part), key=_part)}
    answers = await asyncio.gather(
        *(_ask_part(parts[part], each, ask, with_items) for part, each in by_part.items())
    )
    found: dict[_Place, KeptChunk] = {}
    for each, answer in zip(by_part.values(), answers, strict=True):
        found |= dict(zip(each, answer, strict=False))
    return found


def _ask_part(
    part: PartPlace, places: Sequence[_Place], ask: Ask, with_items: bool
) -> Awaitable[list[KeptChunk]]:
    chunks = [(place.number, place.size) for place in places]
    return ask(part.partition, part.id, chunks, with_items)


_part = attrgetter("part")


def _in_order(
    parts: Sequence[PartPlace],
    group: Sequence[_Place],
    found: dict[_Place, KeptChunk],
    with_items: bool,
) -> Iterator[KeptResult]:
    """Return the results of overlapping chunks, in the order of the items.

    Chunks overlap if lost items were submitted again, in a new part. Such an item may have a result
    in both parts. Then this returns the result in the new part.
    """
    results: dict[int, KeptResult] = {}
    for place in group:
        moved = Cursor(parts[place.part].moved)
        chunk = found[place]
        items = unpacked(chunk.body)[1] if with_items and chunk.body else None
        for offset, lap, body in chunk.results:
            index = place.first + offset
            if not moved.has(index) or index not in results:
                item = items[offset] if items is not None else None
                results[index] = KeptResult(index, lap, decoded_value(body), item)
    return (results[index] for index in sorted(results))


def check_keeps(batch: Batch) -> Batch:
    """Return the batch. Raises `Conflict` if it keeps no results."""
    if not batch.result_bytes:
        raise Conflict(
            f"batch {batch.id!r} keeps no results: submit it with results='keep' (on the command "
            "line --keep-results)"
        )
    return batch


def failure(part: PartPlace, failed: FailedItem) -> Failure:
    """Return a failed item of a part, as users see it."""
    if not failed.body:
        gap = int(failed.place.partition(":")[0]), failed.offset, 1
        reason = f"{failed.reason} (the queue's server has lost the item's body)"
        return Failure(span_of_gap(part.runs, gap)[0], None, reason, failed.tries)
    indexes, items = unpacked(failed.body)
    return Failure(indexes[failed.offset], items[failed.offset], failed.reason, failed.tries)
