"""Checks of what callers pass: each refusal names the field and what it accepts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from math import inf
from typing import Any

from heatsink.errors import InvalidSetting

SHOWN_MAX = 40
FILES = ("sqlite", "embedded")  # whose URLs have paths, and no place for a password
SECRET_OPTION = re.compile(
    r"([?&#][^=&#]*(?:auth|cred|key|pass|pw|secret|token)[^=&#]*=)[^&#]*", re.IGNORECASE
)


def shown(value: object) -> str:
    """A value for a message: short, and safe to show whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a huge int has no repr, a foreign object may have a broken one
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def shown_url(url: str) -> str:
    """A URL for a message or a screen, without what is before an `@` and without passwords.

    It need not be one that can be parsed: a password with a `/` in it is hidden too.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    if "@" in rest and scheme not in FILES:
        rest = "…@" + rest.rpartition("@")[2]
    return scheme + mark + SECRET_OPTION.sub(r"\1…", rest)


def check_whole(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidSetting(
            f"{name} must be an int from {low:,} to {high:,}, not {shown(value)}", field=name
        )
    return value


def check_number(name: str, value: object, low: float, high: float = inf) -> float:
    """A number from `low` to `high`, both included."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]
        upto = f" to {high:,g}" if high < inf else " up"
        raise InvalidSetting(
            f"{name} must be a number from {low:,g}{upto}, not {shown(value)}", field=name
        )
    return value  # type: ignore[return-value]


def check_text(name: str, value: object, length_max: int) -> str:
    """Text that can be stored and shown: 1 to `length_max` characters without lone surrogates."""
    if not isinstance(value, str) or not 0 < len(value) <= length_max or not _is_unicode(value):
        raise InvalidSetting(f"{name} must be text of 1 to {length_max} characters", field=name)
    return value


def check_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InvalidSetting(f"{name} must be a {kind.__name__}, not {shown(value)}", field=name)


async def each(name: str, items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    """The items of an iterable, asynchronous or not; `InvalidSetting` for anything else."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    elif isinstance(items, Iterable) and not isinstance(items, str | bytes | dict):
        for item in items:
            yield item
    else:
        raise InvalidSetting(
            f"{name} must be an iterable of {name}, not {shown(items)}", field=name
        )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
