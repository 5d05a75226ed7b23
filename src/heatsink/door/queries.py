"""Queries of one key over all places that may hold its rows, in the order of the sort keys.

A query of a range of sort keys asks the places that can hold rows of that range. If the range is
within a prefix that is spread by time, these places are the buckets of the epochs that the range
may cover. The bare key is always asked, since rows whose sort keys carry no time are there.

The rows of all places are merged, and filter, projection and counts are evaluated on whole rows. So
a page ends exactly where DynamoDB's would: after `Limit` rows, or before the row that exceeds 1 MB.
In a table with a spread index, this also holds for rows that are all under the bare key: DynamoDB
would also count their shadow attributes. The query checks every row: the row must be where its keys
place it, and times must grow with the sort keys. Otherwise rows might be missing, so the query
fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from math import ceil, sqrt
from typing import Any, NamedTuple

from heatsink.emulator.operations.reads import check_select, prepared_query
from heatsink.registry.decisions import View
from heatsink.registry.layouts import Layout
from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.expressions.key_conditions import (
    Bounds,
    KeyTest,
    key_range,
    tests_of,
)
from heatsink.stores.dynamodb.wire.expressions.reading import Expressions, check_filter
from heatsink.stores.dynamodb.wire.requests import Query
from heatsink.stores.dynamodb.wire.values import Item, Native, admit_item, native

from .declaration import BACKWARDS_MS_MAX, Index, Rule, SpreadTable
from .keys import physical
from .pages import (
    Page,
    check_scalars,
    converted,
    key_condition,
    lacks,
    must_be_refused,
    schema_of,
    shown_page,
    without_local,
)
from .places import ItemPlaces, Keys, check_not_reserved
from .protocol import Body, LayoutOf, Need, Renew, Steps, UpstreamCall, checked, refusal
from .rewriting import NAMES, VALUES

PAGE_BYTES_MAX = 1_024 * 1_024
FIRST_ROWS = 512  # of all places together, if the query has no limit
PLACE_ROWS_MIN = 16
ASKED_AGAIN = 1.25
PARTIAL_FIELDS = (
    *("FilterExpression", "ProjectionExpression", "QueryFilter", "ScanFilter", "AttributesToGet"),
    "Select",
)
"""The parameters with which an answer lacks rows or attributes that DynamoDB has read."""


class Asked(NamedTuple):
    """A valid query: the request, its key condition, and the range of sort keys."""

    request: Query
    given: Expressions
    tests: dict[str, KeyTest]
    key: str
    bounds: Bounds
    of_index: Index | None


class Span(NamedTuple):
    """The times that a query covers among the sort keys of one rule, from `from_ms` to `to_ms`.

    None means that there is no bound at this end.
    """

    rule: Rule
    from_ms: int | None
    to_ms: int | None


def read_query(parameters: Body, table: SpreadTable, spread: Index | None = None) -> Asked:
    """Check a query of a table, or of an index that has the table's partition key.

    If the query reads a spread index, `spread` is this index. Raises `ValidationFailed`.
    """
    request = converted(parameters, Query)
    given, tests = prepared_query(request)
    check_select(request)
    index = spread
    if index is None and request.index_name is not None:
        index = table.indexes.get(request.index_name)
    if index is None and request.index_name is not None:
        raise ValidationFailed("there is no such index")
    if index is not None and index.is_global and request.consistent_read:
        raise ValidationFailed("Consistent reads are not supported on global secondary indexes")
    schema = schema_of(table, index)
    key, bounds = key_range(tests, schema)
    if given.condition is not None:
        check_filter(given, schema.names, "Filter Expression")
    check_scalars(given.nested, table)
    _check_start(request, tests, table, index)
    if index is not None and index.is_global:
        _check_projected(request, given, index)
    return Asked(request, given, tests, str(key), bounds, index)


def _check_start(
    request: Query, tests: dict[str, KeyTest], table: SpreadTable, index: Index | None
) -> None:
    start = request.exclusive_start_key
    if start is None:
        return
    names = set(schema_of(table, index).entry_names)
    if start.keys() != names or any(not test.holds(start[name]) for name, test in tests.items()):
        raise ValidationFailed("The provided starting key is invalid")


def _check_projected(request: Query, given: Expressions, index: Index) -> None:
    is_partial = index.projected is not None
    if (is_partial and request.select == "ALL_ATTRIBUTES") or lacks(index, given):
        raise ValidationFailed("the index does not project an attribute")


def query(places: ItemPlaces, parameters: Body, view: View) -> Steps:
    """Query the table, or an index whose partition key is the table's."""
    try:
        asked = read_query(parameters, places.table)
        start = asked.request.exclusive_start_key
        if start is not None and places.keys_of(start, exactly=False) is None:
            raise ValidationFailed("The provided starting key is invalid")
    except ValidationFailed:
        return (yield from must_be_refused("Query", parameters))
    check_not_reserved(asked.key)
    label = places.label(asked.key)
    has_shadows = places.known().has_shadows
    if not label and not has_shadows:
        [answer] = checked((yield [UpstreamCall("Query", parameters)]))
        return shown_page(answer, places)
    merge = Merge(places, parameters, asked, (start, view.horizon_ms))
    merge.plan(view.layout(label))
    truth = None
    if asked.request.consistent_read and _passes(places.table, asked, view.horizon_ms) and label:
        truth = LayoutOf(label)
    is_whole = not any(parameters.get(name) for name in PARTIAL_FIELDS)
    if (has_shadows and is_whole) or not merge.is_bare:
        return (yield from merge.steps(truth))
    whole: list[Need] = [UpstreamCall("Query", parameters, label)]
    answers = checked((yield [*whole, truth] if truth else whole))
    if truth is not None:
        yield from merge.learn(answers[1])
    is_short = has_shadows and is_cut(answers[0], asked.request.limit)
    if merge.is_bare and not is_short:
        return shown_page(answers[0], places)
    merge.count_cost(answers[0])
    return (yield from merge.steps(None))


def is_cut(answer: Body, limit: object) -> bool:
    """Return whether DynamoDB ended a page because its rows are large, not because of `limit`."""
    return "LastEvaluatedKey" in answer and answer["ScannedCount"] != limit


def _passes(table: SpreadTable, asked: Asked, horizon_ms: int) -> bool:
    """Return whether a query may cover times past the horizon, whose epochs the view may lack."""
    bounds = asked.bounds if asked.of_index is None else Bounds()
    spans = [span for span in spans_of(table, bounds) if span.rule.time_of is not None]
    return any(span.to_ms is None or span.to_ms >= horizon_ms for span in spans)


def key_of(parameters: Body, partition_key: str) -> str | None:
    """Return the partition key of a query; None if the query is malformed."""
    text, legacy = parameters.get("KeyConditionExpression"), parameters.get("KeyConditions")
    try:
        if isinstance(text, str):
            names, values = parameters.get(NAMES), parameters.get(VALUES)
            test = tests_of(text, names, values).get(partition_key)
            found: Any = test.values[0] if test is not None and test.operator == "EQ" else None
        else:
            found = legacy[partition_key]["AttributeValueList"][0]  # type: ignore[index]
    except (ValidationFailed, LookupError, TypeError, AttributeError):
        return None
    key = found.get("S") if isinstance(found, dict) else None
    return key if isinstance(key, str) and key else None


def spans_of(table: SpreadTable, bounds: Bounds) -> list[Span]:
    """Return, for each rule that spreads by time, the times that the range `bounds` may cover.

    Rules whose sort keys are outside of the range are left out.
    """
    low, high = bounds.low, bounds.high
    if bounds.prefix is not None:
        low = bounds.prefix
    spans = []
    for rule in table.rules:
        if rule.time_of is None and rule.buckets == 1:
            continue
        if bounds.prefix is not None:
            begins = isinstance(low, str) and (
                low.startswith(rule.prefix) or rule.prefix.startswith(low)
            )
            if rule.prefix and not begins:
                continue
        elif not _overlaps(rule.prefix, low, high):
            continue
        from_ms, to_ms = _time(table, rule, low), _time(table, rule, high)
        spans.append(
            Span(
                rule,
                None if from_ms is None else from_ms - BACKWARDS_MS_MAX,
                None if to_ms is None else to_ms + BACKWARDS_MS_MAX,
            )
        )
    return spans


def _overlaps(prefix: str, low: Any, high: Any) -> bool:
    if not prefix:
        return True
    begins_in_time = low is None or low.startswith(prefix) or low < prefix
    return begins_in_time and (high is None or high >= prefix)


def _time(table: SpreadTable, rule: Rule, bound: Any) -> int | None:
    """Return the time in a bound's sort key under a rule; None if it has none."""
    if bound is None or table.rule_of(bound) is not rule:
        return None
    return rule.time_ms(bound)


class Source:
    """The rows of one place (the bare key or a bucket), read in order and in parts."""

    def __init__(self, bucket: int | None, start: Any) -> None:
        self.bucket = bucket
        self.start = start
        self.rows: deque[tuple[Any, Item]] = deque()
        self.done = False

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.done


class Merge:
    """One page of a query, made from the rows of several places."""

    def __init__(
        self, places: ItemPlaces, parameters: Body, asked: Asked, since: tuple[Body | None, int]
    ) -> None:
        """`since` is (starting key, horizon): for times below this horizon, layouts are final."""
        self._places = places
        self._table = places.table
        self._asked = asked
        self._start, self._final_ms = since
        self._plain = without_local(parameters)
        self._sources: dict[int | None, Source] = {}
        self._page = Page(asked.given, asked.request.select == "COUNT", [])
        if asked.of_index is not None and asked.request.select != "ALL_ATTRIBUTES":
            self._page.projected = asked.of_index.projected
        self._bytes = 0
        self._capacities: list[Any] = []
        self._layout: Layout | None = None
        self._last: tuple[Rule, int] | None = None
        names = asked.of_index.sort_keys if asked.of_index else ()
        self._order = (*names, self._table.sort_key)

    def plan(self, layout: Layout) -> None:
        """Note all places that may have rows of the query, according to a layout."""
        self._places.check_adopted(layout)
        self._layout = layout
        for bucket in self._buckets(layout):
            if bucket not in self._sources:
                self._sources[bucket] = Source(bucket, self._start)

    def count_cost(self, answer: Body) -> None:
        """Add the cost of an answer whose rows the page does not use."""
        self._capacities.append(answer.get("ConsumedCapacity"))

    def learn(self, layout: Layout) -> Generator[list[Need], list[Any], None]:
        """Use a layout that was just read from the store, for rows whose time is below the horizon.

        The layout may lack epochs that start later. Also raises if the table may not be used: the
        view may not know of the adoption yet.
        """
        if not self._places.is_adopted(layout):
            checked((yield [Renew()]))
        self.plan(layout)

    def _buckets(self, layout: Layout) -> list[int | None]:
        asked = self._asked
        if not self._places.label(asked.key):
            return [None]
        if asked.of_index is not None:
            return buckets_of(self._table, layout, Bounds())
        test = asked.tests.get(self._table.sort_key)
        if test is None or test.operator != "EQ":
            bounds = rest_of(asked, self._start, self._table.sort_key)
            return buckets_of(self._table, layout, bounds)
        keys = Keys(asked.key, native(test.values[0]))
        spot = self._places.spot_by(layout, keys)
        return [spot.bucket, None] if self._places.may_stray(keys, spot) else [spot.bucket]

    @property
    def is_bare(self) -> bool:
        """Whether the bare key is the only place to ask."""
        return list(self._sources) == [None]

    def steps(self, truth: LayoutOf | None) -> Steps:
        """Read the page.

        If `truth` is given, the first request to the store also reads this layout.
        """
        limit = self._asked.request.limit
        last: Item | None = None
        while True:
            empty = [source for source in self._sources.values() if source.is_empty]
            if empty:
                yield from self._fill(empty, truth)
                truth = None
                continue
            found = self._next()
            if found is None:
                return self._page.answer(self._capacities)
            if not found:
                continue
            size = admit_item(found)
            if self._page.scanned and self._bytes + size > PAGE_BYTES_MAX:
                return self._ended(last)
            self._take(found, size)
            last = found
            if self._page.scanned == limit:
                return self._ended(last)

    def _take(self, item: Item, size: int) -> None:
        self._bytes += size
        self._page.take(item)

    def _ended(self, last: Item | None) -> Body:
        assert last is not None
        names = schema_of(self._table, self._asked.of_index).entry_names
        token = {name: last[name] for name in names}
        return {**self._page.answer(self._capacities), "LastEvaluatedKey": token}

    def _fill(
        self, empty: list[Source], truth: LayoutOf | None
    ) -> Generator[list[Need], list[Any], None]:
        rows = self._rows_wanted()
        needs: list[Need] = [self._call(source, rows) for source in empty]
        if truth is not None:
            needs.append(truth)
        answers = checked((yield needs))
        for source, answer in zip(empty, answers, strict=False):
            self._feed(source, answer)
        if truth is not None:
            yield from self.learn(answers[-1])

    def _rows_wanted(self) -> int | None:
        """Return how many rows to read from each place: its part of the page, plus a margin.

        Returns None, for no limit, if there is a single place and this is the first request.
        """
        page, places = self._page, len(self._sources)
        if self._asked.request.limit is not None:
            left = self._asked.request.limit - page.scanned
            share = left / places
            return min(left, ceil(share + 2 * sqrt(share)) + 1)
        if not page.scanned and places == 1:
            return None
        if not page.scanned:
            return max(FIRST_ROWS // places, PLACE_ROWS_MIN)
        rows_left = (PAGE_BYTES_MAX - self._bytes) / (self._bytes / page.scanned)
        return max(ceil(ASKED_AGAIN * rows_left / places), PLACE_ROWS_MIN)

    def _call(self, source: Source, rows: int | None) -> UpstreamCall:
        asked, table = self._asked, self._table
        name = physical(asked.key, source.bucket)
        changed = {
            **self._plain,
            **key_condition(asked.tests, {table.partition_key: {"S": name}}),
        }
        changed.update({} if rows is None else {"Limit": rows})
        if asked.of_index is not None and self._needs_all(asked.of_index):
            changed["Select"] = "ALL_ATTRIBUTES"
        changed.pop("ExclusiveStartKey", None)
        if source.start is not None:
            changed["ExclusiveStartKey"] = {**source.start, table.partition_key: {"S": name}}
        return UpstreamCall("Query", changed, self._places.label(asked.key), source.bucket)

    def _needs_all(self, index: Index) -> bool:
        """Return whether the query needs attributes that a local index lacks."""
        if index.is_global or index.projected is None:
            return False
        asked = self._asked
        return asked.request.select == "ALL_ATTRIBUTES" or lacks(index, asked.given)

    def _feed(self, source: Source, answer: Body) -> None:
        self.count_cost(answer)
        for stored in answer["Items"]:
            item = self._places.shown(stored)
            order = tuple(native(item[name]) for name in self._order)
            source.rows.append((order, item))
        source.start = answer.get("LastEvaluatedKey")
        source.done = source.start is None

    def _next(self) -> Item | None:
        """Take the next row in the page's order. Several places may have a row with this sort key.

        Returns an empty row if none of them counts, and None if no row is left.
        """
        heads = [source for source in self._sources.values() if source.rows]
        if not heads:
            return None
        order = [source.rows[0][0] for source in heads]
        first = min(order) if self._asked.request.scan_index_forward else max(order)
        same = [source for source, one in zip(heads, order, strict=True) if one == first]
        return self._checked({source.bucket: source.rows.popleft()[1] for source in same})

    def _checked(self, rows: dict[int | None, Item]) -> Item:
        """Return the row that counts, of those with one sort key; empty if none does.

        `rows` has them by bucket. In an append-only table the bucket's row wins over a row under
        the bare key. In any other table, a row that is not where it belongs raises `WireError`. If
        a row's place is not decided yet, only a second row with the same sort key can show that one
        of them is misplaced.
        """
        assert self._layout is not None
        item = next(iter(rows.values()))
        keys = self._places.keys_of(item, exactly=False)
        assert keys is not None
        rule = self._table.rule_of(keys.sort)
        time_ms = rule.time_ms(keys.sort)
        if not self._is_placed(rule, time_ms):
            if len(rows) > 1 and not self._table.append_only:
                raise self._places.misplaced(keys)
            return next((row for bucket, row in rows.items() if bucket is not None), item)
        if time_ms is not None:
            self._check_order(keys, rule, time_ms)
        spot = self._places.spot_by(self._layout, keys)
        if self._table.append_only:
            stray = rows.get(None) if self._places.may_stray(keys, spot) else None
            return rows.get(spot.bucket) or stray or {}
        if rows.keys() != {spot.bucket}:
            raise self._places.misplaced(keys)
        return item

    def _is_placed(self, rule: Rule, time_ms: int | None) -> bool:
        """Return whether the place of a row is final: it has fixed buckets, or its time is past."""
        return rule.buckets > 1 if time_ms is None else time_ms < self._final_ms

    def _check_order(self, keys: Keys, rule: Rule, time_ms: int) -> None:
        if self._asked.of_index is not None:
            return
        if self._last is not None and self._last[0] is rule:
            step_ms = time_ms - self._last[1]
            if not self._asked.request.scan_index_forward:
                step_ms = -step_ms
            if step_ms < -BACKWARDS_MS_MAX:
                raise refusal(
                    f"the times in the sort keys of table {self._table.name} do not grow with the "
                    f"sort keys: {keys.sort!r} of {keys.key!r} is {-step_ms / 1000:.1f} s out of "
                    "order. Rows could be missing, so the query fails: correct the time_of of the "
                    "declaration, or declare the prefix unspread"
                )
        self._last = (rule, time_ms)


def rest_of(asked: Asked, start: Body | None, sort_key: str) -> Bounds:
    """Return the range of sort keys after the starting key."""
    if start is None or asked.bounds.prefix is not None:
        return asked.bounds
    at: Native = native(start[sort_key])
    if asked.request.scan_index_forward:
        return asked.bounds._replace(low=at)
    return asked.bounds._replace(high=at)


def buckets_of(table: SpreadTable, layout: Layout, bounds: Bounds) -> list[int | None]:
    """Return the buckets that may hold rows within `bounds`. None stands for the bare key."""
    most = 1
    for span in spans_of(table, bounds):
        most = max(most, span.rule.buckets)
        if span.rule.time_of is not None:
            epochs = layout.overlapping(span.from_ms, span.to_ms)
            most = max([most, *(epoch.buckets for epoch in epochs)])
    return [None, *range(most)] if most > 1 else [None]
