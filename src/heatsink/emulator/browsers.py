"""Which web pages may call the emulator from a browser: CORS.

A page may call the emulator if the page comes from this machine, for example from an application's
development server on another port. The browser first asks for permission with OPTIONS.
"""

from __future__ import annotations

from collections.abc import Collection

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


def is_local(origin: str, names: Collection[str] | None) -> bool:
    """Return whether a web page of this origin is served by this machine.

    `names` are the host names of this machine.
    """
    host = origin.partition("://")[2]
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return names is None or name.lower() in names


def for_origin(answer: bytes, origin: bytes) -> bytes:
    """Return an answer that a page of this origin may read."""
    line, end, rest = answer.partition(b"\r\n")
    return line + end + _ORIGIN % origin + rest
