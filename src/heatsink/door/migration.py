"""The migration that spreads a global index, in steps; and the way back.

The migration records each step in the registry before it begins the step, and all processes follow
the record (`registry/spread_indexes.py` lists the steps). Each step first **settles**: it waits
until every process knows the record, and until earlier calls have ended. So while the migration
gives existing items their shadow attribute, no process writes an item without one. If a migration
is interrupted, even by `kill -9`, run it again: it continues with the recorded step.

A migration does no I/O itself. Like an operation of the core, it is a generator: it yields what it
needs (calls, records, settling, pauses), and a driver does it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import msgspec

from heatsink.errors import InvalidSetting, Unavailable
from heatsink.registry.adoption import completed_ms, is_leaving
from heatsink.registry.decisions import Decision, View
from heatsink.registry.spread_indexes import (
    SpreadNote,
    Step,
    Swept,
    note_of,
    note_on,
    swept_note,
    swept_on,
    values_of,
)
from heatsink.stores.dynamodb.wire.values import native

from .declaration import NAME_MAX
from .keys import physical
from .places import ItemPlaces, Keys, application_key
from .protocol import Body, Renew, UpstreamCall, WireError, checked
from .spread_indexes import SUFFIX, SpreadIndex, shadow_of

PARALLEL = 16
POLL_S = 2.0
ROUND_S = 0.1
PASSES_MAX = 10
RECORD_EACH = 5_000
FAILED = "ConditionalCheckFailedException"
ON_THE_WAY_BACK = ("restoring", "returning", "clearing")
SWEPT_BY_LEADERS = ("reading", "deleting", "spread")


class Record(NamedTuple):
    """A need: write `note` to the registry if the present note there is still `seen`.

    The answer says whether the note was written.
    """

    note: Decision
    seen: Decision | None


class Settle(NamedTuple):
    """A need: wait until all processes know the newest decisions and older calls have ended."""


class Pause(NamedTuple):
    """A need: wait for some seconds."""

    seconds: float


Need = UpstreamCall | Renew | Record | Settle | Pause
Moves = Generator[list[Need], list[Any], Any]
Told = Callable[[str, int], object]
"""Is told which step is under way, and how many items it has changed."""


class MigrationPace(NamedTuple):
    """How fast a migration changes items: at most `per_value_s` items a second of each value.

    It records its progress after each `record_each` items.
    """

    per_value_s: float = 200.0
    record_each: int = RECORD_EACH


class IndexMigration:
    """Spreads one index of a table, or brings it back."""

    def __init__(
        self,
        places: ItemPlaces,
        view: View,
        name: str,
        pace: MigrationPace = MigrationPace(),  # noqa: B008 (frozen)
        told: Told = lambda *_: None,
    ) -> None:
        self._places = places
        self._table = places.table.name
        self._view = view
        self._name = name
        self._pace = pace
        self._told = told
        self._changed = 0

    def spread(self, *, keep_old: bool = False) -> Moves:
        """Spread the index, and continue at the step that the registry has recorded.

        With `keep_old`, stop before the old index is deleted. Raises `InvalidSetting` if the index
        cannot be spread, or if it is being brought back.
        """
        while True:
            yield [Renew()]
            note = note_on(self._view, self._table, self._name)
            step = note.step if note is not None else "left"
            self._told(step if step != "left" else "", self._changed)
            if note is None or step == "left":
                yield from self._begin()
            elif step in ON_THE_WAY_BACK:
                raise InvalidSetting(
                    f"index {self._name} is leaving Heatsink ({step}): first finish with --leave",
                    field="index",
                )
            elif step == "creating":
                yield from self._create(_new_index(self._name, note))
                yield [Settle()]
                yield from self._go("tagging")
            elif step == "tagging":
                yield [Settle()]
                yield from self._backfill(note)
                yield from self._go("filled")
            elif step == "filled":
                yield [Settle()]
                yield from self._verify()
                yield from self._go("reading")
            elif step == "reading" and not keep_old:
                yield [Settle()]
                yield from self._go("deleting")
            elif step == "deleting":
                yield [Settle()]
                yield from self._delete(self._name)
                yield from self._go("spread")
            else:
                return

    def leave(self) -> Moves:
        """Create the application's own index again. Remove the new index and all shadows."""
        while True:
            yield [Renew()]
            note = note_on(self._view, self._table, self._name)
            self._told(note.step if note is not None else "left", self._changed)
            if note is None or note.step == "left":
                return
            if note.step in ("creating", "tagging", "filled"):
                yield from self._go("clearing")
            elif note.step == "reading":
                yield from self._go("returning")
            elif note.step in ("deleting", "spread"):
                yield from self._go("restoring")
            elif note.step == "restoring":
                yield from self._create(_old_index(self._name, note))
                yield from self._go("returning")
            elif note.step == "returning":
                yield [Settle()]
                yield from self._go("clearing")
            else:
                yield [Settle()]
                yield from self._delete(self._name + SUFFIX)
                yield from self._clear()
                yield from self._go("left")

    def sweep(self) -> Moves:
        """Move items out of retired buckets, until sweeps have found them empty.

        A bucket is retired if the newest epoch of its value does not use it. Queries still ask a
        retired bucket, since a global index cannot be read strongly. They stop when a sweep that
        runs at least a day later has also found the bucket empty. Returns how many retired buckets
        may still hold items.
        """
        for _ in range(PASSES_MAX):
            yield [Renew()]
            due = list(self._retired())
            if not due:
                return 0
            yield [Settle()]
            open_ = 0
            for value, start_ms, buckets in due:
                self._told("sweep", self._changed)
                swept = yield from self._sweep(value, start_ms, buckets)
                open_ += 0 if swept.is_closed else len(buckets)
            if not open_:
                return 0
        return open_

    def is_sweep_due(self, now_ms: int, calm_ms: int) -> bool:
        """Return whether retired buckets may still hold items, by the view.

        A value counts only if its number of buckets has not changed for `calm_ms`. While its load
        falls, its buckets fall step by step: a sweep after each step would move items repeatedly.
        """
        note = note_on(self._view, self._table, self._name)
        if note is None or note.step not in SWEPT_BY_LEADERS:
            return False
        return any(
            start_ms + calm_ms <= now_ms and not self._rests(value, start_ms)
            for value, start_ms, _ in self._retired()
        )

    def _rests(self, value: str, start_ms: int) -> bool:
        """Return whether the buckets that are retired since `start_ms` were closed within a day."""
        known = swept_on(self._view, self._table, self._name, value)
        is_same = known is not None and known.epoch_ms == start_ms
        return is_same and known is not None and known.rests(self._view.horizon_ms)

    @property
    def _index(self) -> SpreadIndex:
        return self._places.indexes[self._name]

    def _go(self, step: Step) -> Moves:
        """Record the next step."""
        yield [Renew()]
        note = note_on(self._view, self._table, self._name)
        assert note is not None
        yield from self._record(note.at(step, self._view.horizon_ms))

    def _record(self, note: SpreadNote) -> Moves:
        yield from self._commit(note_of(self._table, self._name, note))

    def _commit(self, decision: Decision) -> Moves:
        [is_done] = yield [Record(decision, self._view.pins.get(decision.key))]
        if isinstance(is_done, WireError):
            raise is_done
        if not is_done:
            raise Unavailable(
                f"another run changed the record on index {self._name} at the same moment: let one "
                "run go on, or run this again"
            )

    def _describe(self) -> Moves:
        [found] = checked((yield [UpstreamCall("DescribeTable", {"TableName": self._table})]))
        return found["Table"]

    def _begin(self) -> Moves:
        """Check that the index can be spread, and record how it is defined."""
        yield from self._check_adopted()
        described = yield from self._describe()
        note = note_for(described, self._places, self._name)
        yield from self._record(note.at("creating", self._view.horizon_ms))

    def _check_adopted(self) -> Moves:
        yield [Renew()]
        complete_ms = completed_ms(self._view, self._table)
        if complete_ms == float("inf") or is_leaving(self._view, self._table):
            raise InvalidSetting(
                f"the adoption of table {self._table} is not complete: a program without Heatsink "
                "would write items that the spread index lacks. Complete the adoption first",
                field="index",
            )

    def _create(self, wanted: Body) -> Moves:
        """Create an index if it is missing, and wait until it is active."""
        name = wanted["GlobalSecondaryIndexUpdates"][0]["Create"]["IndexName"]
        while True:
            described = yield from self._describe()
            found = _indexes_in(described).get(name)
            if found is not None and found.get("IndexStatus", "ACTIVE") == "ACTIVE":
                return
            if found is None and described.get("TableStatus", "ACTIVE") == "ACTIVE":
                checked((yield [UpstreamCall("UpdateTable", {"TableName": self._table, **wanted})]))
            else:
                yield [Pause(POLL_S)]

    def _delete(self, name: str) -> Moves:
        """Delete an index if it exists, and wait until it is gone."""
        deleting = {"GlobalSecondaryIndexUpdates": [{"Delete": {"IndexName": name}}]}
        while True:
            described = yield from self._describe()
            found = _indexes_in(described).get(name)
            if found is None:
                return
            if found.get("IndexStatus", "ACTIVE") == "ACTIVE" and (
                described.get("TableStatus", "ACTIVE") == "ACTIVE"
            ):
                checked(
                    (yield [UpstreamCall("UpdateTable", {"TableName": self._table, **deleting})])
                )
            else:
                yield [Pause(POLL_S)]

    def _pages(self, request: Body, start: Body | None = None) -> Moves:
        """Read one page of a scan or query; returns its rows and where the next page begins."""
        operation = "Query" if "KeyConditionExpression" in request else "Scan"
        given = {**request, "ExclusiveStartKey": start} if start is not None else request
        [answer] = checked((yield [UpstreamCall(operation, given)]))
        return answer["Items"], answer.get("LastEvaluatedKey")

    def _scan(self, condition: str = "") -> Body:
        """Return the parameters of a scan of items with the attribute or its shadow attribute."""
        table, index = self._places.table, self._index
        names = {"#p": table.partition_key, "#k": table.sort_key}
        names |= {"#a": index.attribute, "#s": index.shadow}
        return {
            "TableName": self._table,
            "ConsistentRead": True,
            "ProjectionExpression": "#p, #k, #a, #s",
            "FilterExpression": condition or "attribute_exists(#a) OR attribute_exists(#s)",
            "ExpressionAttributeNames": names,
        }

    def _backfill(self, note: SpreadNote) -> Moves:
        """Give every item that has the attribute its shadow attribute."""
        start, recorded = note.position, self._changed
        while True:
            rows, start = yield from self._pages(self._scan(), start)
            yield from self._mend(rows)
            if start is None:
                return
            if self._changed - recorded >= self._pace.record_each:
                recorded = self._changed
                yield from self._record(msgspec.structs.replace(note, position=start))

    def _verify(self) -> Moves:
        """Check that all shadow attributes are right, and that both indexes have equal entries."""
        for _ in range(PASSES_MAX):
            wrong, start = 0, None
            while True:
                rows, start = yield from self._pages(self._scan(), start)
                wrong += yield from self._mend(rows)
                if start is None:
                    break
            differing = yield from self._differing()
            if not wrong and not differing:
                return
            yield [Settle()]
        raise Unavailable(
            f"items of table {self._table} keep appearing without the shadow attribute of index "
            f"{self._name}, so a program writes to the table without Heatsink: find it with "
            "heatsink adopt --check, then run this again"
        )

    def _differing(self) -> Moves:
        """Return how many entries only one of the two indexes holds.

        An index lags behind the table. So a difference counts only if the item in the table is
        wrong, too.
        """
        index, table = self._index, self._places.table
        names = {"#p": table.partition_key, "#k": table.sort_key}
        found: dict[int, Body] = {}
        for name in (index.name, index.stored_name):
            start: Body | None = None
            while True:
                request = {
                    "TableName": self._table,
                    "IndexName": name,
                    "ProjectionExpression": "#p, #k",
                    "ExpressionAttributeNames": names,
                }
                rows, start = yield from self._pages(request, start)
                for row in rows:
                    mark = hash((str(row[table.partition_key]), str(row[table.sort_key])))
                    if found.pop(mark, None) is None:
                        found[mark] = row
                if start is None:
                    break
        wrong = 0
        for key in found.values():
            get = {"TableName": self._table, "Key": key, "ConsistentRead": True}
            [answer] = checked((yield [UpstreamCall("GetItem", get)]))
            wrong += yield from self._mend([answer["Item"]] if "Item" in answer else [])
        return wrong

    def _mend(self, rows: list[Body]) -> Moves:
        """Correct wrong or missing shadow attributes. Returns the number of corrected items."""
        calls: dict[str, deque[Need]] = {}
        for row in rows:
            call = self._mending(row)
            if call is not None:
                value = str(row.get(self._index.attribute))
                calls.setdefault(value, deque()).append(call)
        return (yield from self._paced(calls))

    def _mending(self, row: Body) -> UpstreamCall | None:
        """Return the call that corrects an item's shadow attribute; None if it is right.

        The call changes nothing if the attribute or the shadow attribute has changed since it was
        read.
        """
        index = self._index
        value, shadow = row.get(index.attribute), row.get(index.shadow)
        text = value.get("S") if isinstance(value, dict) else None
        if shadow is not None and application_key(shadow["S"]) == text:
            return None
        if not text:
            return None if shadow is None else self._retag(row, None)
        return self._retag(row, self._tag_of(row, text))

    def _tag_of(self, row: Body, value: str) -> str:
        keys = self._keys_of(row)
        return self._index.tag(value, keys.key, keys.sort)

    def _keys_of(self, row: Body) -> Keys:
        table = self._places.table
        key = application_key(row[table.partition_key]["S"])
        return Keys(key, native(row[table.sort_key]))

    def _retag(self, row: Body, tag: str | None) -> UpstreamCall:
        """Return the call that sets an item's shadow attribute to `tag`, or removes it."""
        table, index = self._places.table, self._index
        names, values = {"#s": index.shadow}, dict[str, Body]()
        tests = []
        for alias, name in (("#a", index.attribute), ("#s", index.shadow)):
            names[alias] = name
            if name in row:
                values[f":{alias[1:]}"] = row[name]
                tests.append(f"{alias} = :{alias[1:]}")
            else:
                tests.append(f"attribute_not_exists({alias})")
        if tag is not None:
            values[":new"] = {"S": tag}
        request: Body = {
            "TableName": self._table,
            "Key": {name: row[name] for name in (table.partition_key, table.sort_key)},
            "UpdateExpression": "REMOVE #s" if tag is None else "SET #s = :new",
            "ConditionExpression": " AND ".join(tests),
            "ExpressionAttributeNames": names,
        }
        return UpstreamCall("UpdateItem", {**request, **_values(values)})

    def _paced(self, calls: dict[str, deque[Need]]) -> Moves:
        """Make these calls, at most `per_value_s` a second for each value.

        `calls` has them by value.

        Returns how many calls it made.
        """
        count = 0
        each = max(int(self._pace.per_value_s * ROUND_S), 1)
        while calls:
            now = [one for of in calls.values() for one in [*of][:each]]
            for of in calls.values():
                for _ in range(min(each, len(of))):
                    of.popleft()
            calls = {value: of for value, of in calls.items() if of}
            for first in range(0, len(now), PARALLEL):
                for answer in (yield now[first : first + PARALLEL]):
                    if isinstance(answer, WireError) and answer.code != FAILED:
                        raise answer
            count += len(now)
            self._changed += len(now)
            self._told("", self._changed)
            yield [Pause(each / self._pace.per_value_s)]
        return count

    def _clear(self) -> Moves:
        """Remove the shadow attribute from all items."""
        for _ in range(PASSES_MAX):
            found, start = 0, None
            while True:
                rows, start = yield from self._pages(self._scan("attribute_exists(#s)"), start)
                calls = {"": deque[Need](self._retag(row, None) for row in rows)}
                found += yield from self._paced(calls if rows else {})
                if start is None:
                    break
            if not found:
                return
        raise Unavailable(
            f"items of table {self._table} keep getting a shadow attribute of index {self._name}: "
            "a process still follows old decisions. Restart it, then run this again"
        )

    def _retired(self) -> Iterator[tuple[str, int, list[int]]]:
        """Yield (value, time, buckets) for each value with retired buckets.

        The value has not used these buckets since this time.
        """
        index, view = self._index, self._view
        for value in values_of(view, self._table, self._name):
            layout = view.layout(index.label(value))
            newest = layout.epoch_at(view.horizon_ms - 1)
            buckets = [b for b in index.buckets(value) if b is not None and not newest.uses(b)]
            if buckets:
                yield value, newest.start_ms, buckets

    def _sweep(self, value: str, start_ms: int, buckets: list[int]) -> Moves:
        """Move all items out of retired buckets of a value, and record whether there were any."""
        index, before, moved = self._index, self._changed, 0
        for bucket in buckets:
            name, start = physical(value, bucket), None
            while True:
                rows, start = yield from self._pages(self._entries(name), start)
                calls = deque[Need]()
                for row in rows:
                    text = row.get(index.attribute, {}).get("S")
                    tag = self._tag_of(row, text) if text else None
                    calls.append(self._retag({**row, index.shadow: {"S": name}}, tag))
                moved += yield from self._paced({value: calls} if calls else {})
                if start is None:
                    break
        known = swept_on(self._view, self._table, self._name, value)
        if known is None or known.epoch_ms != start_ms:
            known = Swept(start_ms, 0, 0)
        self._changed = before + moved
        if known.rests(self._view.horizon_ms) and not moved:
            return known
        swept = Swept(start_ms, 0 if moved else known.empty + 1, self._view.horizon_ms)
        yield from self._commit(swept_note(self._table, self._name, value, swept))
        return swept

    def _entries(self, name: str) -> Body:
        """Return the parameters of a query for the entries of one bucket in the new index."""
        table, index = self._places.table, self._index
        names = {"#p": table.partition_key, "#k": table.sort_key}
        names |= {"#a": index.attribute, "#s": index.shadow}
        return {
            "TableName": self._table,
            "IndexName": index.stored_name,
            "KeyConditionExpression": "#s = :s",
            "ProjectionExpression": "#p, #k, #a",
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": {":s": {"S": name}},
        }


def _values(values: dict[str, Body]) -> Body:
    return {"ExpressionAttributeValues": values} if values else {}


def _indexes_in(described: Body) -> dict[str, Body]:
    return {one["IndexName"]: one for one in described.get("GlobalSecondaryIndexes") or ()}


def note_for(described: Body, places: ItemPlaces, name: str) -> SpreadNote:
    """Return the first note on an index. Raises `InvalidSetting` if it cannot be spread."""
    table = places.table
    found = _indexes_in(described).get(name)
    known = ", ".join(sorted(_indexes_in(described))) or "none"
    if found is None:
        raise _unfit(f"table {table.name} has no global index {name!r}; it has: {known}")
    kinds = {
        one["AttributeName"]: one["AttributeType"] for one in described["AttributeDefinitions"]
    }
    hashes = [one["AttributeName"] for one in found["KeySchema"] if one["KeyType"] == "HASH"]
    sorts = [one["AttributeName"] for one in found["KeySchema"] if one["KeyType"] == "RANGE"]
    if len(hashes) != 1 or len(sorts) > 1:
        raise _unfit(f"index {name} has a key of several attributes, which cannot be spread")
    if hashes[0] in (table.partition_key, table.sort_key):
        raise _unfit(f"index {name} is keyed by {hashes[0]}, a key of the table itself")
    if kinds[hashes[0]] != "S":
        raise _unfit(
            f"the key {hashes[0]} of index {name} is not text, so it cannot contain a bucket's name"
        )
    if len(name + SUFFIX) > NAME_MAX:
        raise _unfit(
            f"the name of index {name} is too long: the new index would need {name}{SUFFIX}"
        )
    given = found.get("ProvisionedThroughput") or {}
    units = {one: given.get(one, 0) for one in ("ReadCapacityUnits", "WriteCapacityUnits")}
    return SpreadNote(
        "creating",
        hashes[0],
        sorts,
        {one: kinds[one] for one in (*hashes, *sorts)},
        found["Projection"],
        throughput=units if all(units.values()) else None,
    )


def _unfit(why: str) -> InvalidSetting:
    return InvalidSetting(why, field="index")


def _new_index(name: str, note: SpreadNote) -> Body:
    """Return the request that creates the new index. It always projects the indexed attribute."""
    projection = dict(note.projection)
    if projection.get("ProjectionType") != "ALL":
        extra = [*(projection.get("NonKeyAttributes") or ()), note.attribute]
        projection = {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(dict.fromkeys(extra))}
    return _creating(name + SUFFIX, (shadow_of(name), *note.sort_keys), note, projection)


def _old_index(name: str, note: SpreadNote) -> Body:
    return _creating(name, (note.attribute, *note.sort_keys), note, note.projection)


def _creating(name: str, keys: tuple[str, ...], note: SpreadNote, projection: Body) -> Body:
    schema = [
        {"AttributeName": one, "KeyType": kind}
        for one, kind in zip(keys, ("HASH", "RANGE"), strict=False)
    ]
    create: Body = {"IndexName": name, "KeySchema": schema, "Projection": projection}
    if note.throughput is not None:
        create["ProvisionedThroughput"] = note.throughput
    kinds = [{"AttributeName": one, "AttributeType": note.kinds.get(one, "S")} for one in keys]
    return {
        "AttributeDefinitions": kinds,
        "GlobalSecondaryIndexUpdates": [{"Create": create}],
    }
