"""Says what is wrong with data from outside: the field, what it must be, and what it was.

msgspec says "Expected `int`, got `str` - at `$.limit`". A caller reads "limit must be a whole
number, not text".
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import inspect

from .words import counted, did_you_mean

_PLACE = re.compile(r" - at `(?:key in )?\$?\.?(.*)`$")
_INDEX = re.compile(r"\[[^\]]*\]")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_KIND = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_BOUND = re.compile(r"Expected `([^`]*)` (>=|<=|>|<) (\S+)")
_LENGTH = re.compile(r"Expected `([^`]*)` of length (>=|<=|==) (\d+)")
_CHOICE = re.compile(r"Invalid (?:enum value|literal) (.*)")
_BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below", "==": "of"}
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "array": "an array",
    "object": "an object",
    "bytes": "text in base64",
    "datetime": "a time like 2026-11-15T12:00:00Z",
}


def what_is_wrong(error: msgspec.ValidationError, kind: Any = None) -> tuple[str, str]:
    """Return the name of the wrong field, and one line that says what is wrong with it.

    `kind` is the type that was expected. If it is given, the line names the accepted values or
    fields.
    """
    text = str(error)
    place = _PLACE.search(text)
    said = text if place is None else text[: place.start()]
    path = "" if place is None else place[1]
    known = _fields(_kind_at(kind, path))
    if (missing := _MISSING.fullmatch(said)) is not None:
        field = f"{path}.{missing[1]}".lstrip(".")
        return field, f"{field} is missing: add it"
    if (unknown := _UNKNOWN.fullmatch(said)) is not None:
        field = f"{path}.{unknown[1]}".lstrip(".")
        cure = f": {did_you_mean(unknown[1], known)}" if known else ""
        return field, f"there is no field {field!r}{cure}"
    field = path or "body"
    subject = path or "the request's JSON"  # `body` would read like the name of a field
    return field, f"{subject} {_must_be(said, _fields(kind).get(path))}"


def _must_be(said: str, expected: inspect.Type | None) -> str:
    if (wrong := _KIND.fullmatch(said)) is not None:
        was = "one with decimals" if wrong.groups() == ("int", "float") else _kind(wrong[2])
        return f"must be {_kind(wrong[1])}, not {was}"
    if (bound := _BOUND.fullmatch(said)) is not None:
        return f"must be {_kind(bound[1])} {_BOUNDS[bound[2]]} {_number(bound[3])}"
    if (length := _LENGTH.fullmatch(said)) is not None:
        unit = "character" if length[1] == "str" else "item"
        return f"must be {_kind(length[1])} {_BOUNDS[length[2]]} {counted(int(length[3]), unit)}"
    if (choice := _CHOICE.fullmatch(said)) is not None:
        choices = _choices(expected)
        return f"must be one of {', '.join(choices)}, not {choice[1]}" if choices else said.lower()
    return f"is not valid: {said}"


def _kind(names: str) -> str:
    return " or ".join(_WORDS.get(name, name) for name in names.split(" | "))


def _number(text: str) -> str:
    return f"{float(text):,g}" if float(text) < 1e6 else text


def _fields(kind: Any) -> dict[str, inspect.Type]:
    """The fields of a struct by name; empty for any other type."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return {}
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return {field.encode_name: field.type for field in found.fields}


def _kind_at(kind: Any, path: str) -> Any:
    """Return the type of the struct at a path like `table[0].rule[1]`; None if there is none."""
    for part in _INDEX.sub("", path).split(".") if path else ():
        found = _fields(kind).get(part)
        if isinstance(found, inspect.ListType):
            found = found.item_type
        kind = found.cls if isinstance(found, inspect.StructType) else None
    return kind


def _choices(expected: inspect.Type | None) -> list[str]:
    if isinstance(expected, inspect.UnionType):
        return [choice for each in expected.types for choice in _choices(each)]
    if isinstance(expected, inspect.LiteralType):
        return [str(value) for value in expected.values]
    if isinstance(expected, inspect.EnumType):
        return [str(member.value) for member in expected.cls]
    return []
