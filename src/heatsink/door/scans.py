"""Scans, and queries of global indexes: pages in which only the keys are changed.

The rows of all buckets are ordinary rows of the table and of its indexes. So these pages come from
one upstream call. Only the partition key in rows and tokens changes. If a filter mentions the
partition key, the core itself evaluates the filter, on whole rows.
"""

from __future__ import annotations

from typing import Any

from heatsink.emulator.operations.reads import (
    check_select,
    prepared_query,
    prepared_scan,
)
from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.expressions.key_conditions import KeyTest, key_range
from heatsink.stores.dynamodb.wire.expressions.reading import Expressions, check_filter
from heatsink.stores.dynamodb.wire.requests import Query, Scan

from .declaration import Index
from .pages import (
    Page,
    check_scalars,
    converted,
    key_condition,
    lacks,
    must_be_refused,
    schema_of,
    shown_page,
    start_at,
    token_of,
    without_local,
)
from .places import ItemPlaces
from .protocol import Body, Steps, UpstreamCall, checked, refusal
from .rewriting import mentions


def page_of_index(places: ItemPlaces, parameters: Body, index: Index) -> Steps:
    """Query a global index whose key does not have the table's partition key.

    The query needs no merge: an entry is in the index once, whatever bucket its item is in.
    """
    return (yield from _page(places, "Query", parameters, index))


def scan(places: ItemPlaces, parameters: Body, index: Index | None = None) -> Steps:
    """Scan the table, or an index. `index` is given if it is a spread index."""
    table, name = places.table, parameters.get("IndexName")
    if table.append_only:
        raise refusal(
            f"table {table.name} is declared append_only, so a row may be under the bare key or "
            "in a bucket, and Scan is not possible: complete the adoption and declare the table "
            "without append_only"
        )
    if index is None and isinstance(name, str):
        index = table.indexes.get(name)
    if name is not None and index is None:
        return (yield from must_be_refused("Scan", parameters))
    return (yield from _page(places, "Scan", parameters, index))


def _page(places: ItemPlaces, operation: str, parameters: Body, index: Index | None) -> Steps:
    names = schema_of(places.table, index).entry_names
    changed = parameters
    try:
        if parameters.get("ExclusiveStartKey") is not None:
            start = yield from start_at(places, parameters["ExclusiveStartKey"], names)
            changed = {**parameters, "ExclusiveStartKey": start}
        if _filters_by(places.table.partition_key, parameters):
            given, tests = prepared(operation, parameters)
            check_page(places, operation, given, (tests, index))
            return (yield from _filtered(places, operation, changed, (given, tests, index)))
    except ValidationFailed:
        return (yield from must_be_refused(operation, parameters))
    [answer] = checked((yield [UpstreamCall(operation, changed)]))
    return _with_token(places, shown_page(answer, places), answer)


def _filters_by(attribute: str, parameters: Body) -> bool:
    for field in ("ScanFilter", "QueryFilter"):
        legacy = parameters.get(field)
        if isinstance(legacy, dict) and attribute in legacy:
            return True
    text = parameters.get("FilterExpression")
    names = parameters.get("ExpressionAttributeNames")
    return isinstance(text, str) and mentions(attribute, names, text)


def prepared(operation: str, parameters: Body) -> tuple[Expressions, dict[str, KeyTest]]:
    if operation == "Scan":
        scanned = converted(parameters, Scan)
        given = prepared_scan(scanned)
        check_select(scanned)
        return given, {}
    asked = converted(parameters, Query)
    prepared = prepared_query(asked)
    check_select(asked)
    return prepared


def check_page(
    places: ItemPlaces,
    operation: str,
    given: Expressions,
    of: tuple[dict[str, KeyTest], Index | None],
) -> None:
    tests, index = of
    if operation == "Query":
        schema = schema_of(places.table, index)
        key_range(tests, schema)
        assert given.condition is not None
        check_filter(given, schema.names, "Filter Expression")
    check_scalars(given.nested, places.table)
    if index is not None and index.is_global and lacks(index, given):
        raise ValidationFailed("the index does not project an attribute")


def _filtered(
    places: ItemPlaces,
    operation: str,
    parameters: Body,
    of: tuple[Expressions, dict[str, KeyTest], Index | None],
) -> Steps:
    """Read whole rows, and evaluate filter and projection here."""
    given, tests, index = of
    plain, select = without_local(parameters), parameters.get("Select")
    if tests:
        plain.update(key_condition(tests, {}))
    if select == "ALL_ATTRIBUTES" or lacks(index, given):
        plain["Select"] = "ALL_ATTRIBUTES"
    [answer] = checked((yield [UpstreamCall(operation, plain)]))
    page = Page(given, select == "COUNT", [])
    if index is not None and select != "ALL_ATTRIBUTES":
        page.projected = index.projected
    for item in answer["Items"]:
        page.take(places.shown(item))
    shown: Body = page.answer([answer.get("ConsumedCapacity")])
    return _with_token(places, shown, answer)


def _with_token(places: ItemPlaces, shown: Body, answer: Body) -> Body:
    """Return a page for the application, with the token that follows from DynamoDB's answer."""
    last: Any = answer.get("LastEvaluatedKey")
    return shown if last is None else {**shown, "LastEvaluatedKey": token_of(places, last)}
