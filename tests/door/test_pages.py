"""Pages that need more than one place: numbers as sort keys, strays, violations, costs."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import pytest

from heatsink.door.core import Core
from heatsink.door.declaration import SpreadTable, by_time, described
from heatsink.door.keys import TAG, physical
from heatsink.door.pages import PLACE
from heatsink.door.protocol import Body, UpstreamCall, WireError
from heatsink.door.spread_indexes import shadow_of
from heatsink.door.times import iso_text, millis
from heatsink.testing.clocks import ManualClock

from .differential import sent
from .grammar import text_of
from .world import (
    DEFINITION,
    INDEX,
    SEED,
    START_MS,
    TABLE,
    NoHeat,
    Process,
    Registry,
    Upstream,
    World,
)

NUMBERS = "numbers"


def message(at_ms: int, number: int = 0) -> Body:
    return {"pk": {"S": "room"}, "sk": {"S": f"MSG#{text_of(at_ms)}#{number}"}}


def whole(**others: Any) -> Body:
    return {
        "TableName": TABLE,
        "KeyConditionExpression": "pk = :p",
        "ExpressionAttributeValues": {":p": {"S": "room"}},
        "ConsistentRead": True,
        **others,
    }


def test_sort_keys_that_are_numbers_keep_their_order() -> None:
    upstream, registry = Upstream(ManualClock(START_MS / 1000)), Registry()
    kinds = [{"AttributeName": "pk", "AttributeType": "S"}]
    kinds.append({"AttributeName": "sk", "AttributeType": "N"})
    base = {name: DEFINITION[name] for name in ("BillingMode", "KeySchema")}
    upstream.send("CreateTable", {"TableName": NUMBERS, **base, "AttributeDefinitions": kinds})
    rules = [by_time("", millis)]
    declared = SpreadTable(NUMBERS, partition_key="pk", sort_key="sk", rules=rules, sort_type="N")
    table = described(declared, upstream.send("DescribeTable", {"TableName": NUMBERS})["Table"])
    registry.complete(NUMBERS)
    process = Process(table, upstream, registry)
    registry.spread(process.core.places[NUMBERS].label("room"), 4)
    registry.renew(process.view)
    times = [Decimal(START_MS + number) + Decimal("0.5") for number in range(40)]
    Random(1).shuffle(times)
    for time in times:
        item = {"pk": {"S": "room"}, "sk": {"N": str(time)}}
        process.send("PutItem", {"TableName": NUMBERS, "Item": item})
    found: list[Decimal] = []
    request = {**whole(Limit=7), "TableName": NUMBERS}
    while True:
        page = process.send("Query", request)
        found += [Decimal(item["sk"]["N"]) for item in page["Items"]]
        if "LastEvaluatedKey" not in page:
            break
        request["ExclusiveStartKey"] = page["LastEvaluatedKey"]
    assert found == sorted(times)
    assert len({call.bucket for call in upstream.sent}) == 5


def test_in_an_append_only_table_rows_of_other_programs_are_found() -> None:
    world = World(append_only=True)
    registry = world.registry
    registry.entries = []  # the adoption is not complete
    process = Process(world.table, world.stored, registry)
    registry.spread(world.label("room"), 4)
    at_ms = registry.closed_ms
    for number in range(8):
        send = process.send if number % 2 else world.stored.send
        item = {**message(at_ms, number), "n": {"N": str(number)}}
        send("PutItem", {"TableName": TABLE, "Item": item})
    both = {**message(at_ms, 1), "n": {"S": "older"}}
    world.stored.send("PutItem", {"TableName": TABLE, "Item": both})
    page = process.send("Query", whole())
    assert [item["n"] for item in page["Items"]] == [{"N": str(number)} for number in range(8)]
    assert page["Count"] == 8
    for number in (1, 2):
        key = message(at_ms, number)
        assert process.send("GetItem", {"TableName": TABLE, "Key": key})["Item"]["n"] == {
            "N": str(number)
        }
        process.send("DeleteItem", {"TableName": TABLE, "Key": key})
        assert "Item" not in process.send("GetItem", {"TableName": TABLE, "Key": key})
    for refused in ("Scan", "UpdateItem", "TransactGetItems"):
        request: Body = {"TableName": TABLE}
        if refused != "Scan":
            request["Key"] = message(at_ms)
        if refused == "TransactGetItems":
            request = {"TransactItems": [{"Get": request}]}
        with pytest.raises(WireError, match="append_only"):
            process.send(refused, request)


def test_a_row_that_another_program_wrote_after_the_adoption_is_an_error() -> None:
    world = World()
    process, registry = world.processes[0], world.registry
    registry.spread(world.label("room"), 4)
    at_ms = registry.closed_ms
    registry.closed_ms += 1_000
    registry.renew(process.view)
    world.stored.send("PutItem", {"TableName": TABLE, "Item": message(at_ms)})
    with pytest.raises(WireError, match="is not in its place"):
        process.send("Query", whole())


def put_strays(world: World, count: int, from_ms: int) -> list[str]:
    """Put rows under the bare key, some of which belong in buckets. Returns their sort keys."""
    rows = [message(from_ms + number, number) for number in range(count)]
    for number, row in enumerate(rows):
        item = {**row, "kind": {"S": "u"}, "score": {"N": str(number // 3)}}
        world.stored.send("PutItem", {"TableName": TABLE, "Item": item})
    return [row["sk"]["S"] for row in rows]


def sort_keys(process: Process, operation: str, request: Body, most: int = 100) -> list[str]:
    """Return the sort keys of all pages."""
    found: list[str] = []
    for _ in range(most):
        page = process.send(operation, request)
        found += [item["sk"]["S"] for item in page["Items"]]
        if "LastEvaluatedKey" not in page:
            return found
        request = {**request, "ExclusiveStartKey": page["LastEvaluatedKey"]}
    raise AssertionError(f"the pages do not end: {found}")


def a_world_with_strays() -> tuple[World, list[str]]:
    """Return a world in which a spread key has rows in buckets, and strays; and all sort keys."""
    world = World()
    process, registry = world.processes[0], world.registry
    registry.spread(world.label("room"), 4)
    at_ms = registry.closed_ms
    registry.closed_ms += 1_000
    registry.renew(process.view)
    names = put_strays(world, 8, at_ms)
    for number in range(8, 16):
        row = message(at_ms + number, number)
        item = {**row, "kind": {"S": "u"}, "score": {"N": str(number // 3)}}
        process.send("PutItem", {"TableName": TABLE, "Item": item})
        names.append(row["sk"]["S"])
    return world, sorted(names)


PAGES: dict[str, tuple[str, Body]] = {
    "scan": ("Scan", {}),
    "filtered": (
        "Scan",
        {
            "FilterExpression": "pk = :p",
            "ExpressionAttributeValues": {":p": {"S": "room"}},
        },
    ),
    "of an index": (
        "Query",
        {
            "IndexName": "by-kind",
            "KeyConditionExpression": "kind = :k",
            "ExpressionAttributeValues": {":k": {"S": "u"}},
        },
    ),
}


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("form", PAGES)
def test_pages_that_end_at_strays_skip_no_row_and_repeat_none(form: str, limit: int) -> None:
    world, names = a_world_with_strays()
    operation, given = PAGES[form]
    request = {"TableName": TABLE, "Limit": limit, **given}
    assert sorted(sort_keys(world.processes[0], operation, request)) == names


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("way", ["scan", "forwards", "backwards"])
def test_pages_of_a_spread_index_that_end_at_strays_skip_no_row(way: str, limit: int) -> None:
    world, names = a_world_with_strays()
    world.migrate(world.processes[0].migration().spread())
    world.spread_value("u", 3)
    world.renew(world.processes[0])
    for number in range(6):  # strays in all buckets of the index, with equal sort keys
        row = message(START_MS + 900 + number, number)
        tag = {"S": physical("u", number % 3)}
        item = {**row, "kind": {"S": "u"}, "score": {"N": "1"}, shadow_of(INDEX): tag}
        world.stored.send("PutItem", {"TableName": TABLE, "Item": item})
        names.append(row["sk"]["S"])
    names.sort()
    operation, request = PAGES["of an index"]
    request = {**request, "ScanIndexForward": way == "forwards"}
    if way == "scan":
        operation, request = "Scan", {"IndexName": INDEX}
    request = {**request, "TableName": TABLE, "Limit": limit}
    assert sorted(sort_keys(world.processes[0], operation, request)) == names


def test_a_scan_goes_on_after_a_row_whose_time_has_come_between_two_pages() -> None:
    world = World()
    process, registry = world.processes[0], world.registry
    registry.spread(world.label("room"), 4)
    registry.renew(process.view)
    names = put_strays(world, 6, registry.closed_ms + 5_000)
    found: list[str] = []
    request: Body = {"TableName": TABLE, "Limit": 1}
    while len(found) <= len(names):
        page = process.send("Scan", request)
        found += [item["sk"]["S"] for item in page["Items"]]
        if "LastEvaluatedKey" not in page:
            break
        assert PLACE in page["LastEvaluatedKey"]
        request = {**request, "ExclusiveStartKey": page["LastEvaluatedKey"]}
        registry.closed_ms += 10_000
        registry.renew(process.view)
    assert sorted(found) == names


def test_only_tokens_that_need_it_name_a_bucket_and_damaged_ones_are_refused() -> None:
    world = World()
    process, registry = world.processes[0], world.registry
    registry.spread(world.label("room"), 4)
    registry.closed_ms += 1_000
    registry.renew(process.view)
    for number in range(3):
        row = message(registry.closed_ms - 10 + number, number)
        process.send("PutItem", {"TableName": TABLE, "Item": row})
    page = process.send("Scan", {"TableName": TABLE, "Limit": 1})
    token = page["LastEvaluatedKey"]
    assert set(token) == {"pk", "sk"}
    request = {"TableName": TABLE, "ExclusiveStartKey": {**token, PLACE: {"S": "x"}}}
    with pytest.raises(WireError, match="the starting key is damaged"):
        process.send("Scan", request)


def test_a_page_of_a_spread_index_that_ends_at_1_mb_is_continued_after_its_last_row() -> None:
    world = World()
    process = world.processes[0]
    world.migrate(process.migration().spread())
    world.spread_value("u", 3)
    world.renew(process)
    names = []
    for number in range(24):
        key = {"pk": {"S": f"room{number}"}, "sk": {"S": f"META{number}"}}
        item = {**key, "kind": {"S": "u"}, "score": {"N": str(number // 8)}}
        item["body"] = {"S": "x" * 300_000}
        process.send("PutItem", {"TableName": TABLE, "Item": item})
        names.append(key["sk"]["S"])
    for forward in (True, False):
        request = {**PAGES["of an index"][1], "TableName": TABLE, "ScanIndexForward": forward}
        assert sorted(sort_keys(process, "Query", request)) == sorted(names)


@pytest.mark.parametrize("append_only", [False, True])
def test_of_two_rows_past_the_horizon_none_is_dropped_in_silence(append_only: bool) -> None:
    world = World(processes=2, append_only=append_only)
    early, late = world.processes
    registry = world.registry
    registry.spread(world.label("room"), 4)
    registry.closed_ms += 10
    registry.renew(late.view)
    row = message(registry.closed_ms + 500)
    registry.closed_ms += 1_000
    registry.renew(early.view)
    early.send("PutItem", {"TableName": TABLE, "Item": {**row, "n": {"S": "in its bucket"}}})
    world.stored.send("PutItem", {"TableName": TABLE, "Item": row})
    request = whole(ConsistentRead=False)
    if append_only:
        assert [item["n"]["S"] for item in late.send("Query", request)["Items"]] == [
            "in its bucket"
        ]
        return
    with pytest.raises(WireError, match="is not in its place"):
        late.send("Query", request)


def fixed_row(number: int) -> Body:
    return {"pk": {"S": "room"}, "sk": {"S": f"T#{number}"}}


def test_a_stray_in_a_prefix_with_fixed_buckets_is_an_error_and_no_copy_is_dropped() -> None:
    world = World()
    process = world.processes[0]
    process.send("PutItem", {"TableName": TABLE, "Item": fixed_row(1)})
    assert process.send("Query", whole())["Count"] == 1
    for number in (2, 1):  # a stray alone, and a stray beside a row with the same keys
        world.stored.send("PutItem", {"TableName": TABLE, "Item": fixed_row(number)})
        with pytest.raises(WireError, match=r"is not in its place.*--move-strays"):
            process.send("Query", whole())
        world.stored.send("DeleteItem", {"TableName": TABLE, "Key": fixed_row(number)})


WRITES: dict[str, Body] = {
    "PutItem": {"TableName": TABLE, "Item": fixed_row(1)},
    "UpdateItem": {"TableName": TABLE, "Key": fixed_row(1)},
    "DeleteItem": {"TableName": TABLE, "Key": fixed_row(1)},
    "BatchWriteItem": {"RequestItems": {TABLE: [{"PutRequest": {"Item": fixed_row(1)}}]}},
    "TransactWriteItems": {
        "TransactItems": [{"Put": {"TableName": TABLE, "Item": fixed_row(1)}}],
    },
}


@pytest.mark.parametrize("operation", WRITES)
def test_a_prefix_with_fixed_buckets_is_written_only_after_the_adoption(operation: str) -> None:
    world = World()
    world.registry.entries = []  # the adoption is not complete
    process = Process(world.table, world.stored, world.registry)
    with pytest.raises(WireError, match=r"3 fixed buckets, but the adoption .* run .* --complete"):
        process.send(operation, WRITES[operation])
    assert not world.stored.sent
    world.registry.complete()  # which the process's view does not know yet
    process.send(operation, WRITES[operation])
    [call] = world.stored.sent
    assert TAG in str(call.parameters)


def test_in_an_append_only_table_a_stray_of_a_fixed_prefix_counts_until_it_is_written() -> None:
    world = World(append_only=True)
    process = world.processes[0]
    for number in (1, 2):
        item = {**fixed_row(number), "n": {"S": "other"}}
        world.stored.send("PutItem", {"TableName": TABLE, "Item": item})
    process.send("PutItem", {"TableName": TABLE, "Item": {**fixed_row(2), "n": {"S": "ours"}}})
    assert [item["n"]["S"] for item in process.send("Query", whole())["Items"]] == ["other", "ours"]
    for number, name in ((1, "other"), (2, "ours")):
        found = process.send("GetItem", {"TableName": TABLE, "Key": fixed_row(number)})
        assert found["Item"]["n"] == {"S": name}
        process.send("DeleteItem", {"TableName": TABLE, "Key": fixed_row(number)})
    assert process.send("Query", whole())["Count"] == 0


def test_times_that_do_not_grow_are_an_error_and_no_missing_rows() -> None:
    world = World()
    registry = world.registry
    backwards = by_time("MSG#", lambda text: 2 * START_MS - iso_text(text))
    table = SpreadTable(TABLE, partition_key="pk", sort_key="sk", rules=[backwards])
    process = Process(table, world.stored, registry)
    registry.spread(world.label("room"), 4)
    registry.closed_ms += 60_000
    registry.renew(process.view)
    for number in range(5):
        item = message(START_MS - 10_000 * number)
        process.send("PutItem", {"TableName": TABLE, "Item": item})
    with pytest.raises(WireError, match="do not grow with the sort keys"):
        process.send("Query", whole())


def test_unprocessed_items_show_the_application_s_keys() -> None:
    world = World()
    registry = world.registry
    registry.spread(world.label("room"), 4)
    core = Core([world.table], registry.view(), SEED, NoHeat())
    item = message(registry.closed_ms - 1)
    writes = [{"PutRequest": {"Item": item}}]
    steps = core.begin("BatchWriteItem", {"RequestItems": {TABLE: writes}})
    assert steps is not None
    registry.closed_ms += 1
    [call] = next(steps)
    assert isinstance(call, UpstreamCall)
    stored = call.parameters["RequestItems"]
    with pytest.raises(StopIteration) as end:
        steps.send([{"UnprocessedItems": stored}])
    assert end.value.value["UnprocessedItems"] == {TABLE: writes}
    steps = core.begin("BatchGetItem", {"RequestItems": {TABLE: {"Keys": [item]}}})
    assert steps is not None
    [call] = next(steps)
    assert isinstance(call, UpstreamCall)
    with pytest.raises(StopIteration) as end:
        steps.send([{"Responses": {}, "UnprocessedKeys": call.parameters["RequestItems"]}])
    assert end.value.value["UnprocessedKeys"] == {TABLE: {"Keys": [item]}}


def test_an_eventually_consistent_query_reads_no_layout() -> None:
    world = World()
    process = world.processes[0]
    world.registry.spread(world.label("room"), 4)
    world.registry.renew(process.view)
    needs: list[Any] = []
    right = process.meet
    process.meet = lambda need: needs.append(need) or right(need)  # type: ignore[method-assign,func-returns-value]
    process.send("Query", whole(ConsistentRead=False))
    assert all(isinstance(need, UpstreamCall) for need in needs)
    process.send("Query", whole())
    assert any(not isinstance(need, UpstreamCall) for need in needs)


def test_a_query_counts_the_cost_of_an_answer_that_it_cannot_use() -> None:
    world = World(processes=2)
    early, late = world.processes
    world.registry.spread(world.label("room"), 4)
    world.registry.closed_ms += 100
    world.renew(early)
    for number in range(8):
        item = message(world.registry.closed_ms - 50 + number, number)
        early.send("PutItem", {"TableName": TABLE, "Item": item})
    given = whole(ReturnConsumedCapacity="TOTAL")
    given["KeyConditionExpression"] = "pk = :p AND sk < :s"
    given["ExpressionAttributeValues"][":s"] = {"S": "S"}
    assert sent(late, "Query", given)["Count"] == 8
    assert len(late.upstream.used) == 6  # under the bare key before and after it learnt the layout


FEW: dict[str, Body] = {
    "filtered": {"FilterExpression": "begins_with(a, :a)"},
    "filtered by what it shows": {"FilterExpression": "begins_with(a, :a)", "Select": "COUNT"},
    "filtered and projected": {
        "FilterExpression": "begins_with(a, :a)",
        "ProjectionExpression": "b",
    },
    "whole": {"FilterExpression": "begins_with(a, :a)", "Select": "ALL_ATTRIBUTES"},
}


@pytest.mark.parametrize("operation", ["Query", "Scan"])
@pytest.mark.parametrize("form", FEW)
def test_a_filter_may_use_attributes_that_a_local_index_lacks(form: str, operation: str) -> None:
    world = World()
    world.registry.spread(world.label("room"), 3)
    world.registry.closed_ms += 100
    world.renew(world.processes[0])
    for number in range(12):
        keys = message(START_MS + number, number)
        rest = {"score": {"N": str(number)}, "n": {"N": "1"}, "b": {"S": "b"}}
        item = {**keys, **rest, "a": {"S": "xyz"[number % 3]}}
        for send in (world.processes[0].send, world.plain.send):
            send("PutItem", {"TableName": TABLE, "Item": item})
    values = {":p": {"S": "room"}, ":a": {"S": "y"}}
    request: Body = {"TableName": TABLE, "IndexName": "by-score-few", **FEW[form]}
    request["ExpressionAttributeValues"] = values
    if operation == "Query":
        request["KeyConditionExpression"] = "pk = :p"
    else:  # so that the core evaluates the filter
        request["FilterExpression"] = f"pk = :p AND {request['FilterExpression']}"
    found, plain = (one.send(operation, request) for one in (world.processes[0], world.plain))
    for answer in (found, plain):
        answer.get("Items", []).sort(key=str)
    assert found == plain
    assert found["Count"] == 4
