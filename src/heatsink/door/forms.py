"""The form of requests: the JSON type of every field.

DynamoDB tolerates some wrong types: it ignores fields that are null, and takes the text "TRUE" for
true. It answers other wrong types with a SerializationException. The core corrects or refuses a
request in the same way before it adapts the request. The check is fast if all types are as
documented.

Of PartiQL's statements, only the names of tables are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from heatsink.primitives.validation import what_is_wrong
from heatsink.stores.dynamodb.wire import requests
from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.shapes import fitted

from .keys import table_of
from .protocol import Body

PARTIQL = ("ExecuteStatement", "BatchExecuteStatement", "ExecuteTransaction")
BEFORE_TABLE = ("FROM", "INTO", "UPDATE")
TOKEN = re.compile(
    r"""\s+|--[^\n]*|/\*.*?\*/|(?P<text>'(?:[^']|'')*')|"(?P<quoted>(?:[^"]|"")*)\""""
    r"""|(?P<word>[^\W\d][\w$]*)|(?P<other>.)""",
    re.DOTALL,
)
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(requests.GetItem, requests.PutItem, requests.UpdateItem, requests.DeleteItem),
        *(requests.Query, requests.Scan, requests.BatchGetItem, requests.BatchWriteItem),
        *(requests.TransactGetItems, requests.TransactWriteItems),
    )
}


def checked_form(operation: str, parameters: Body) -> Body:
    """Correct the types of a request's fields as DynamoDB does, except inside attribute values.

    Returns the same object if all types were right. Raises `EngineError` if DynamoDB refuses one.
    """
    try:
        msgspec.convert(parameters, KINDS[operation])
    except (msgspec.ValidationError, RecursionError):
        return as_read(operation, parameters)
    return parameters


def as_read(operation: str, parameters: Body) -> Body:
    """Correct all types of a request as DynamoDB does, in attribute values too. This is slow.

    Raises `EngineError` if the form is wrong, or if the request has a field that Heatsink does not
    know.
    """
    kind = KINDS[operation]
    found: Body = fitted(kind, parameters)
    try:
        msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        wrong = what_is_wrong(error)[1]
        raise ValidationFailed(f"1 validation error detected: {wrong}") from None
    return found


def tables_in_statements(parameters: Body, declared: Iterable[str]) -> set[str]:
    """Return which of the declared tables a PartiQL request concerns.

    If a statement is not understood, it concerns all tables whose names occur in it.
    """
    tables, found = set(declared), set[str]()
    for statement in _statements(parameters):
        named = _tables_in(statement)
        if named is None:
            named = {table for table in tables if table in statement}
        found |= tables & named
    return found


def _statements(parameters: Body) -> Iterator[str]:
    several = parameters.get("Statements") or parameters.get("TransactStatements")
    for one in [parameters, *(several if isinstance(several, list) else ())]:
        statement = one.get("Statement") if isinstance(one, dict) else None
        if isinstance(statement, str):
            yield statement


def _tables_in(statement: str) -> set[str] | None:
    """Return the names after FROM, INTO and UPDATE, without quotes.

    Returns None if there is no such name, or if something else follows one of these words.
    """
    tokens = [found for found in TOKEN.finditer(statement) if found.lastgroup]
    names = set()
    for place, token in enumerate(tokens):
        if token.lastgroup != "word" or token["word"].upper() not in BEFORE_TABLE:
            continue
        name = tokens[place + 1] if place + 1 < len(tokens) else token
        if name.lastgroup == "quoted":
            names.add(table_of(name["quoted"].replace('""', '"')))
        elif name is token or name.lastgroup != "word" or statement[name.end() :][:1] in ("-", "."):
            return None
        else:
            names.add(name["word"])
    return names or None
