"""Queries and scans of a spread index.

A query asks all buckets of the value and merges their rows by the index's sort key. Rows with equal
sort keys are ordered by their buckets, and within a bucket as DynamoDB orders them. A page token
holds the application's keys and one more attribute. This attribute says at which row each bucket
continues, if several buckets have rows with the last sort key.

DynamoDB updates an index some time after the table. Until then, a row that has changed may be in
two buckets, or under a value that it no longer has. So the query drops rows whose attribute differs
from the value, and returns a row from two buckets only once.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec

from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.expressions.key_conditions import KeyTest
from heatsink.stores.dynamodb.wire.values import Item, native

from .keys import BARE, number_in, physical
from .pages import (
    Page,
    key_condition,
    must_be_refused,
    schema_of,
    start_at,
    without_local,
)
from .places import ItemPlaces, application_key
from .protocol import Body, Need, Steps, UpstreamCall, WireError, refusal
from .queries import Asked, Merge, Source, read_query
from .scans import check_page, prepared, read_rows
from .spread_indexes import EXPRESSIONS, OPAQUE, SpreadIndex

START = "ExclusiveStartKey"


Tie = Annotated[list[Any], msgspec.Meta(min_length=2)]


class Position(msgspec.Struct, array_like=True):
    """Where a page of a spread index ended. It travels in the page's token.

    `bucket` is the bucket of the page's last row. Other buckets may have rows with the same sort
    key on this page. For each of these buckets, `ties` has (partition key, sort key) of its last
    such row. All these buckets are buckets of the index. `place` is the bucket of the table that
    has the last row, or None if the row's keys tell it. A tie has its own place as a third element.
    """

    bucket: int
    ties: dict[int, Tie] = {}
    place: int | None = None


_position = msgspec.json.Decoder(Position)


def number(bucket: int | None) -> int:
    return BARE if bucket is None else bucket


def query_index(places: ItemPlaces, index: SpreadIndex, parameters: Body) -> Steps:
    """Query a spread index by its new index."""
    plain, position = split_token(index, parameters)
    try:
        asked = read_query(plain, places.table, index.index)
        index.check_scalar(asked.given.nested)
        label = index.label(asked.key)
        merge = IndexMerge(places, index, plain, asked)
        merge.start(label)
        if asked.request.exclusive_start_key is not None:
            yield from merge.resume(asked.request.exclusive_start_key, position)
    except ValidationFailed:
        return (yield from refused(places, index, "Query", plain))
    try:
        return (yield from merge.steps(None))
    except WireError as error:
        raise places.error(error) from None


def refused(places: ItemPlaces, index: SpreadIndex, operation: str, parameters: Body) -> Steps:
    """Let DynamoDB refuse a wrong request, and raise its error.

    The request goes to the new index. In the error, the index has the application's name.
    """
    try:
        return (yield from must_be_refused(operation, renamed(index, parameters)))
    except WireError as error:
        raise places.error(error) from None


def split_token(index: SpreadIndex, parameters: Body) -> tuple[Body, Position | None]:
    """Split a request's starting key.

    Return the request with a plain starting key, and the position.

    The position is None if the starting key has none.
    """
    start = parameters.get(START)
    if not isinstance(start, dict) or OPAQUE not in start:
        return parameters, None
    rest = {name: value for name, value in start.items() if name != OPAQUE}
    try:
        position = _position.decode(start[OPAQUE]["S"])
    except (msgspec.MsgspecError, TypeError, KeyError):
        raise refusal(
            f"the starting key of the index {index.name} is damaged: its attribute {OPAQUE!r} must "
            "be as LastEvaluatedKey had it"
        ) from None
    return {**parameters, START: rest}, position


def uses_new(index: SpreadIndex, parameters: Body) -> bool:
    """Return whether to read a page from the new index, and not from the application's old one.

    All pages of a query come from the index of its first page. The request's starting key shows
    which index that is.
    """
    start = parameters.get(START)
    if not isinstance(start, dict):
        return index.reads_new
    if OPAQUE in start:
        if index.note.step in ("clearing", "left"):
            raise _outdated(index)
        return True
    if index.reads_new and not index.has_old and start:
        raise _outdated(index)
    return False


def _outdated(index: SpreadIndex) -> WireError:
    return refusal(
        f"the starting key is from before a change of index {index.name}, and the index that it "
        "belongs to is deleted: begin the query again"
    )


class IndexSource(Source):
    """One bucket of a value in the new index, from which a page takes rows.

    `tests` is the key condition. If a page continues another one, the condition begins where the
    other one ended.
    """

    def __init__(self, bucket: int | None, tests: dict[str, KeyTest]) -> None:
        super().__init__(bucket, None)
        self.tests = tests
        self.last: Item | None = None
        """The last row from this bucket that a page took or dropped, in its stored form."""


class Entry(NamedTuple):
    """Where a row is in the order of a page."""

    sort: tuple[Any, ...]
    bucket: int


class IndexMerge(Merge):
    """One page of a query of a spread index."""

    def __init__(self, places: ItemPlaces, index: SpreadIndex, plain: Body, asked: Asked) -> None:
        super().__init__(places, plain, asked, (None, 0))
        self._index = index
        self._sort = index.index.sort_keys
        self._seen: set[tuple[str, str]] = set()
        self._next_row: tuple[int | None, Item] = (None, {})
        self._last_row: tuple[int | None, Item] = (None, {})

    def start(self, label: str) -> None:
        """Begin with all buckets that may hold rows of the value."""
        self._label = label
        for bucket in self._index.buckets(self._asked.key):
            self._sources[bucket] = IndexSource(bucket, self._asked.tests)

    def resume(
        self, start: Item, position: Position | None
    ) -> Generator[list[Need], list[Any], None]:
        """Continue after the last row of the page before."""
        assert position is not None
        buckets = {number(bucket): bucket for bucket in self._sources}
        for known in (position.bucket, *position.ties):
            if known not in buckets:  # retired meanwhile: a sweep has found it empty
                self._sources[known] = IndexSource(known, self._asked.tests)
        later = self._from_sort(start)
        for bucket, source in self._sources.items():
            assert isinstance(source, IndexSource)
            keys, place = start, position.place
            tie = position.ties.get(number(bucket))
            if tie is None and number(bucket) != position.bucket:
                source.tests = later
                continue
            if tie is not None:
                table = self._table
                keys = {**start, table.partition_key: tie[0], table.sort_key: tie[1]}
                place = tie[2] if len(tie) > 2 else None
            source.last = yield from start_at(self._places, keys, keys, place)
            source.start = self._stored(source.last, bucket)

    def _stored(self, last: Item, bucket: int | None) -> Body:
        """Return a starting key as the new index has it."""
        rest = {name: value for name, value in last.items() if name != self._index.attribute}
        return {**rest, self._index.shadow: {"S": physical(self._asked.key, bucket)}}

    def _from_sort(self, start: Item) -> dict[str, KeyTest]:
        """Return the key condition without the rows before the last page's last sort key."""
        tests = dict(self._asked.tests)
        if not self._sort:
            return tests
        [name] = self._sort
        test, at = tests.get(name), start[name]
        forward = self._asked.request.scan_index_forward
        kind, values = (test.operator, test.values) if test is not None else ("", [])
        if kind == "EQ":
            return tests
        if forward and kind in ("LT", "LE", "BETWEEN"):
            tests[name] = KeyTest("BETWEEN", [at, values[-1]])
        elif forward:
            tests[name] = KeyTest("GE", [at])
        elif kind in ("GT", "GE", "BETWEEN", "BEGINS_WITH"):
            tests[name] = KeyTest("BETWEEN", [values[0], at])
        else:
            tests[name] = KeyTest("LE", [at])
        return tests

    def _call(self, source: Source, rows: int | None) -> UpstreamCall:
        assert isinstance(source, IndexSource)
        index = self._index
        name = physical(self._asked.key, source.bucket)
        tests = {index.shadow: source.tests[index.attribute]}
        tests |= {one: test for one, test in source.tests.items() if one != index.attribute}
        changed = {
            **self._plain,
            "IndexName": index.stored_name,
            **key_condition(tests, {index.shadow: {"S": name}}),
        }
        changed.update({} if rows is None else {"Limit": rows})
        changed.pop(START, None)
        if source.start is not None:
            changed[START] = source.start
        return UpstreamCall("Query", changed, self._label, source.bucket)

    def _feed(self, source: Source, answer: Body) -> None:
        self._capacities.append(self._index.capacity(answer.get("ConsumedCapacity")))
        index, test = self._index, None
        if self._sort:
            test = self._asked.tests.get(self._sort[0])
        source.start, source.done = answer.get("LastEvaluatedKey"), "LastEvaluatedKey" not in answer
        for stored in answer["Items"]:
            if stored.get(index.attribute) != {"S": self._asked.key}:
                continue
            if test is not None and not test.holds(stored[self._sort[0]]):
                if self._is_past(test, stored[self._sort[0]]):
                    source.done = True
                continue
            sort = tuple(native(stored[name]) for name in self._sort)
            source.rows.append((Entry(sort, number(source.bucket)), stored))

    def _is_past(self, test: KeyTest, value: Any) -> bool:
        """Return whether all later rows fail the test if the row with this sort key fails it."""
        prefix: Any = native(test.values[0])
        return test.operator == "BEGINS_WITH" and native(value) > prefix

    def _checked(self, rows: dict[int | None, Item]) -> Item:
        [self._next_row] = rows.items()
        item, table = self._places.shown(self._next_row[1]), self._table
        key = str(item[table.partition_key]), str(item[table.sort_key])
        if key in self._seen:
            self._pass_by()
            return {}
        self._seen.add(key)
        return item

    def _take(self, item: Item, size: int) -> None:
        super()._take(item, size)
        self._pass_by()
        self._last_row = self._next_row

    def _pass_by(self) -> None:
        """Note that the next page continues after this row in its bucket.

        If a row would make the page exceed 1 MB, the page ends before it, and the next page begins
        with it.
        """
        bucket, stored = self._next_row
        source = self._sources[bucket]
        assert isinstance(source, IndexSource)
        source.last = stored

    def _ended(self, last: Item | None) -> Body:
        assert last is not None
        table, places = self._table, self._places
        sort = [last[name] for name in self._sort]
        ended, stored = self._last_row
        ties: dict[int, Tie] = {}
        for bucket, source in self._sources.items():
            assert isinstance(source, IndexSource)
            held = source.last
            if held is None or held is stored or [held[name] for name in self._sort] != sort:
                continue
            shown, place = places.shown(held), places.bucket_to_name(held)
            tie = [shown[table.partition_key], shown[table.sort_key]]
            ties[number(bucket)] = tie if place is None else [*tie, place]
        names = schema_of(table, self._index.index).entry_names
        position = Position(number(ended), ties, places.bucket_to_name(stored))
        token = {name: last[name] for name in names}
        token[OPAQUE] = {"S": msgspec.json.encode(position).decode()}
        answer: Body = self._page.answer(self._capacities)
        return {**answer, "LastEvaluatedKey": token}


def scan_index(places: ItemPlaces, index: SpreadIndex, parameters: Body) -> Steps:
    """Scan a spread index by its new index."""
    plain, position = split_token(index, parameters)
    try:
        changed = {**without_local(plain), "IndexName": index.stored_name}
        if plain.get(START) is not None:
            names = schema_of(places.table, index.index).entry_names
            place = position.place if position is not None else None
            start = yield from start_at(places, plain[START], names, place)
            changed[START] = _entry(index, start, position)
        given, _ = prepared("Scan", plain)
        check_page(places, "Scan", given, ({}, index.index))
        index.check_scalar(given.nested)
    except ValidationFailed:
        return (yield from refused(places, index, "Scan", parameters))
    if plain.get("Select") == "ALL_ATTRIBUTES":
        changed["Select"] = "ALL_ATTRIBUTES"
    names = schema_of(places.table, index.index).entry_names
    stored = [index.shadow if name == index.attribute else name for name in names]
    try:
        read = yield from read_rows("Scan", changed, stored, partial(_shown, places, index))
    except WireError as error:
        raise places.error(error) from None
    page = Page(given, plain.get("Select") == "COUNT", [])
    for item in read.items:
        if item is not None:
            page.take(item)
    answer: Body = page.answer([index.capacity(cost) for cost in read.costs])
    if read.last is None:
        return answer
    return {**answer, "LastEvaluatedKey": _token(places, index, read.last)}


def _shown(places: ItemPlaces, index: SpreadIndex, stored: Item) -> Item | None:
    """Return an entry as the application sees it; None if its item has another value by now."""
    value = application_key(stored[index.shadow]["S"])
    return places.shown(stored) if stored.get(index.attribute) == {"S": value} else None


def _entry(index: SpreadIndex, start: Body, position: Position | None) -> Body:
    """Return a starting key of the new index."""
    value = start[index.attribute].get("S")
    if position is None or not isinstance(value, str):
        raise ValidationFailed("The provided starting key is invalid")
    rest = {name: one for name, one in start.items() if name != index.attribute}
    bucket = None if position.bucket == BARE else position.bucket
    return {**rest, index.shadow: {"S": physical(value, bucket)}}


def _token(places: ItemPlaces, index: SpreadIndex, last: Body) -> Body:
    tag = last[index.shadow]["S"]
    value = application_key(tag)
    token = {**places.shown(last), index.attribute: {"S": value}}
    names = schema_of(places.table, index.index).entry_names
    position = Position(number_in(tag, value), {}, places.bucket_to_name(last))
    text = msgspec.json.encode(position).decode()
    return {**{name: token[name] for name in names}, OPAQUE: {"S": text}}


def renamed(index: SpreadIndex, parameters: Body) -> Body:
    """Return a request for the new index in place of the application's index."""
    attribute, shadow = index.attribute, index.shadow
    changed = {**index.renamed(parameters, EXPRESSIONS), "IndexName": index.stored_name}
    for field in ("KeyConditions", "QueryFilter", "ScanFilter", START):
        given = changed.get(field)
        if isinstance(given, dict) and attribute in given:
            changed[field] = {shadow if n == attribute else n: one for n, one in given.items()}
    return changed
