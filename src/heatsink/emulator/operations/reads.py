"""GetItem, Query and Scan."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from heatsink.emulator.capacity.table import SPACE
from heatsink.emulator.database import Consumed, Database, Json
from heatsink.emulator.indexes import GlobalIndex, IndexSpec, LocalIndex
from heatsink.emulator.rows import StoredItem, token_of
from heatsink.emulator.table import EngineTable
from heatsink.emulator.units import read_units
from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.expressions.key_conditions import (
    STARTING_KEY,
    KeySchema,
    KeyTest,
    check_start,
    key_range,
    legacy_tests,
    tests_of,
)
from heatsink.stores.dynamodb.wire.expressions.legacy import legacy_filter
from heatsink.stores.dynamodb.wire.expressions.reading import (
    FILTER,
    KEYS,
    PROJECTION,
    WHOLE_ITEM,
    Expressions,
    check_filter,
    check_mixed,
    check_used,
    legacy_projection,
    mentioned,
    projection_of,
    read_expressions,
)
from heatsink.stores.dynamodb.wire.keys import Key, Part
from heatsink.stores.dynamodb.wire.requests import Condition as LegacyCondition
from heatsink.stores.dynamodb.wire.requests import GetItem, PageRequest, Query, Scan
from heatsink.stores.dynamodb.wire.values import Item, admit

SHOWN_BARE = ("contains duplicates", "number set", "numeric value", "significant", "magnitude")
PAGE_BYTES_MAX = 1_024 * 1_024
Source = EngineTable | LocalIndex | GlobalIndex


def get_item(database: Database, request: GetItem) -> Json:
    if (
        request.projection_expression is None
        and request.attributes_to_get is None
        and request.expression_attribute_names is None
    ):
        projection = WHOLE_ITEM
        for value in request.key.values():
            admit(value)
    else:
        projection = projection_of(
            request.projection_expression,
            request.expression_attribute_names,
            request.attributes_to_get,
            (request.key,),
        )
    table = database.table(request.table_name)
    if projection.nested:
        table.check_scalars(projection.nested)
    key = table.schema.key_of(request.key)
    row = table.read_from(request.consistent_read).get(key)
    units = read_units(row.size if row else 0, request.consistent_read)
    table.take("Read", key, units)
    consumed = Consumed(request.return_consumed_capacity)
    consumed.add(table, "Read", units)
    found = {} if row is None else {"Item": projection.of(row.item)}
    return {**found, **consumed.one()}


class Seen(msgspec.Struct):
    """What one page of a query or scan has read. It ended at the item `last`; None: at the end."""

    items: list[Item]
    scanned: int
    matched: int
    bytes: int
    last: Item | None


class _PageRules(msgspec.Struct, frozen=True):
    """Decides which rows go into a page, and what each shows: limit, filter and projection."""

    given: Expressions
    count_only: bool
    limit: int | None
    projected: frozenset[str] | None
    """The attributes to show if the request names none; None means all."""

    def collect(self, rows: Iterator[StoredItem]) -> Seen:
        found: list[Item] = []
        total, limit, last, end = 0, self.limit, None, None
        for item, size in rows:
            if found and total + size > PAGE_BYTES_MAX:
                end = last
                break
            total += size
            last = item
            found.append(item)
            if len(found) == limit:
                end = item
                break
        matched = self._matched(found)
        return Seen(self._shown(matched), len(found), len(matched), total, end)

    def _matched(self, items: list[Item]) -> list[Item]:
        condition, scope = self.given.condition, self.given.scope
        if condition is None:
            return items
        return [item for item in items if condition.holds(item, scope)]

    def _shown(self, items: list[Item]) -> list[Item]:
        if self.count_only:
            return []
        projection, projected = self.given.projection, self.projected
        if projection.paths is None and projected is not None:
            return [{name: item[name] for name in item if name in projected} for item in items]
        if projection.paths is None:
            return items
        return [projection.of(item) for item in items]

    def filtered(self) -> set[str]:
        """Return the attributes that the filter uses."""
        return set(mentioned(self.given.condition, self.given.scope))

    def missing_in(self, index: LocalIndex) -> list[str]:
        """Return the attributes that the request needs and the index does not have."""
        return index.spec.missing(self.filtered() | self.given.projection.names())


def _rules(source: Source, request: Query | Scan, given: Expressions) -> _PageRules:
    projected = None
    if isinstance(source, LocalIndex) and request.select != "ALL_ATTRIBUTES":
        projected = source.spec.projected  # the filter may need more than that
    return _PageRules(given, request.select == "COUNT", request.limit, projected)


def query(database: Database, request: Query) -> Json:
    given, tests = prepared_query(request)
    check_select(request)
    table, source = _source_of_page(database, request)
    start = request.exclusive_start_key
    if start is not None and len(start) != len(source.schema.entry_names):
        raise ValidationFailed(STARTING_KEY)
    hash_, bounds = key_range(tests, source.schema, start)
    after = None if start is None else _after(source, start)
    if after is not None and start is not None:
        _check_start(after, hash_, tests, source.schema, start)
    if given.projection.nested:
        table.check_scalars(given.projection.nested)
    if given.condition is not None:
        field = "Filter Expression" if request.query_filter is None else "QueryFilter"
        check_filter(given, source.schema.names, field)
    _check_whole(source, request)
    if given.nested:
        table.check_scalars(given.nested)
    rules = _rules(source, request, given)
    rows = source.read_from(request.consistent_read)
    found = rows.query(hash_, bounds, request.scan_index_forward, after)
    fetched = _fetched(table, source, request, rules)
    seen = rules.collect(found if fetched is None else fetched.of(found))
    units = read_units(seen.bytes, request.consistent_read)
    extra = 0.0 if fetched is None else fetched.units
    source.take("Read", Key(hash_, None), units + extra)
    return _answer(table, source, request, seen, (units, extra))


def prepared_query(request: Query) -> tuple[Expressions, dict[str, KeyTest]]:
    """Check the part of a query that needs no table: its expressions and its key condition."""
    keys = request.key_condition_expression
    names, values = request.expression_attribute_names, request.expression_attribute_values
    ordered = {
        KEYS: keys,
        FILTER: request.filter_expression,
        PROJECTION: request.projection_expression,
    }
    if keys is not None and _is_modern(request) and request.key_conditions is None:
        _check_starting_key(request)
        return read_expressions(names, values, ordered), tests_of(keys, names, values)
    expressions = {
        PROJECTION: request.projection_expression,
        FILTER: request.filter_expression,
        KEYS: keys,
    }
    legacy = {
        "AttributesToGet": request.attributes_to_get,
        "QueryFilter": request.query_filter,
        "ConditionalOperator": request.conditional_operator,
        "KeyConditions": None if keys is None else request.key_conditions,
    }
    check_mixed(legacy, expressions)
    check_used(names, values, expressions)
    is_legacy = any(value is not None for value in legacy.values())
    given = _legacy(request, request.query_filter) if is_legacy else None
    _check_starting_key(request)
    if keys is None and request.key_conditions is None:
        raise ValidationFailed(
            "Either the KeyConditions or KeyConditionExpression parameter must be specified in "
            "the request."
        )
    if given is None:
        given = read_expressions(names, values, ordered)
    if keys is not None:
        return given, tests_of(keys, names, values)
    return given, legacy_tests(request.key_conditions or {})


def _is_modern(request: Query) -> bool:
    """Return whether a query has no legacy parameter besides KeyConditions."""
    return (
        request.attributes_to_get is None
        and request.conditional_operator is None
        and request.query_filter is None
    )


def _legacy(request: Query | Scan, conditions: dict[str, LegacyCondition] | None) -> Expressions:
    given = legacy_filter(conditions, request.conditional_operator)
    if request.attributes_to_get is None:
        return given
    projection = legacy_projection(request.attributes_to_get)
    return msgspec.structs.replace(given, projection=projection)


def scan(database: Database, request: Scan) -> Json:
    given = prepared_scan(request)
    check_select(request)
    first, until = _segment(request)
    table, source = _source_of_page(database, request)
    rows = source.read_from(request.consistent_read)
    after = _after_of_scan(source, request)
    if after is not None and not first <= token_of(after.hash) < until:
        raise ValidationFailed(
            "The provided starting key is invalid: Invalid ExclusiveStartKey. Please use "
            "ExclusiveStartKey with correct Segment. "
            f"TotalSegments: {request.total_segments} Segment: {request.segment}"
        )
    if given.nested:
        table.check_scalars(given.nested)
    noted: list[StoredItem] = []
    rules = _rules(source, request, given)
    found = _noting(rows.scan(first, until, after), noted)
    fetched = _fetched(table, source, request, rules)
    seen = rules.collect(found if fetched is None else fetched.of(found))
    units = read_units(seen.bytes, request.consistent_read)
    extra = 0.0 if fetched is None else fetched.units
    _charge_scan(source, noted[: seen.scanned], units + extra, first)
    return _answer(table, source, request, seen, (units, extra))


class _Fetched:
    """Fetches items from the table if a request needs attributes that a local index lacks.

    Each fetched item costs a read of the table.
    """

    def __init__(self, table: EngineTable, consistent: bool) -> None:
        self._table = table
        self._consistent = consistent
        self.units = 0.0

    def of(self, rows: Iterator[StoredItem]) -> Iterator[StoredItem]:
        stored, schema = self._table.read_from(self._consistent), self._table.schema
        for item, size in rows:
            row = stored.get(schema.key_of(schema.key_values(item)))
            if row is not None:
                self.units += read_units(row.size, self._consistent)
                yield StoredItem(row.item, size)


def _fetched(
    table: EngineTable, source: Source, request: PageRequest, rules: _PageRules
) -> _Fetched | None:
    """Return how to fetch from the table the attributes that a local index lacks.

    Returns None if the source has all attributes that the request needs.
    """
    if isinstance(source, EngineTable) or source.spec.projected is None:
        return None
    if isinstance(source, GlobalIndex):
        _check_projected(source.spec, rules)
        return None
    if request.select != "ALL_ATTRIBUTES" and not rules.missing_in(source):
        return None
    return _Fetched(table, request.consistent_read)


def _check_projected(spec: IndexSpec, rules: _PageRules) -> None:
    """Raise if a request needs attributes that a global index does not have."""
    if missing := spec.missing(rules.given.projection.names()):
        raise ValidationFailed(
            "One or more parameter values were invalid: Global secondary index "
            f"{spec.name} does not project [{', '.join(missing)}]"
        )
    if missing := spec.missing(rules.filtered()):
        raise ValidationFailed(
            "One or more parameter values were invalid: Global secondary index "
            f"{spec.name} does not project one or more filter attributes: [{', '.join(missing)}]"
        )


def prepared_scan(request: Scan) -> Expressions:
    """Check the expressions of a scan and its starting key, which need no table."""
    expressions = {PROJECTION: request.projection_expression, FILTER: request.filter_expression}
    legacy = {
        "AttributesToGet": request.attributes_to_get,
        "ScanFilter": request.scan_filter,
        "ConditionalOperator": request.conditional_operator,
    }
    check_mixed(legacy, expressions)
    names, values = request.expression_attribute_names, request.expression_attribute_values
    check_used(names, values, expressions)
    is_legacy = any(value is not None for value in legacy.values())
    if request.attributes_to_get is not None:
        legacy_projection(request.attributes_to_get)  # raises before the filter is read
    given = _legacy(request, request.scan_filter) if is_legacy else None
    _check_starting_key(request)
    _segment(request)  # raises if the segment is wrong, before expressions are read
    if given is not None:
        return given
    ordered = {FILTER: expressions[FILTER], PROJECTION: expressions[PROJECTION]}
    return read_expressions(names, values, ordered)


def _check_starting_key(request: Query | Scan) -> None:
    for value in (request.exclusive_start_key or {}).values():
        try:
            admit(value)
        except ValidationFailed as error:
            if any(words in error.message for words in SHOWN_BARE):
                raise
            raise ValidationFailed(f"{STARTING_KEY}: {error.message}") from None


def _noting(rows: Iterator[StoredItem], noted: list[StoredItem]) -> Iterator[StoredItem]:
    for row in rows:
        noted.append(row)
        yield row


def _charge_scan(source: Source, rows: list[StoredItem], units: float, first: int) -> None:
    """Charge each partition for its share of the bytes that the scan read.

    If the scan read no rows, the partition that holds the token `first` pays all `units`.
    """
    shares: dict[int, int] = {}
    tokens: dict[int, int] = {}
    partitions = source.throughput.adaptive.map
    for item, size in rows:
        token = source.token(item)
        number = partitions.find(token).number
        shares[number] = shares.get(number, 0) + size
        tokens[number] = token
    total = sum(shares.values())
    if not total:
        source.throughput.take("Read", first, units)
    for number, size in shares.items():
        source.throughput.take("Read", tokens[number], units * size / total)


def _source_of_page(database: Database, request: PageRequest) -> tuple[EngineTable, Source]:
    """Return the table of a query or scan, and the table or index that it reads."""
    table = database.table(request.table_name)
    if request.index_name is None:
        return table, table
    index = table.indexes.get(request.index_name)
    if index is None:
        raise ValidationFailed(f"The table does not have the specified index: {request.index_name}")
    if index.is_global and request.consistent_read:
        raise ValidationFailed("Consistent reads are not supported on global secondary indexes")
    return table, index


def _check_whole(source: Source, request: PageRequest) -> None:
    """Raise if a request wants all attributes of a global index that does not have them."""
    if request.select != "ALL_ATTRIBUTES" or not isinstance(source, GlobalIndex):
        return
    if source.spec.projected is not None:
        raise ValidationFailed(
            "One or more parameter values were invalid: Select type ALL_ATTRIBUTES is not "
            f"supported for global secondary index {source.spec.name} because its projection type "
            "is not ALL"
        )


def check_select(request: PageRequest) -> None:
    select = request.select
    if select is None:
        return
    projected = request.projection_expression is not None
    given = "ProjectionExpression" if projected else "AttributesToGet"
    if select == "ALL_PROJECTED_ATTRIBUTES" and request.index_name is None:
        raise ValidationFailed(
            "One or more parameter values were invalid: ALL_PROJECTED_ATTRIBUTES can be used only "
            "when Querying using an IndexName"
        )
    if select == "SPECIFIC_ATTRIBUTES":
        if not projected and request.attributes_to_get is None:
            raise ValidationFailed(
                "One or more parameter values were invalid: Must specify the AttributesToGet or "
                "ProjectionExpression when choosing to get SPECIFIC_ATTRIBUTES"
            )
    elif projected or request.attributes_to_get is not None:
        what = "only the Count" if select == "COUNT" else select
        raise ValidationFailed(f"Cannot specify the {given} when choosing to get {what}")


def _after_of_scan(source: Source, request: PageRequest) -> Key | None:
    """Check the starting key of a scan, as DynamoDB does: first for its index, then its table."""
    start, schema = request.exclusive_start_key, source.schema
    is_index = not isinstance(source, EngineTable)
    if start is not None and is_index:
        if len(start) != len(schema.entry_names):
            raise ValidationFailed(STARTING_KEY)
        for part in (*schema.hash_parts, *schema.sort_parts):
            check_start(start, schema, part)
    _check_whole(source, request)
    return None if start is None else _after(source, start)


def _after(source: Source, start: Item) -> Key:
    try:
        return source.start_key(start)
    except ValidationFailed as error:
        raise ValidationFailed(f"{STARTING_KEY}: {error.message}") from None


def _check_start(
    after: Key, hash_: Part, tests: dict[str, KeyTest], schema: KeySchema, start: Item
) -> None:
    """Raise if a query could not have ended at its starting key."""
    sorted_by = [part.name for part in schema.sort_parts if part.name in tests]
    if any(not tests[name].holds(start[name]) for name in sorted_by):
        raise ValidationFailed("The provided starting key does not match the range key predicate")
    if after.hash != hash_:
        raise ValidationFailed(
            "The query can return at most one row and cannot be restarted"
            if sorted_by
            else "The provided starting key is outside query boundaries based on provided "
            "conditions"
        )


def _segment(request: Scan) -> tuple[int, int]:
    number, total = request.segment, request.total_segments
    if number is None and total is None:
        return 0, SPACE
    if number is None or total is None:
        missing, given = (
            ("Segment", "parameter TotalSegments")
            if number is None
            else ("TotalSegments", "Segment parameter")
        )
        raise ValidationFailed(
            f"The {missing} parameter is required but was not present in the request when "
            f"{given} is present"
        )
    if not 0 <= number < total:
        raise ValidationFailed(
            "The Segment parameter is zero-based and must be less than parameter TotalSegments: "
            f"Segment: {number} is not less than TotalSegments: {total}"
        )
    return -(-number * SPACE // total), -(-(number + 1) * SPACE // total)


def _answer(
    table: EngineTable,
    source: Source,
    request: PageRequest,
    seen: Seen,
    units: tuple[float, float],
) -> Json:
    """Return the answer to a query or scan, with the page that was `seen`.

    `units` are the read units of the page. They include the units charged to `source` (the table or
    index), and the units of items that were fetched from the table because a local index lacks
    attributes.
    """
    consumed = Consumed(request.return_consumed_capacity)
    if isinstance(source, EngineTable):
        consumed.add(table, "Read", units[0])
    else:
        consumed.add(table, "Read", units[1])
        consumed.add_index(table, source, "Read", units[0])
    answer: Json = {"Count": seen.matched, "ScannedCount": seen.scanned, **consumed.one()}
    if request.select != "COUNT":
        answer["Items"] = seen.items
    if seen.last is not None:
        answer["LastEvaluatedKey"] = source.schema.key_values(seen.last)
    return answer
