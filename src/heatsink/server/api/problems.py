"""Every error as problem+json (RFC 9457)."""

from __future__ import annotations

import re
from collections.abc import Container

import msgspec

from heatsink import errors
from heatsink.primitives.validation import what_is_wrong

from .shapes import Problem

MEDIA_TYPE = b"application/problem+json"
DETAIL_MAX = 1_000
TITLES = {
    400: "Bad request",
    401: "A token is needed",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported media type",
    421: "Misdirected request",
    431: "Header too large",
    500: "Internal server error",
    503: "Unavailable",
}
INVALID = "Invalid request"
UNKNOWN_TOKEN = "Unknown token"  # noqa: S105
RETRYABLE = {answer.status for answer in errors.ANSWERS.values() if answer.retryable}
NOTHING = "there is nothing at this path: see /docs"
_encode = msgspec.json.Encoder().encode


class Refusal(Exception):
    """A request that the server refuses before it calls the library."""

    def __init__(
        self,
        status: int,
        detail: str,
        field: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        title: str = "",
    ) -> None:
        super().__init__(detail)
        self.title = title or TITLES[status]
        self.status = status
        self.field = field
        self.headers = headers


def problem_of(error: Exception, fields: Container[str] = ()) -> Problem:
    """Return the problem+json of an error.

    The problem names a field only if the request has this field, that is, if it is in `fields`.
    """
    if isinstance(error, Refusal):
        return _made(error.status, error.title, str(error), error.field)
    if isinstance(error, msgspec.MsgspecError):
        return _malformed(error)
    if isinstance(error, errors.HeatsinkError):
        status = errors.answer_of(error).status
        return _made(status, _words(type(error).__name__), str(error), _field_of(error, fields))
    return _made(500, TITLES[500], "the server's log has the details", None)


def named(kind: type[errors.HeatsinkError]) -> tuple[int, str]:
    """Return the HTTP status and the title of a class of Heatsink errors."""
    return errors.answer_to(kind).status, _words(kind.__name__)


def anchor(title: str) -> str:
    """Return the anchor of an error on the page /docs."""
    return title.lower().replace(" ", "-")


def _malformed(error: msgspec.MsgspecError) -> Problem:
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return _made(400, "Not JSON", f"the body is not JSON: {text}", "body")
    field, words = what_is_wrong(error)
    return _made(400, INVALID, words, field)


def _made(status: int, title: str, detail: str, field: str | None) -> Problem:
    if len(detail) > DETAIL_MAX:
        detail = f"{detail[: DETAIL_MAX - 1]}…"
    return Problem(f"/docs#{anchor(title)}", title, status, detail, field)


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def _field_of(error: errors.HeatsinkError, fields: Container[str]) -> str | None:
    if isinstance(error, errors.IdReused):
        return "Idempotency-Key"
    is_named = "field" in vars(error)  # otherwise the class sets the field
    return error.field if not is_named or error.field in fields else None


def encoded(problem: Problem) -> bytes:
    return _encode(problem)


def headers_of(problem: Problem, error: Exception | None = None) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", MEDIA_TYPE), (b"cache-control", b"no-store")]
    if problem.status in RETRYABLE:
        headers.append((b"retry-after", str(errors.RETRY_AFTER_S).encode()))
    if isinstance(error, Refusal):
        headers += error.headers
    return headers
