"""Handlers for bulk actions: submit an array or streamed lines, show, pause, cancel, retry."""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator, Awaitable, Callable
from io import StringIO
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from heatsink.bulk.actions import BUILT_IN
from heatsink.bulk.batch import Batch, Failure, Result
from heatsink.bulk.bulk import Bulk
from heatsink.errors import InvalidBody, InvalidSetting
from heatsink.server.api.bulk_shapes import (
    Accepted,
    BatchesQuery,
    BatchLine,
    BatchList,
    BulkQuery,
    FailuresQuery,
    Format,
    ResultsQuery,
)
from heatsink.server.api.problems import Refusal
from heatsink.server.api.requests import (
    ARRAY,
    CSV,
    LINES,
    ApiCall,
    Handler,
    Reply,
    RequestLimits,
    check_uncompressed,
    read_body,
    read_json,
    retry_key_of,
    stream_body,
)
from heatsink.server.api.shapes import NoQuery

from .data import from_ms

LINE_BYTES_MAX = 1_024 * 1_024
_decode_array = msgspec.json.Decoder(list[Any]).decode
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


async def submit(call: ApiCall[BulkQuery, None]) -> Reply:
    action, query = call.path["name"], call.query
    if action.startswith(BUILT_IN):
        raise InvalidSetting(
            f"action {action[:40]!r} is one of Heatsink's own: use another name", field="action"
        )
    key = retry_key_of(call)
    batch = await call.service.hs.bulk.submit(
        action,
        await _items(call),
        tenant=query.tenant,
        priority=query.priority,
        rate=query.rate,
        id=key,
        on_done=query.on_done,
        spread=query.spread,
        at=query.at,
        delay=query.delay,
        **query.kept,
    )
    return Reply(Accepted(batch.id, batch.items, batch.state), 202)


async def _items(call: ApiCall[BulkQuery, None]) -> list[Any] | AsyncIterator[Any]:
    check_uncompressed(call.headers)
    limits = call.service.limits
    kind = call.headers.get(b"content-type", ARRAY.encode()).partition(b";")[0].strip().lower()
    if kind == LINES.encode():
        return _lines(call, limits)
    if kind != ARRAY.encode():
        raise Refusal(415, f"send items as {ARRAY} (an array) or {LINES} (one per line)")
    body = await read_body(call.receive, limits.array_bytes)
    try:
        return read_json(_decode_array, body)
    except msgspec.ValidationError:
        raise Refusal(
            400, "the body must be an array of items; the path names their action", "body"
        ) from None


async def _lines(call: ApiCall[BulkQuery, None], limits: RequestLimits) -> AsyncIterator[Any]:
    """Yield items as they arrive, so that a batch may be larger than memory."""
    rest, number = b"", 0
    async for chunk in stream_body(call.receive, limits):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            number += 1
            if line.strip():
                yield _item(line, number)
        if len(rest) > LINE_BYTES_MAX:
            raise InvalidBody(f"line {number + 1} is longer than {LINE_BYTES_MAX:,} bytes")
    if rest.strip():
        yield _item(rest, number + 1)


def _item(line: bytes, number: int) -> Any:
    try:
        return read_json(_decode, line)
    except msgspec.DecodeError as error:
        raise InvalidBody(f"line {number} is not JSON: {error}") from None


async def show_all(call: ApiCall[BatchesQuery, None]) -> Reply:
    batches = await call.service.hs.bulk.list(call.query.limit, call.query.tenant)
    return Reply(BatchList([line_of(batch) for batch in batches]))


def line_of(batch: Batch) -> BatchLine:
    return BatchLine(
        id=batch.id,
        action=batch.action,
        tenant=batch.tenant,
        state=batch.state,
        items=batch.items,
        priority=batch.priority,
        rate=str(batch.rate) if batch.rate else None,
        submitted=from_ms(batch.submitted_ms),
        ended=from_ms(batch.ended_ms) if batch.ended_ms else None,
        reason=batch.reason,
        done=sum(end.done for end in batch.ends),
        failed=sum(end.failed for end in batch.ends),
        cancelled=sum(end.cancelled for end in batch.ends),
        lost=batch.lost,
    )


async def show(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(await call.service.hs.bulk.status(call.path["name"]))


async def failures(call: ApiCall[FailuresQuery, None]) -> Response:
    bulk, name, query = call.service.hs.bulk, call.path["name"], call.query
    await bulk.status(name)  # raises for an unknown batch before the status 200 is sent
    lines = failure_lines(bulk.failures(name), as_csv=query.format == "csv")
    return _stream(lines, query.format, query.limit)


async def results(call: ApiCall[ResultsQuery, None]) -> Response:
    bulk, name, query = call.service.hs.bulk, call.path["name"], call.query
    await bulk.status(name)  # raises for an unknown batch before the status 200 is sent
    found = bulk.results(name, query.after)
    first = await anext(found, None)  # raises if the batch keeps no results
    lines = result_lines(_from_first(first, found), as_csv=query.format == "csv")
    return _stream(lines, query.format, query.limit)


async def _from_first(first: Result | None, rest: AsyncIterator[Result]) -> AsyncIterator[Result]:
    if first is not None:
        yield first
    async for each in rest:
        yield each


def _stream(lines: AsyncIterator[bytes], form: Format, limit: int) -> Response:
    """Send at most `limit` lines. The header of CSV does not count."""
    left = limit + (form == "csv")

    async def limited() -> AsyncIterator[bytes]:
        nonlocal left
        async for line in lines:
            yield line
            left -= 1
            if not left:
                return

    kind = CSV if form == "csv" else LINES
    return StreamingResponse(limited(), media_type=kind, headers={"cache-control": "no-cache"})


async def failure_lines(found: AsyncIterator[Failure], as_csv: bool) -> AsyncIterator[bytes]:
    """Yield a line per failed item, as CSV or JSON."""
    if as_csv:
        yield csv_line("index", "attempts", "reason", "item")
    async for each in found:
        item = as_json(each.item)
        if as_csv:
            yield csv_line(each.index, each.attempts, each.reason, item.decode())
        else:
            yield _encode(msgspec.structs.replace(each, item=msgspec.Raw(item))) + b"\n"


async def result_lines(found: AsyncIterator[Result], as_csv: bool) -> AsyncIterator[bytes]:
    """Yield a line per result, as CSV or JSON."""
    if as_csv:
        yield csv_line("index", "value")
    async for each in found:
        value = as_json(each.value)
        if as_csv:
            yield csv_line(each.index, value.decode())
        else:
            yield b'{"index":%d,"value":%s}\n' % (each.index, value)


def as_json(value: object) -> bytes:
    """Return the value as JSON.

    JSON cannot represent every value that msgpack can, for example a mapping whose keys are lists.
    Such a value becomes text.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError):
        return _encode(repr(value))


def csv_line(*words: object) -> bytes:
    line = StringIO()
    csv.writer(line).writerow(words)
    return line.getvalue().encode()


def steer(change: Callable[[Bulk, str], Awaitable[None]]) -> Handler:
    async def steered(call: ApiCall[NoQuery, None]) -> Reply:
        bulk, name = call.service.hs.bulk, call.path["name"]
        await change(bulk, name)
        return Reply(await bulk.status(name))

    return steered
