"""Pages that need more than one place: numbers as sort keys, strays, violations, costs."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import pytest

from heatsink.door.core import Core
from heatsink.door.declaration import SpreadTable, by_time, described
from heatsink.door.protocol import Body, Call, WireError
from heatsink.door.times import iso_text, millis
from heatsink.testing.clocks import ManualClock

from .grammar import text_of
from .world import DEFINITION, SEED, START_MS, TABLE, NoHeat, Process, Registry, Upstream, World

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
    assert isinstance(call, Call)
    stored = call.parameters["RequestItems"]
    with pytest.raises(StopIteration) as end:
        steps.send([{"UnprocessedItems": stored}])
    assert end.value.value["UnprocessedItems"] == {TABLE: writes}
    steps = core.begin("BatchGetItem", {"RequestItems": {TABLE: {"Keys": [item]}}})
    assert steps is not None
    [call] = next(steps)
    assert isinstance(call, Call)
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
    assert all(isinstance(need, Call) for need in needs)
    process.send("Query", whole())
    assert any(not isinstance(need, Call) for need in needs)
