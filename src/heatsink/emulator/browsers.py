"""What HTTP clients may ask of the emulator beside the API: compressed bodies, and CORS.

A page in a browser may call the emulator if it comes from this machine, such as the development
server of an application on another port. Its browser first asks for permission with OPTIONS.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection

from heatsink.stores.dynamodb.wire.errors import EngineError

GZIP_BITS, ZLIB_BITS = 31, 15
COMPRESSED_MIN = 1_024
LEVEL = 1
ENCODINGS = {b"gzip": GZIP_BITS, b"deflate": ZLIB_BITS}
HEADERS = (
    b"authorization, content-type, content-encoding, x-amz-target, x-amz-date, "
    b"x-amz-content-sha256, x-amz-security-token, x-amz-user-agent, amz-sdk-invocation-id, "
    b"amz-sdk-request"
)
PREFLIGHT = (
    b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Methods: POST, GET, OPTIONS\r\n"
    b"Access-Control-Allow-Headers: %s\r\nAccess-Control-Max-Age: 172800\r\n"
    b"Content-Length: 0\r\n\r\n" % HEADERS
)
_ORIGIN = (
    b"Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n"
    b"Access-Control-Expose-Headers: x-amzn-RequestId, x-amz-crc32\r\n"
)


def _refused(message: str) -> EngineError:
    return EngineError("com.amazon.coral.service#SerializationException", message)


def unpacked(body: bytes, encoding: bytes, most: int) -> bytes:
    """Return a request's body without its compression.

    Raises a SerializationException if the body is invalid or longer than `most` bytes.
    """
    for name in reversed(encoding.lower().split(b",")):
        bits = ENCODINGS.get(name.strip())
        if bits is None:
            if name.strip() == b"identity":
                continue
            raise _refused(f"Content-Encoding {name.decode('latin-1')!r} is not supported")
        machine = zlib.decompressobj(bits)
        try:
            body = machine.decompress(body, most)
        except zlib.error as error:
            raise _refused(f"the body is not compressed as its header says: {error}") from None
        if machine.unconsumed_tail:
            raise _refused("the decompressed request is too large: the limit is 16 MB")
        if not machine.eof:
            raise _refused("the compressed body is cut off")
    return body


def packed(body: bytes, accepted: bytes) -> tuple[bytes, bytes] | None:
    """Return a long body in an encoding that the client accepts, and the encoding's name.

    Returns None if the body stays as it is.
    """
    if len(body) < COMPRESSED_MIN:
        return None
    for name in accepted.lower().split(b","):
        kind, _, quality = name.strip().partition(b";")
        bits = ENCODINGS.get(kind.strip())
        if bits is not None and quality.replace(b" ", b"") not in (b"q=0", b"q=0.0"):
            machine = zlib.compressobj(LEVEL, wbits=bits)
            return machine.compress(body) + machine.flush(), kind.strip()
    return None


def is_local(origin: str, names: Collection[str] | None) -> bool:
    """Return whether a page of this origin is one of this machine. `names` are its host names."""
    host = origin.partition("://")[2]
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return names is None or name.lower() in names


def for_origin(answer: bytes, origin: bytes) -> bytes:
    """Return an answer that a page of this origin may read."""
    line, end, rest = answer.partition(b"\r\n")
    return line + end + _ORIGIN % origin + rest
