"""GetItem, Query and Scan, and the KeyConditionExpression of queries.

A key condition selects one partition key and a range of sort keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from heatsink.emulator.capacity.table import SPACE
from heatsink.emulator.database import Consumed, Database, Json
from heatsink.emulator.requests import GetItem, PageRequest, Query, Scan
from heatsink.emulator.rows import EVERYTHING, Bounds, Key, Row, token_of
from heatsink.emulator.schema import KeyPart, Schema
from heatsink.emulator.table import EngineTable
from heatsink.emulator.units import read_units
from heatsink.stores.dynamodb.wire.errors import ValidationFailed, constraint_failed
from heatsink.stores.dynamodb.wire.expressions.conditions import (
    BeginsWith,
    Between,
    Both,
    Compare,
    Condition,
    Either,
    Exists,
    HasType,
    Negation,
    OneOf,
)
from heatsink.stores.dynamodb.wire.expressions.operands import Path, Placeholder, Scope, Size
from heatsink.stores.dynamodb.wire.expressions.parser import (
    Parsed,
    parse_condition,
    parse_projection,
)
from heatsink.stores.dynamodb.wire.values import Item, Native, Value, kind_of

from .writes import Projection, projection_of, scope_of

NOT_SUPPORTED = "Query key condition not supported"
MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
PAGE_BYTES_MAX = 1_024 * 1_024
KEY_CONDITION = "KeyConditionExpression"
FILTER = "FilterExpression"


def key_range(root: Condition, schema: Schema, scope: Scope) -> tuple[Native, Bounds]:
    root.check(scope, "KeyConditionExpression")
    about: dict[str, Condition] = {}
    for condition in _conjuncts(root):
        name = _subject(condition, scope)
        if name in about:
            raise ValidationFailed(
                "Invalid KeyConditionExpression: KeyConditionExpressions must only contain one "
                "condition per key"
            )
        about[name] = condition
    hash_ = about.pop(schema.hash.name, None)
    if hash_ is None:
        raise ValidationFailed(f"Query condition missed key schema element: {schema.hash.name}")
    sort = about.pop(schema.sort.name, None) if schema.sort else None
    if about:
        raise ValidationFailed(
            NOT_SUPPORTED
            if schema.sort is None or sort is not None
            else f"Query condition missed key schema element: {schema.sort.name}"
        )
    bounds = EVERYTHING
    if sort is not None and schema.sort is not None:
        bounds = _bounds(sort, schema, schema.sort, scope)
    return _equal_to(hash_, schema, scope), bounds


def _conjuncts(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, Both):
        yield from _conjuncts(condition.left)
        yield from _conjuncts(condition.right)
    elif isinstance(condition, Either | Negation | OneOf | Exists | HasType):
        raise ValidationFailed(
            f"Invalid operator used in KeyConditionExpression: {_operator(condition)}"
        )
    else:
        yield condition


def _operator(condition: Condition) -> str:
    names: dict[type, str] = {Either: "OR", Negation: "NOT", OneOf: "IN", HasType: "attribute_type"}
    if isinstance(condition, Exists):
        return "attribute_exists" if condition.wanted else "attribute_not_exists"
    return names[type(condition)]


def _subject(condition: Condition, scope: Scope) -> str:
    paths = [part for part in _operands(condition) if isinstance(part, Path)]
    if len(paths) != 1 or len(paths[0].parts) != 1:
        raise ValidationFailed(NOT_SUPPORTED)
    return str(paths[0].resolved(scope)[0])


def _operands(condition: Condition) -> list[object]:
    if isinstance(condition, Compare):
        return [condition.left, condition.right]
    if isinstance(condition, Between):
        return [condition.subject, condition.low, condition.high]
    if isinstance(condition, BeginsWith):
        return [condition.subject, condition.prefix]
    raise ValidationFailed(NOT_SUPPORTED)


def _equal_to(condition: Condition, schema: Schema, scope: Scope) -> Native:
    if not isinstance(condition, Compare) or condition.sign != "=":
        raise ValidationFailed(NOT_SUPPORTED)
    _, value = _as_path_first(condition, scope)
    return _key_value(value, schema, schema.hash)


def _as_path_first(condition: Compare, scope: Scope) -> tuple[str, Value]:
    left, right = condition.left, condition.right
    if isinstance(left, Path) and isinstance(right, Placeholder):
        return condition.sign, scope.values[right.name]
    if isinstance(right, Path) and isinstance(left, Placeholder) and condition.sign in MIRRORED:
        return MIRRORED[condition.sign], scope.values[left.name]
    raise ValidationFailed(NOT_SUPPORTED)


def _key_value(value: Value, schema: Schema, part: KeyPart) -> Native:
    if kind_of(value) != part.kind:
        raise ValidationFailed(
            "One or more parameter values were invalid: "
            "Condition parameter type does not match schema type"
        )
    return schema.part(value, part)


def _bounds(condition: Condition, schema: Schema, part: KeyPart, scope: Scope) -> Bounds:
    if isinstance(condition, Compare):
        sign, value = _as_path_first(condition, scope)
        return _compared(sign, _key_value(value, schema, part))
    operands = [operand for operand in _operands(condition) if isinstance(operand, Placeholder)]
    values = [_key_value(scope.values[operand.name], schema, part) for operand in operands]
    if not isinstance(_operands(condition)[0], Path):
        raise ValidationFailed(NOT_SUPPORTED)
    if isinstance(condition, Between) and len(values) == 2:
        return Bounds(low=values[0], high=values[1])
    if isinstance(condition, BeginsWith) and isinstance(values[0], str | bytes):
        return Bounds(prefix=values[0])
    raise ValidationFailed(NOT_SUPPORTED)


def _compared(sign: str, value: Native) -> Bounds:
    if sign == "=":
        return Bounds(low=value, high=value)
    if sign in ("<", "<="):
        return Bounds(high=value, high_included=sign == "<=")
    if sign in (">", ">="):
        return Bounds(low=value, low_included=sign == ">=")
    raise ValidationFailed("Unsupported operator on KeyCondition: operator: <>")


def check_filter(condition: Condition, schema: Schema, scope: Scope) -> None:
    """Raise `ValidationFailed` if the filter of a query uses a key attribute.

    Conditions on key attributes belong in the KeyConditionExpression.
    """
    for name in _mentioned(condition, scope):
        if name in schema.names:
            raise ValidationFailed(
                f"Filter Expression can only contain non-primary key attributes: "
                f"Primary key attribute: {name}"
            )


def _mentioned(condition: object, scope: Scope) -> Iterator[str]:
    if isinstance(condition, Path):
        yield str(condition.resolved(scope)[0])
    elif isinstance(condition, Size):
        yield from _mentioned(condition.of, scope)
    elif isinstance(condition, tuple):
        for part in condition:
            yield from _mentioned(part, scope)
    elif hasattr(condition, "__struct_fields__"):
        for field in condition.__struct_fields__:
            yield from _mentioned(getattr(condition, field), scope)


def get_item(database: Database, request: GetItem) -> Json:
    table = database.table(request.table_name)
    projection = projection_of(request.projection_expression, request.expression_attribute_names)
    key = table.schema.key_of(request.key)
    row = table.read_from(request.consistent_read).get(key)
    units = read_units(row.size if row else 0, request.consistent_read)
    table.take("Read", key, units)
    consumed = Consumed(request.return_consumed_capacity)
    consumed.add(table, "Read", units)
    found = {} if row is None else {"Item": projection.of(row.item)}
    return {**found, **consumed.one()}


class Seen(msgspec.Struct):
    """What one page of a query or scan has read."""

    items: list[Item]
    scanned: int = 0
    matched: int = 0
    bytes: int = 0
    last: Item | None = None


class _PageRules(msgspec.Struct, frozen=True):
    """Decides which rows go into a page, and what each shows: limit, filter and projection."""

    filter: Condition | None
    scope: Scope
    projection: Projection
    count_only: bool
    limit: int | None

    def collect(self, rows: Iterator[Row]) -> Seen:
        seen, last = Seen([]), None
        for item, size in rows:
            if seen.scanned and seen.bytes + size > PAGE_BYTES_MAX:
                seen.last = last
                break
            seen.scanned += 1
            seen.bytes += size
            last = item
            self._keep(seen, item)
            if seen.scanned == self.limit:
                seen.last = item
                break
        return seen

    def _keep(self, seen: Seen, item: Item) -> None:
        if self.filter is None or self.filter.holds(item, self.scope):
            seen.matched += 1
            if not self.count_only:
                seen.items.append(self.projection.of(item))


def query(database: Database, request: Query) -> Json:
    table = _table_of_page(database, request)
    if request.key_condition_expression is None:
        raise ValidationFailed(
            "Either the KeyConditions or KeyConditionExpression parameter must be specified in "
            "the request."
        )
    keys = parse_condition(request.key_condition_expression, KEY_CONDITION)
    rules = _rules(table, request, keys)
    hash_, bounds = key_range(keys.root, table.schema, rules.scope)
    after = _after(table, request)
    if after is not None and after.hash != hash_:
        raise ValidationFailed(
            "The provided starting key is outside query boundaries based on provided conditions"
        )
    source = table.read_from(request.consistent_read)
    seen = rules.collect(source.query(hash_, bounds, request.scan_index_forward, after))
    units = read_units(seen.bytes, request.consistent_read)
    table.take("Read", Key(hash_, None), units)
    return _answer(table, request, seen, units)


def scan(database: Database, request: Scan) -> Json:
    table = _table_of_page(database, request)
    first, until = _segment(request)
    rules = _rules(table, request, None)
    source = table.read_from(request.consistent_read)
    after = _after(table, request)
    rows: list[Row] = []
    seen = rules.collect(_noting(source.scan(first, until, after), rows))
    units = read_units(seen.bytes, request.consistent_read)
    _charge_scan(table, rows[: seen.scanned], units, first)
    return _answer(table, request, seen, units)


def _noting(rows: Iterator[Row], noted: list[Row]) -> Iterator[Row]:
    for row in rows:
        noted.append(row)
        yield row


def _charge_scan(table: EngineTable, rows: list[Row], units: float, first: int) -> None:
    """Charge each partition for its share of the bytes that the scan read.

    If the scan read no rows, the partition that holds the token `first` pays all `units`.
    """
    shares: dict[int, int] = {}
    tokens: dict[int, int] = {}
    partitions = table.throughput.adaptive.map
    for item, size in rows:
        token = token_of(table.schema.key_of(table.schema.key_values(item)).hash)
        number = partitions.find(token).number
        shares[number] = shares.get(number, 0) + size
        tokens[number] = token
    total = sum(shares.values())
    if not total:
        table.throughput.take("Read", first, units)
    for number, size in shares.items():
        table.throughput.take("Read", tokens[number], units * size / total)


def _table_of_page(database: Database, request: PageRequest) -> EngineTable:
    table = database.table(request.table_name)
    if request.index_name is not None:
        raise ValidationFailed(f"The table does not have the specified index: {request.index_name}")
    if request.limit is not None and request.limit < 1:
        member = f"Value '{request.limit}' at 'limit'"
        raise constraint_failed(member, "have value greater than or equal to 1")
    if request.select == "ALL_PROJECTED_ATTRIBUTES":
        raise ValidationFailed(
            "ALL_PROJECTED_ATTRIBUTES can be used only when Querying using an IndexName"
        )
    if request.select == "SPECIFIC_ATTRIBUTES" and request.projection_expression is None:
        raise ValidationFailed(
            "Must specify the AttributesToGet or ProjectionExpression when choosing to get "
            "SPECIFIC_ATTRIBUTES"
        )
    if request.projection_expression is not None and request.select in ("COUNT", "ALL_ATTRIBUTES"):
        raise ValidationFailed(
            f"Cannot specify the ProjectionExpression when choosing to get {request.select}"
            if request.select == "ALL_ATTRIBUTES"
            else "Cannot specify the ProjectionExpression when choosing to get only the Count"
        )
    return table


def _rules(table: EngineTable, request: PageRequest, keys: Parsed[Condition] | None) -> _PageRules:
    wanted, projected = request.filter_expression, request.projection_expression
    filter_ = None if wanted is None else parse_condition(wanted, FILTER)
    projection = None if projected is None else parse_projection(projected)
    scope = scope_of(
        request.expression_attribute_names,
        request.expression_attribute_values,
        [parsed for parsed in (keys, filter_, projection) if parsed is not None],
        FILTER,
    )
    if filter_ is not None:
        filter_.root.check(scope, FILTER)
        if keys is not None:
            check_filter(filter_.root, table.schema, scope)
    return _PageRules(
        filter_.root if filter_ else None,
        scope,
        Projection(projection, scope),
        request.select == "COUNT",
        request.limit,
    )


def _after(table: EngineTable, request: PageRequest) -> Key | None:
    if request.exclusive_start_key is None:
        return None
    try:
        return table.schema.key_of(request.exclusive_start_key)
    except ValidationFailed as error:
        raise ValidationFailed(f"The provided starting key is invalid: {error.message}") from None


def _segment(request: Scan) -> tuple[int, int]:
    number, total = request.segment, request.total_segments
    if number is None and total is None:
        return 0, SPACE
    if number is None or total is None:
        missing, given = (
            ("Segment", "TotalSegments") if number is None else ("TotalSegments", "Segment")
        )
        raise ValidationFailed(
            f"The {missing} parameter is required but was not present in the request when "
            f"{given} parameter is present"
        )
    if not 0 <= number < total:
        raise ValidationFailed(
            "The Segment parameter is zero-based and must be less than parameter TotalSegments: "
            f"Segment: {number} is not less than TotalSegments: {total}"
        )
    return -(-number * SPACE // total), -(-(number + 1) * SPACE // total)


def _answer(table: EngineTable, request: PageRequest, seen: Seen, units: float) -> Json:
    consumed = Consumed(request.return_consumed_capacity)
    consumed.add(table, "Read", units)
    answer: Json = {"Count": seen.matched, "ScannedCount": seen.scanned, **consumed.one()}
    if request.select != "COUNT":
        answer["Items"] = seen.items
    if seen.last is not None:
        answer["LastEvaluatedKey"] = table.schema.key_values(seen.last)
    return answer
