"""Between JSON and the library: ids as text, bodies as text or base64, times as datetimes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from heatsink.errors import InvalidBody, InvalidId, InvalidKey, InvalidSetting
from heatsink.ids import IdScheme
from heatsink.keys import check_key

from .shapes import Base64

OWN = "~"  # how keys begin that Heatsink keeps its own records under


def to_key(key: str) -> str:
    """A key that callers may write to: not one of Heatsink's own records."""
    if key.startswith(OWN):
        raise InvalidKey(f"key {key[:40]!r} begins with {OWN!r}: such keys are Heatsink's own")
    return check_key(key)


def to_bytes(body: str | Base64) -> bytes:
    if isinstance(body, Base64):
        return body.base64
    try:
        return body.encode()
    except UnicodeEncodeError:
        raise InvalidBody("body has a lone surrogate, which is not text") from None


def from_bytes(body: bytes) -> str | Base64:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return Base64(body)


def to_id(scheme: IdScheme, text: str | None) -> Any:
    return None if text is None else scheme.from_text(text)


def to_bound(scheme: IdScheme, name: str, text: str | None) -> Any:
    """An id or a time with a zone."""
    if text is None:
        return None
    try:
        return scheme.value(scheme.raw(scheme.from_text(text)))
    except InvalidId:
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InvalidSetting(
            f"{name} must be an id or a time with a zone, like 2026-01-31T12:00:00Z"
        )
    return time


def from_ms(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)
