"""Checks of arguments: each error names the field and the values that it accepts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from heatsink.errors import InvalidSetting

from .words import did_you_mean, with_article

SHOWN_MAX = 40
FILES = ("sqlite", "embedded")  # whose URLs have paths, and no place for a password
SECRET_OPTION = re.compile(
    r"([?&#][^=&#]*(?:auth|cred|key|pass|pw|secret|token)[^=&#]*=)[^&#]*", re.IGNORECASE
)


def shown(value: object) -> str:
    """Return a value as text for a message. The text is short, and any value can be shown."""
    try:
        text = repr(value)
    except Exception:  # a huge int has no repr, a foreign object may have a broken one
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def shown_url(url: str) -> str:
    """Return a URL as text for a message, without user names and passwords.

    The URL need not be valid: a password that contains a `/` is hidden, too.
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


def check_number(name: str, value: object, low: float, high: float = inf, unit: str = "") -> float:
    """Return `value` if it is a number from `low` to `high`, both included; otherwise raise.

    Pass the `unit`, such as "seconds", if the name does not say it.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]
        upto = f" to {_plain(high)}" if high < inf else " up"
        number = f"a number of {unit}" if unit else "a number"
        raise InvalidSetting(
            f"{name} must be {number} from {_plain(low)}{upto}, not {shown(value)}", field=name
        )
    return value  # type: ignore[return-value]


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) and abs(number) < 1e12 else f"{number:,g}"


def check_text(name: str, value: object, length_max: int) -> str:
    """Return `value` if it is text that can be stored and shown, otherwise raise.

    Such text has 1 to `length_max` characters and no lone surrogates.
    """
    if not isinstance(value, str) or not 0 < len(value) <= length_max or not _is_unicode(value):
        given = f", not {shown(value)}" if value == "" or not isinstance(value, str) else ""
        if isinstance(getattr(value, "id", None), str):  # a Batch, where its id is wanted
            given += ": pass its .id"
        raise InvalidSetting(
            f"{name} must be text of 1 to {length_max} characters{given}", field=name
        )
    return value


def check_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        wanted = with_article(kind.__name__)
        raise InvalidSetting(f"{name} must be {wanted}, not {shown(value)}", field=name)


def check_names(where: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise `InvalidSetting` for the first name that is not in `known`.

    The message suggests the name that was probably meant.
    """
    for name in names:
        if name not in known:
            cure = did_you_mean(name, known)
            raise InvalidSetting(f"{where} has no setting {name!r}: {cure}", field=name)


class _NamesChecked(msgspec.StructMeta):
    if not TYPE_CHECKING:  # so that type checkers see each struct's own parameters

        def __call__(self, *values: Any, **named: Any) -> Any:
            try:
                return super().__call__(*values, **named)
            except TypeError:
                check_names(self.__name__, named, self.__struct_fields__)
                raise


class CheckedStruct(msgspec.Struct, frozen=True, metaclass=_NamesChecked):
    """A struct of settings. A setting that the struct does not have raises `InvalidSetting`."""


async def each(name: str, items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Yield the items of an iterable or asynchronous iterable. `name` is its name, for errors.

    Raises `InvalidSetting` if `items` is not iterable.
    """
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
