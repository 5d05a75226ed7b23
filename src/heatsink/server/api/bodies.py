"""Request bodies: limits of size, time and concurrency, and JSON with helpful errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeVar

import msgspec
from starlette.types import Receive

from heatsink.primitives.checks import check_number, check_whole
from heatsink.primitives.connections import ConnectionLimits

from .problems import Refusal

MIB = 1_024 * 1_024
DIGITS_MAX = 18
CLOSE = ((b"connection", b"close"),)
Value = TypeVar("Value")
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_pair, _half = re.compile(_HIGH + _LOW), re.compile(_HIGH + b"|" + _LOW)


class RequestLimits(ConnectionLimits, frozen=True):
    """`request_s` limits a whole call; a stream may last, but not pause for longer than `idle_s`.

    `body_bytes` limits a JSON body, `stream_bytes` a streamed one.
    """

    body_bytes: int = MIB
    array_bytes: int = 8 * MIB
    stream_bytes: int = 1_024 * MIB
    requests: int = 1_000
    streams: int = 100
    request_s: float = 30.0
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("body_bytes", "array_bytes", "stream_bytes"):
            check_whole(name, getattr(self, name), 1, 2**50)
        for name in ("requests", "streams"):
            check_whole(name, getattr(self, name), 1, 10**7)
        for name in ("request_s", "grace_s"):
            check_number(name, getattr(self, name), 0.01, 86_400)


class Gone(Exception):
    """The client disconnected before it had sent the whole body."""


def check_length(headers: Mapping[bytes, bytes], limit: int) -> None:
    """Refuse a body by its Content-Length, without reading it."""
    length = headers.get(b"content-length", b"")
    if length.isdigit():
        check_size(int(length[:DIGITS_MAX]), limit)


async def read_body(receive: Receive, limit: int) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        check_size(len(body), limit)
        return body
    parts, size = [], 0
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        check_size(size, limit)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    raise Gone


async def stream_body(receive: Receive, limits: RequestLimits) -> AsyncIterator[bytes]:
    size, more = 0, True
    while more:
        try:
            async with asyncio.timeout(limits.idle_s):
                message = await receive()
        except TimeoutError:
            raise Refusal(
                408, f"no data for {limits.idle_s:g} s: the batch is not accepted"
            ) from None
        if message["type"] != "http.request":
            raise Gone
        body = message.get("body", b"")
        size += len(body)
        check_size(size, limits.stream_bytes)
        more = bool(message.get("more_body"))
        yield body


def check_size(size: int, limit: int) -> None:
    if size > limit:
        raise Refusal(413, f"the body is larger than {limit:,} bytes", "body", CLOSE)


def read_json(decode: Callable[[bytes], Value], data: bytes) -> Value:
    if not data.strip():
        raise msgspec.DecodeError("it is empty")
    try:
        return decode(data)
    except UnicodeDecodeError:
        raise msgspec.DecodeError("it is not UTF-8") from None
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        half = _half.search(_pair.sub(b"", data))
        if half is None:
            raise
        lone = half[0].decode()
        raise msgspec.DecodeError(f"{lone} is a lone surrogate, which is not text") from None
