"""What the pages of queries and scans share: checks, filters, projections, tokens and costs.

If a check fails, the request goes upstream unchanged, so that the application gets DynamoDB's own
error. If DynamoDB accepts the request after all, the core refuses it: a page that may be wrong is
never returned.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, TypeVar

import msgspec

from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.expressions.key_conditions import KeySchema, KeyTest
from heatsink.stores.dynamodb.wire.expressions.reading import Expressions, mentioned
from heatsink.stores.dynamodb.wire.keys import IndexSchema, KeyPart, Schema
from heatsink.stores.dynamodb.wire.values import Item

from .declaration import Index, SpreadTable
from .keys import BARE, physical
from .places import ItemPlaces
from .protocol import Body, Need, Steps, UpstreamCall, WireError, refusal
from .spread_indexes import RESERVED

T = TypeVar("T")
OPERATORS = {"EQ": "=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
LOCAL_FIELDS = (
    *("FilterExpression", "ProjectionExpression", "ExpressionAttributeNames"),
    *("ExpressionAttributeValues", "QueryFilter", "ScanFilter", "ConditionalOperator"),
    *("AttributesToGet", "Select", "KeyConditionExpression", "KeyConditions"),
)
"""The parameters that the core evaluates itself, on whole rows."""
PLACE = "heatsink.place"
"""The attribute of a page token that names the bucket of the page's last row, as a number.

A token has it only if the keys of the row do not tell the bucket.
"""


def must_be_refused(operation: str, parameters: Body) -> Steps:
    """Send a read that the core found to be wrong, and raise DynamoDB's error."""
    [answer] = yield [UpstreamCall(operation, parameters)]
    if isinstance(answer, WireError):
        raise answer
    index = parameters.get("IndexName")
    about = f" (is the index {index} new? Then attach again, or restart)" if index else ""
    raise refusal(
        f"this {operation} cannot be adapted to a spread table{about}: simplify it, or use a "
        "client without Heatsink"
    )


def converted(parameters: Body, kind: type[T]) -> T:
    """Return the parameters of a request as a structure. A field that is null counts as absent.

    Raises `ValidationFailed` for a request of another form.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ValidationFailed(str(error)) from None


def schema_of(table: SpreadTable, index: Index | None) -> KeySchema:
    schema = Schema(KeyPart(table.partition_key, "S"), KeyPart(table.sort_key, table.sort_type))
    if index is None:
        return schema
    hashes = tuple(KeyPart(name, index.kinds[name]) for name in index.partition_keys)
    sorts = tuple(KeyPart(name, index.kinds[name]) for name in index.sort_keys)
    return IndexSchema(hashes, sorts, schema)


def check_scalars(nested: Iterable[str], table: SpreadTable) -> None:
    """Raise if an expression reaches into a key attribute."""
    names = set(nested)
    of_spread = any(name.startswith(RESERVED) for name in names)
    if of_spread or not table.key_attributes.isdisjoint(names):
        raise ValidationFailed("a key attribute is neither a map nor a list")


def lacks(index: Index | None, given: Expressions) -> bool:
    """Return whether a request's filter or projection uses attributes that an index lacks.

    DynamoDB reads them from the table if the index is local, and refuses the request if it is not.
    """
    if index is None or index.projected is None:
        return False
    used = given.projection.names().union(mentioned(given.condition, given.scope))
    return not used <= index.projected


def start_at(
    places: ItemPlaces, start: Any, names: Iterable[str], bucket: int | None = None
) -> Generator[list[Need], list[Any], Body]:
    """Return a starting key in which the partition key has its stored name, such as `room#3`.

    If `bucket` is None, the place follows from the row's keys, unless the starting key names it.
    Raises `ValidationFailed` if the starting key does not have exactly the attributes `names`.
    """
    if not isinstance(start, dict) or start.keys() - {PLACE} != set(names):
        raise ValidationFailed("The provided starting key is invalid")
    keys = places.keys_of(start, exactly=False)
    if keys is None:
        raise ValidationFailed("The provided starting key is invalid")
    if PLACE in start:
        bucket, start = _bucket_in(start), {name: start[name] for name in names}
    if bucket is not None:
        name = physical(keys.key, None if bucket == BARE else bucket)
        return {**start, places.table.partition_key: {"S": name}}
    spot = yield from places.to_read(keys, consistent=True)
    return places.parameters(start, spot)


def _bucket_in(start: Body) -> int:
    """Return the bucket that a starting key names."""
    try:
        return int(start[PLACE]["S"])
    except (TypeError, KeyError, ValueError):
        raise refusal(
            f"the starting key is damaged: its attribute {PLACE!r} must be as LastEvaluatedKey "
            "had it"
        ) from None


def token_of(places: ItemPlaces, last: Body) -> Body:
    """Return the token of a page of a scan, or of a global index. It ends at the stored key `last`.

    The next page continues where that row is stored. If the row's keys do not tell its bucket, the
    token names it: otherwise the next page could skip or repeat rows.
    """
    bucket = places.bucket_to_name(last)
    shown = places.shown(last)
    return shown if bucket is None else {**shown, PLACE: {"S": str(bucket)}}


def shown_page(answer: Body, places: ItemPlaces) -> Body:
    """Return a page with the application's partition keys in its items and in its token."""
    shown = dict(answer)
    if "Items" in shown:
        shown["Items"] = [places.shown(item) for item in shown["Items"]]
    if "LastEvaluatedKey" in shown:
        shown["LastEvaluatedKey"] = places.shown(shown["LastEvaluatedKey"])
    return shown


def without_local(parameters: Body) -> Body:
    """Return a request for a page without what the core evaluates itself: filter, projection, …"""
    return {name: value for name, value in parameters.items() if name not in LOCAL_FIELDS}


def key_condition(tests: dict[str, KeyTest], changed: dict[str, Body]) -> Body:
    """Return tests as the parameters of a key condition.

    `changed` has other values to compare with, by attribute, such as a stored partition key.
    """
    texts, names, values = list[str](), dict[str, str](), dict[str, Body]()
    for number, (name, test) in enumerate(tests.items()):
        alias, placeholders = f"#k{number}", []
        names[alias] = name
        for given in [changed[name]] if name in changed else test.values:
            placeholders.append(f":k{len(values)}")
            values[placeholders[-1]] = given
        texts.append(_test(alias, test.operator, placeholders))
    return {
        "KeyConditionExpression": " AND ".join(texts),
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def _test(alias: str, operator: str, placeholders: list[str]) -> str:
    if operator == "BETWEEN":
        return f"{alias} BETWEEN {placeholders[0]} AND {placeholders[1]}"
    if operator == "BEGINS_WITH":
        return f"begins_with({alias}, {placeholders[0]})"
    return f"{alias} {OPERATORS[operator]} {placeholders[0]}"


class Page(msgspec.Struct):
    """A page of answers, which the core makes from whole rows: it filters, projects and counts."""

    given: Expressions
    count_only: bool
    items: list[Item] = []
    scanned: int = 0
    matched: int = 0
    projected: frozenset[str] | None = None
    """The attributes to show, if rows have more of them, since the filter needs these."""

    def take(self, item: Item) -> None:
        """Count a row, and keep it if the filter holds for it."""
        self.scanned += 1
        given = self.given
        if given.condition is None or given.condition.holds(item, given.scope):
            self.matched += 1
            if self.count_only:
                return
            if given.projection.paths is None and self.projected is not None:
                item = {name: one for name, one in item.items() if name in self.projected}
            self.items.append(given.projection.of(item))

    def answer(self, capacities: list[Any]) -> Body:
        answer: Body = {"Count": self.matched, "ScannedCount": self.scanned}
        if not self.count_only:
            answer["Items"] = self.items
        used = [one for one in capacities if one is not None]
        if used:
            answer["ConsumedCapacity"] = total(used)
        return answer


def total(capacities: list[Any]) -> Any:
    """Return the sum of consumed capacities, field by field."""
    first = capacities[0]
    if isinstance(first, dict):
        names = dict.fromkeys(name for one in capacities for name in one)
        return {name: total([one[name] for one in capacities if name in one]) for name in names}
    return first if isinstance(first, str) else sum(capacities)
