"""Scans, and queries of global indexes: pages in which only the keys are changed.

The rows of all buckets are ordinary rows of the table and of its indexes. So these pages come from
one upstream call. Only the partition key in rows and tokens changes. If a filter mentions the
partition key, the core itself evaluates the filter, on whole rows.

DynamoDB ends a page at 1 MB, and also counts what Heatsink stores with the rows: names of buckets
and shadow attributes. So if a page of whole rows ends there, a second call reads the few rows that
still fit. This needs the sizes of all rows, so it is not done for pages that DynamoDB filters or
projects: they may end a few rows early.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from math import ceil
from typing import Any, NamedTuple

from heatsink.emulator.operations.reads import (
    check_select,
    prepared_query,
    prepared_scan,
)
from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.expressions.key_conditions import KeyTest, key_range
from heatsink.stores.dynamodb.wire.expressions.reading import Expressions, check_filter
from heatsink.stores.dynamodb.wire.requests import Query, Scan
from heatsink.stores.dynamodb.wire.values import Item, admit_item

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
    total,
    without_local,
)
from .places import ItemPlaces
from .protocol import Body, Need, Steps, UpstreamCall, WireError, checked, refusal
from .queries import PAGE_BYTES_MAX, PARTIAL_FIELDS, is_cut
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
    if any(parameters.get(name) for name in PARTIAL_FIELDS):
        [answer] = checked((yield [UpstreamCall(operation, changed)]))
        return _with_token(places, shown_page(answer, places), answer.get("LastEvaluatedKey"))
    read = yield from read_rows(operation, changed, names, places.shown)
    items = [item for item in read.items if item is not None]
    page: Body = {"Items": items, "Count": len(items), "ScannedCount": len(items)}
    if read.costs:
        page["ConsumedCapacity"] = total(read.costs)
    return _with_token(places, page, read.last)


class Rows(NamedTuple):
    """The rows of a page, as the application sees them; None in place of one that it must not see.

    `last` is the stored key at which the page ended, None at the end. `costs` are the consumed
    capacities of all calls.
    """

    items: list[Item | None]
    last: Body | None
    costs: list[Any]


def read_rows(
    operation: str,
    parameters: Body,
    names: Iterable[str],
    shown: Callable[[Item], Item | None],
) -> Generator[list[Need], list[Any], Rows]:
    """Read a page of whole rows. It ends at 1 MB of what the application sees.

    `names` are the attributes of a stored key. If a further call fails, the page ends where
    DynamoDB ended it. Raises `WireError` if the first call fails.
    """
    [answer] = checked((yield [UpstreamCall(operation, parameters)]))
    limit, stored = parameters.get("Limit"), answer["Items"]
    items, last = [shown(item) for item in stored], answer.get("LastEvaluatedKey")
    costs = [answer["ConsumedCapacity"]] if "ConsumedCapacity" in answer else []
    if not is_cut(answer, limit) or all(a is b for a, b in zip(items, stored, strict=True)):
        return Rows(items, last, costs)
    size = sum(admit_item(item) for item in items if item is not None)
    while last is not None and len(items) != limit:
        rows = ceil((PAGE_BYTES_MAX - size) * len(items) / max(size, 1)) + 1
        rows = rows if limit is None else min(rows, limit - len(items))
        more = {**parameters, "ExclusiveStartKey": last, "Limit": rows}
        [answer] = yield [UpstreamCall(operation, more)]
        if isinstance(answer, WireError):
            break
        costs += [answer["ConsumedCapacity"]] if "ConsumedCapacity" in answer else []
        for stored_item in answer["Items"]:
            item = shown(stored_item)
            size += admit_item(item) if item is not None else 0
            if size > PAGE_BYTES_MAX:
                return Rows(items, last, costs)
            items.append(item)
            last = {name: stored_item[name] for name in names}
        last = answer.get("LastEvaluatedKey")
    return Rows(items, last, costs)


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
    names = schema_of(places.table, index).entry_names
    read = yield from read_rows(operation, plain, names, places.shown)
    page = Page(given, select == "COUNT", [])
    if index is not None and select != "ALL_ATTRIBUTES":
        page.projected = index.projected
    for item in read.items:
        if item is not None:
            page.take(item)
    return _with_token(places, page.answer(read.costs), read.last)


def _with_token(places: ItemPlaces, shown: Body, last: Body | None) -> Body:
    """Return a page for the application, with the token that follows from its last stored key."""
    return shown if last is None else {**shown, "LastEvaluatedKey": token_of(places, last)}
