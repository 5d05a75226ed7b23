"""Queries of one key over all its buckets, in the order of the sort keys.

`spread.gather` plans how many rows to query from which bucket. This module passes it sort keys in
place of ids.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from heatsink.door.keys import check_partition_value, comparable, physical, size_of
from heatsink.errors import InvalidSetting
from heatsink.primitives.keys import key_of
from heatsink.spread.gather import Gather, Range
from heatsink.spread.store import Row

from .calls import Background, Calls
from .places import SLACK_MS, KeyPlaces, ReadPlan

RANGES = ("=", "<", "<=", ">", ">=", "BETWEEN", "begins_with")
CURE = "use Key(partition_key).eq(value), alone or with & and one condition on the sort key"
CHUNK = 500
PAGE_BYTES = 1_000_000
Item = dict[str, Any]


@dataclass(frozen=True)
class TableKeys:
    """The names of a table's key attributes."""

    partition: str
    sort: str


@dataclass(frozen=True)
class Asked:
    """A parsed `Key(...)` condition: the partition key, and a range of sort keys.

    `lowest` and `highest` are part of the range. None means no bound.
    """

    key: str
    partition: Any  # boto3's Key of the partition key
    sort: Any = None
    lowest: Any = None
    highest: Any = None

    def at(self, physical: str) -> Any:
        """Return the same condition, with `physical` as the partition key."""
        where = self.partition.eq(physical)
        return where if self.sort is None else where & self.sort


@dataclass(frozen=True)
class Wanted:
    """A page to read: its condition, start, order and limit."""

    asked: Asked
    start: Any
    newest_first: bool
    limit: int | None
    consistent: bool


class Queries:
    """Reads pages of a table."""

    def __init__(
        self,
        keys: TableKeys,
        places: KeyPlaces,
        calls: Calls,
        background: Background,
        pool: Executor,
    ) -> None:
        self._keys = keys
        self._places = places
        self._calls = calls
        self._background = background
        self._pool = pool

    def page(self, wanted: Wanted) -> tuple[list[Item], Any]:
        """Return the items of a page, and the sort key after which the next page starts.

        The sort key is None if no page follows.
        """
        items: list[Item] = []
        start, size = wanted.start, 0
        while True:
            room = CHUNK if wanted.limit is None else min(wanted.limit - len(items), CHUNK)
            found, last = self._chunk(wanted, start, room + 1)
            for sort, item in found[:room]:
                items.append(item)
                start, size = sort, size + size_of(item)
                if size >= PAGE_BYTES:
                    return items, start
            if len(found) <= room:
                start = last
            if start is None or len(items) == wanted.limit:
                return items, start

    def _chunk(self, wanted: Wanted, start: Any, count: int) -> tuple[list[tuple[Any, Item]], Any]:
        """Return up to `count` items after `start`, and the sort key of the last row read.

        The sort key is None if all rows were read.
        """
        asked, places = wanted.asked, self._places
        key = places.registry_key(asked.key)
        low, high = (
            (asked.lowest, asked.highest if start is None else start)
            if wanted.newest_first
            else (asked.lowest if start is None else start, asked.highest)
        )
        span = places.span_of(low, high)
        truth = self._background.start_layout(key) if places.passes_horizon(span[1]) else None
        plan, found = places.plan(asked.key, span), _Found()
        ids: Any = _SortKeys(places, wanted.newest_first)
        gather = Gather(key, plan, Range(None, None, wanted.newest_first), count, ids)
        frontiers: dict[str, Any] = {}
        while asks := gather.asks():
            fetches = {p: (key_of(p)[1], frontiers.get(p, start), a.limit) for p, a in asks.items()}
            answers = self._fetch_all(wanted, list(fetches.values()))
            for (partition, ask), answer in zip(asks.items(), answers, strict=True):
                rows = self._take(answer, key_of(partition)[1], found)
                gather.feed(partition, ask, rows)
                if rows:
                    frontiers[partition] = rows[-1].raw
            if truth is not None:
                plan, truth = places.plan_by(truth.result(), span), None
                gather.learn(plan)
        rows = gather.rows
        end = rows[-1].raw if len(rows) >= count else None
        return found.items(rows, plan, places), end

    def _take(self, items: list[Item], bucket: int | None, found: _Found) -> list[Row]:
        by_sort = {comparable(item[self._keys.sort]): item for item in items}
        (found.bare if bucket is None else found.placed).update(by_sort)
        return [Row(sort, b"", 0, 1, None) for sort in by_sort]

    def _fetch_all(
        self, wanted: Wanted, fetches: list[tuple[int | None, Any, int]]
    ) -> list[list[Item]]:
        """Query all buckets concurrently, and return the rows of each bucket.

        The first bucket is queried in this thread, since most keys have only one bucket.
        """
        others = [self._pool.submit(self._fetch, wanted, *fetch) for fetch in fetches[1:]]
        first = self._fetch(wanted, *fetches[0])
        return [first, *(other.result() for other in others)]

    def _fetch(self, wanted: Wanted, bucket: int | None, start: Any, limit: int) -> list[Item]:
        """Return up to `limit` rows of one bucket, beginning after the sort key `start`."""
        key = wanted.asked.key
        name = physical(key, bucket)
        parameters: dict[str, Any] = {
            "KeyConditionExpression": wanted.asked.at(name),
            "ScanIndexForward": not wanted.newest_first,
            "ConsistentRead": wanted.consistent,
        }
        if start is not None:
            parameters["ExclusiveStartKey"] = {self._keys.partition: name, self._keys.sort: start}
        items: list[Item] = []
        label = self._places.registry_key(key)
        while len(items) < limit:
            parameters["Limit"] = limit - len(items)
            answer = self._calls.send("query", label, bucket, **parameters)
            items += answer["Items"]
            parameters["ExclusiveStartKey"] = answer.get("LastEvaluatedKey")
            if not parameters["ExclusiveStartKey"]:
                break
        return items


def read_condition(condition: Any, partition_key: str, sort_key: str) -> Asked:
    operator, values = _parts(condition)
    halves = values if operator == "AND" else (condition,)
    by_name: dict[str, Any] = {}
    for half in halves:
        by_name[_parts(half)[1][0].name] = half
    if len(by_name) != len(halves) or not {partition_key} <= by_name.keys() <= {
        partition_key,
        sort_key,
    }:
        raise InvalidSetting(f"KeyConditionExpression names {', '.join(by_name)}: {CURE}")
    operator, (partition, key) = _parts(by_name[partition_key])
    if operator != "=":
        raise InvalidSetting(f"KeyConditionExpression has {partition_key} {operator}: {CURE}")
    return _with_range(check_partition_value(key), partition, by_name.get(sort_key))


def _parts(condition: Any) -> tuple[str, tuple[Any, ...]]:
    try:
        expression = condition.get_expression()
        operator, values = expression["operator"], tuple(expression["values"])
    except (AttributeError, KeyError, TypeError):
        raise InvalidSetting(f"KeyConditionExpression must be made with Key(…): {CURE}") from None
    if operator == "AND" or (operator in RANGES and hasattr(values[0], "name")):
        return operator, values
    raise InvalidSetting(f"KeyConditionExpression cannot have {operator}: {CURE}")


def _with_range(key: str, partition: Any, sort: Any) -> Asked:
    if sort is None:
        return Asked(key, partition)
    operator, (_, *values) = _parts(sort)
    lowest = values[0] if operator not in ("<", "<=") else None
    highest = values[-1] if operator in ("=", "<", "<=", "BETWEEN") else None
    return Asked(key, partition, sort, lowest, highest)


@dataclass
class _Found:
    """The rows read so far, by sort key.

    If the same sort key is both in the bucket and under the bare key, the bucket's row wins.
    """

    placed: dict[Any, Item] = field(default_factory=dict)
    bare: dict[Any, Item] = field(default_factory=dict)

    def items(self, rows: list[Row], plan: ReadPlan, places: KeyPlaces) -> list[tuple[Any, Item]]:
        chosen: dict[Any, Item] = {}
        for sort in (row.raw for row in rows):
            if sort in self.placed:
                chosen[sort] = self.placed[sort]
            elif plan.counts_bare(places.time_of(sort)):
                chosen[sort] = self.bare[sort]
        return list(chosen.items())


class _SortKeys:
    """Lets `Gather` use sort keys in place of ids.

    The time of a sort key gets a second of slack, since sort keys are in order of time only to the
    second.
    """

    def __init__(self, places: KeyPlaces, newest_first: bool) -> None:
        self._time_of = places.time_of
        self._slack_ms = -SLACK_MS if newest_first else SLACK_MS

    def time_ms(self, value: Any) -> int:
        return self._time_of(value) + self._slack_ms
