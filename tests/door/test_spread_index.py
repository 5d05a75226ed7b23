"""A global index that is spread: its migration, its writes and its queries."""

from __future__ import annotations

from typing import Any

import pytest

from heatsink.door.keys import physical
from heatsink.door.protocol import Body, WireError
from heatsink.door.spread_indexes import OPAQUE, shadow_of
from heatsink.errors import InvalidSetting
from heatsink.registry.spread_indexes import DAY_MS, note_on

from .grammar import text_of
from .world import INDEX, TABLE, World

SHADOW = shadow_of(INDEX)
MANY = 40


def item(number: int, kind: str | None = "u", **others: Body) -> Body:
    row = {"pk": {"S": f"room{number % 5}"}, "sk": {"S": f"META{number}"}, **others}
    row["score"] = {"N": str(number // 3)}
    return row if kind is None else {**row, "kind": {"S": kind}}


def put(world: World, row: Body, process: int = 0) -> None:
    world.processes[process].send("PutItem", {"TableName": TABLE, "Item": row})
    world.plain.send("PutItem", {"TableName": TABLE, "Item": row})


def query(send: Any, value: str = "u", **others: Any) -> list[Body]:
    """Return the rows of all pages."""
    rows: list[Body] = []
    given = {
        "TableName": TABLE,
        "IndexName": INDEX,
        "KeyConditionExpression": "kind = :k",
        "ExpressionAttributeValues": {":k": {"S": value}},
        **others,
    }
    while True:
        answer = send("Query", given)
        rows += answer["Items"]
        if "LastEvaluatedKey" not in answer:
            return rows
        given["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def stored(world: World) -> list[Body]:
    return list(world.stored.send("Scan", {"TableName": TABLE})["Items"])


def indexes(world: World) -> list[str]:
    found = world.stored.send("DescribeTable", {"TableName": TABLE})["Table"]
    names = (one["IndexName"] for one in found.get("GlobalSecondaryIndexes", []))
    return [name for name in names if name.startswith(INDEX)]


@pytest.fixture
def world() -> World:
    """A table with items, whose index is spread: the value `u` over four buckets."""
    made = World(processes=2)
    for number in range(MANY):
        put(made, item(number))
    made.migrate(made.processes[0].migration().spread())
    made.spread_value("u", 4)
    for process in made.processes:
        made.renew(process)
    for number in range(MANY, 2 * MANY):
        put(made, item(number))
    return made


def sorted_rows(rows: list[Body]) -> list[str]:
    return sorted(map(str, rows))


@pytest.mark.parametrize("limit", [None, 1, 7])
@pytest.mark.parametrize("forward", [True, False])
def test_pages_of_a_spread_index_show_every_row_once_in_order(
    world: World, forward: bool, limit: int | None
) -> None:
    others: dict[str, Any] = {} if limit is None else {"Limit": limit}
    found = query(world.processes[0].send, ScanIndexForward=forward, **others)
    expected = query(world.plain.send, ScanIndexForward=forward)
    assert [row["score"] for row in found] == [row["score"] for row in expected]
    assert sorted(map(repr, (sorted(row.items()) for row in found))) == sorted(
        map(repr, (sorted(row.items()) for row in expected))
    )


def test_new_rows_are_in_several_buckets_and_no_answer_shows_the_shadow(world: World) -> None:
    tags = {row[SHADOW]["S"] for row in stored(world)}
    assert len(tags) == 5
    key = {name: item(MANY)[name] for name in ("pk", "sk")}
    send = world.processes[0].send
    whole = {"TableName": TABLE, "Key": key}
    values = {":k": {"S": "v"}}
    setting = {
        **whole,
        "UpdateExpression": "SET kind = :k",
        "ExpressionAttributeValues": values,
    }
    for shown in ("ALL_OLD", "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW"):
        answer = send("UpdateItem", {**setting, "ReturnValues": shown})
        assert SHADOW not in answer["Attributes"]
    assert SHADOW not in send("GetItem", whole)["Item"]
    assert all(SHADOW not in row for row in send("Scan", {"TableName": TABLE})["Items"])
    assert [row["sk"] for row in query(send, "v")] == [key["sk"]]
    assert len(query(send)) == 2 * MANY - 1
    removing = {**whole, "UpdateExpression": "REMOVE kind", "ReturnValues": "UPDATED_OLD"}
    assert send("UpdateItem", removing)["Attributes"] == {"kind": {"S": "v"}}
    assert query(send, "v") == []


def test_the_old_index_is_deleted_and_leaving_brings_it_back(world: World) -> None:
    assert indexes(world) == [f"{INDEX}.heatsink"]
    before = query(world.processes[1].send)
    world.migrate(world.processes[0].migration().leave())
    assert indexes(world) == [INDEX]
    assert all(SHADOW not in row for row in stored(world))
    assert sorted_rows(query(world.stored.send)) == sorted_rows(before)
    assert sorted_rows(query(world.processes[1].send)) == sorted_rows(before)
    world.migrate(world.processes[0].migration().spread())
    assert indexes(world) == [f"{INDEX}.heatsink"]


@pytest.mark.parametrize("back", [False, True])
def test_a_migration_that_stops_anywhere_goes_on_when_it_is_run_again(back: bool) -> None:
    for stop in range(1, 200):
        world = World(processes=2)
        for number in range(10):
            put(world, item(number))
        if back:
            world.migrate(world.processes[0].migration().spread())
        runs = [world.processes[0].migration() for _ in range(2)]
        first, second = (one.leave() if back else one.spread() for one in runs)
        needs = next(first)
        try:
            for _ in range(stop):
                needs = first.send([world.meet(need) for need in needs])
        except StopIteration:
            break
        first.close()
        put(world, item(90), process=1)
        world.migrate(second)
        rows = query(world.processes[1].send)
        assert len(rows) == 11
        assert indexes(world) == ([INDEX] if back else [f"{INDEX}.heatsink"])
    else:
        raise AssertionError("a migration that never ends")
    assert stop > 10


def test_a_row_whose_attribute_differs_from_the_value_is_not_shown(world: World) -> None:
    key = {name: item(0)[name] for name in ("pk", "sk")}
    past = {
        "TableName": TABLE,
        "Key": key,
        "UpdateExpression": "SET kind = :v",
        "ExpressionAttributeValues": {":v": {"S": "other"}},
    }
    world.stored.send("UpdateItem", past)
    assert len(query(world.processes[0].send)) == 2 * MANY - 1
    scanned = world.processes[0].send("Scan", {"TableName": TABLE, "IndexName": INDEX})
    assert scanned["Count"] == 2 * MANY - 1


def test_a_transaction_s_token_outlives_a_change_of_buckets(world: World) -> None:
    token = {"ClientRequestToken": "t1"}
    action = {"Put": {"TableName": TABLE, "Item": item(200)}}
    other = {"Put": {"TableName": TABLE, "Item": item(201)}}
    for buckets in (8, 1, 5):
        sent = len(world.stored.sent)
        world.processes[0].send("TransactWriteItems", {"TransactItems": [action], **token})
        assert len(world.stored.sent) > sent
        world.spread_value("u", buckets)
        world.renew(world.processes[0])
    with pytest.raises(WireError, match="IdempotentParameterMismatch"):
        world.processes[0].send("TransactWriteItems", {"TransactItems": [other], **token})


def test_a_token_from_before_the_migration_is_still_known() -> None:
    world = World()
    request = {
        "TransactItems": [{"Put": {"TableName": TABLE, "Item": item(1)}}],
        "ClientRequestToken": "t1",
    }
    world.processes[0].send("TransactWriteItems", request)
    world.migrate(world.processes[0].migration().spread())
    world.processes[0].send("TransactWriteItems", request)


def test_a_sweep_empties_retired_buckets_which_are_asked_until_one_a_day_later(
    world: World,
) -> None:
    world.spread_value("u", 1)
    world.registry.renew(world.processes[0].view)
    index = world.processes[0].core.places[TABLE].indexes[INDEX]
    assert index.buckets("u") == [None, 0, 1, 2, 3]
    assert world.migrate(world.processes[0].migration().sweep()) == 0
    assert {row[SHADOW]["S"] for row in stored(world)} == {"u"}
    assert len(query(world.processes[1].send, Limit=7)) == 2 * MANY
    assert index.buckets("u") == [None, 0, 1, 2, 3]
    for _ in range(2):
        world.registry.closed_ms += DAY_MS
        world.registry.renew(world.processes[0].view)
        assert index.buckets("u") == [None, 0, 1, 2, 3]
    assert world.migrate(world.processes[0].migration().sweep()) == 0
    assert index.buckets("u") == [None]


def test_an_entry_that_reaches_a_closed_bucket_late_is_moved_a_day_later(world: World) -> None:
    world.spread_value("u", 1)
    world.registry.renew(world.processes[0].view)
    migration = world.processes[0].migration()
    assert world.migrate(migration.sweep()) == 0
    late = {**stored(world)[0], SHADOW: {"S": physical("u", 2)}}
    world.stored.send("PutItem", {"TableName": TABLE, "Item": late})
    hour_ms = 3_600_000
    assert not migration.is_sweep_due(world.now_ms() + hour_ms, hour_ms)
    world.registry.closed_ms += DAY_MS
    for process in world.processes:
        world.renew(process)
    assert len(query(world.processes[1].send)) == 2 * MANY
    assert migration.is_sweep_due(world.now_ms(), hour_ms)
    assert world.migrate(migration.sweep()) == 0
    assert {row[SHADOW]["S"] for row in stored(world)} == {"u"}
    assert not migration.is_sweep_due(world.now_ms(), hour_ms)


def test_a_sweep_is_due_once_a_value_is_calm_until_its_buckets_are_closed(world: World) -> None:
    hour_ms, run = 3_600_000, world.processes[0].migration()
    assert not run.is_sweep_due(world.now_ms() + hour_ms, hour_ms)  # no bucket is retired
    world.spread_value("u", 2)
    world.registry.renew(world.processes[0].view)
    assert not run.is_sweep_due(world.now_ms(), hour_ms)
    assert run.is_sweep_due(world.now_ms() + hour_ms, hour_ms)
    world.migrate(run.sweep())
    assert not run.is_sweep_due(world.now_ms() + hour_ms, hour_ms)
    world.spread_value("u", 1)
    world.registry.renew(world.processes[0].view)
    assert run.is_sweep_due(world.now_ms() + hour_ms, hour_ms)


def test_an_update_with_a_computed_value_reads_the_item_first(world: World) -> None:
    key = {name: item(0)[name] for name in ("pk", "sk")}
    given = {"TableName": TABLE, "Key": key, "UpdateExpression": "SET kind = a"}
    send = world.processes[0].send
    with pytest.raises(WireError, match="does not exist in the item"):
        send("UpdateItem", given)
    put(world, item(0, a={"S": "w"}))
    send("UpdateItem", given)
    assert [row["sk"] for row in query(send, "w")] == [key["sk"]]
    refused = {**given, "ConditionExpression": "attribute_not_exists(pk)"}
    with pytest.raises(WireError, match="ConditionalCheckFailed") as raised:
        send("UpdateItem", refused)
    assert "Item" not in raised.value.body
    with pytest.raises(WireError, match="read the item"):
        send("TransactWriteItems", {"TransactItems": [{"Update": given}]})


def test_a_token_of_the_old_index_is_refused_once_it_is_deleted(world: World) -> None:
    start = {name: item(0)[name] for name in ("kind", "score", "pk", "sk")}
    with pytest.raises(WireError, match="begin the query again"):
        query(world.processes[0].send, ExclusiveStartKey=start)
    with pytest.raises(WireError, match="is damaged"):
        query(world.processes[0].send, ExclusiveStartKey={**start, OPAQUE: {"S": "x"}})


def test_an_index_that_cannot_be_spread_is_refused() -> None:
    world = World()
    process = world.processes[0]
    from heatsink.door.migration import IndexMigration

    for name, why in (("by-score", "no global index"), ("none", "no global index")):
        migration = IndexMigration(process.core.places[TABLE], process.view, name)
        with pytest.raises(InvalidSetting, match=why):
            world.migrate(migration.spread())
    assert note_on(process.view, TABLE, "none") is None


def test_items_of_spread_keys_are_found_by_the_index(world: World) -> None:
    world.registry.spread(world.label("room1"), 4)
    world.registry.closed_ms += 100
    for process in world.processes:
        world.renew(process)
    for number in range(5):
        at = text_of(world.registry.closed_ms - 50 + number)
        row = {**item(1, "w"), "sk": {"S": f"MSG#{at}#{number}"}}
        put(world, row)
    found = query(world.processes[0].send, "w", Limit=2)
    assert sorted_rows([dict(sorted(row.items())) for row in found]) == sorted_rows(
        [dict(sorted(row.items())) for row in query(world.plain.send, "w")]
    )
