"""The form of requests: the JSON type of every field.

DynamoDB tolerates some wrong types: it ignores fields that are null, and takes the text "TRUE" for
true. It answers other wrong types with a SerializationException. The core corrects or refuses a
request in the same way before it adapts the request. The check is fast if all types are as
documented.
"""

from __future__ import annotations

from typing import Any

import msgspec

from heatsink.primitives.validation import what_is_wrong
from heatsink.stores.dynamodb.wire import requests
from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.shapes import fitted

from .protocol import Body

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(requests.GetItem, requests.PutItem, requests.UpdateItem, requests.DeleteItem),
        *(requests.Query, requests.Scan, requests.BatchGetItem, requests.BatchWriteItem),
        *(requests.TransactGetItems, requests.TransactWriteItems),
    )
}


def checked_form(operation: str, parameters: Body) -> Body:
    """Return the request with types corrected as by DynamoDB; the same object if all were right.

    This does not look inside attribute values. Raises `EngineError` if DynamoDB refuses a type.
    """
    try:
        msgspec.convert(parameters, KINDS[operation])
    except (msgspec.ValidationError, RecursionError):
        return as_read(operation, parameters)
    return parameters


def as_read(operation: str, parameters: Body) -> Body:
    """Return the request with types corrected as by DynamoDB, in attribute values too. This is
    slow.

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
