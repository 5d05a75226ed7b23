"""Compressed bodies of requests and answers, as DynamoDB takes and gives them."""

from __future__ import annotations

import re
import zlib

from heatsink.errors import HeatsinkError

GZIP_BITS, ZLIB_BITS = 31, 15
COMPRESSED_MIN = 4_096  # DynamoDB's: shorter answers are never compressed
LEVEL = 1
ENCODINGS = {b"gzip": GZIP_BITS, b"deflate": ZLIB_BITS}
QUALITY = re.compile(rb"\s*q\s*=\s*(-?[0-9]+(?:\.[0-9]*)?)\s*(?:;|$)")


class BadEncoding(HeatsinkError):
    """A request's body is too large, or is not encoded as its header Content-Encoding says.

    `status` is the HTTP status of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def unpacked(body: bytes, encoding: bytes, most: int) -> bytes:
    """Return a request's body without its compression.

    Raises `BadEncoding` if the body is invalid or longer than `most` bytes. DynamoDB answers an
    invalid body with an internal error.
    """
    for name in reversed(encoding.lower().split(b",")):
        bits = ENCODINGS.get(name.strip())
        if bits is not None:
            body = _decompressed(body, bits, most)
        elif name.strip() != b"identity":
            shown = name.decode("latin-1")
            raise BadEncoding(500, f"Content-Encoding {shown!r} is not supported")
    return body


def _decompressed(body: bytes, bits: int, most: int) -> bytes:
    """Decompress a body. Several gzip members may follow each other, and junk may follow them."""
    found, left = b"", body
    while True:
        machine = zlib.decompressobj(bits)
        try:
            found += machine.decompress(left, most - len(found) + 1)
        except zlib.error as error:
            if found:
                return found
            raise BadEncoding(500, f"the body is not compressed as told: {error}") from None
        if len(found) > most:
            raise BadEncoding(413, "the decompressed request is too large: the limit is 16 MB")
        if not machine.eof:
            raise BadEncoding(500, "the compressed body is cut off")
        left = machine.unused_data
        if not left or bits != GZIP_BITS:
            return found


def packed(body: bytes, accepted: bytes) -> tuple[bytes, bytes] | None:
    """Return a long body in the encoding that the client prefers, and the encoding's name.

    Returns None if the body stays as it is.
    """
    if len(body) < COMPRESSED_MIN:
        return None
    likes: dict[bytes, float] = {}
    for element in accepted.lower().split(b","):
        kind, _, rest = element.partition(b";")
        likes[kind.strip()] = max(_quality(rest), likes.get(kind.strip(), 0.0))
    anything = likes.pop(b"*", 0.0)
    named = {name: quality for name, quality in likes.items() if name in ENCODINGS}
    for name in ENCODINGS:
        named.setdefault(name, anything)
    best = max(named, key=named.__getitem__)
    if named[best] <= 0:
        return None
    machine = zlib.compressobj(LEVEL, wbits=ENCODINGS[best])
    return machine.compress(body) + machine.flush(), best


def _quality(text: bytes) -> float:
    found = QUALITY.match(text)
    return 1.0 if found is None else min(float(found[1]), 1.0)
