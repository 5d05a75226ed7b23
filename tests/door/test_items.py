"""GetItem, PutItem, UpdateItem and DeleteItem through the core answer as DynamoDB does."""

from __future__ import annotations

from typing import Any

import pytest

from heatsink.door.protocol import Body, UpstreamCall, WireError
from heatsink.errors import InvalidSetting

from .world import TABLE, World, declared, outcome

KEY = {"pk": {"S": "room"}, "sk": {"S": "MSG#2026-11-15T12:00:01Z#1"}}


def spread_world() -> World:
    world = World()
    world.registry.spread(world.label("room"), 4)
    world.registry.renew(world.processes[0].view)
    return world


def both(world: World, operation: str, **parameters: Any) -> Body:
    """Carry out a request on both tables. Returns the answer, which must be the same."""
    request = {"TableName": TABLE, **parameters}
    plain = outcome(world.plain.send, operation, request)
    assert outcome(world.processes[0].send, operation, request) == plain
    return plain


def test_an_item_of_a_spread_key_is_in_a_bucket_and_shows_its_own_key() -> None:
    world = spread_world()
    both(world, "PutItem", Item={**KEY, "n": {"N": "1"}})
    assert both(world, "GetItem", Key=KEY, ConsistentRead=True)["Item"]["pk"] == {"S": "room"}
    assert world.stored.sent[0].bucket is not None
    assert both(world, "DeleteItem", Key=KEY, ReturnValues="ALL_OLD")["Attributes"]
    assert "Item" not in both(world, "GetItem", Key=KEY)


CONDITIONS = [
    ("attribute_not_exists(pk)", {}, {}),
    ("attribute_exists(pk)", {}, {}),
    ("pk = :v", {}, {":v": {"S": "room"}}),
    ("pk <> :v", {}, {":v": {"S": "room"}}),
    ("#p <> :v", {"#p": "pk"}, {":v": {"S": "other"}}),
    ("NOT (pk < :v OR size(pk) > :n)", {}, {":v": {"S": "room"}, ":n": {"N": "4"}}),
    ("size(pk) = :n AND begins_with(pk, :v)", {}, {":v": {"S": "ro"}, ":n": {"N": "4"}}),
    ("#p IN (:v, a)", {"#p": "pk"}, {":v": {"S": "x"}}),
    ("a = pk", {}, {}),
    ("contains(tags, pk)", {}, {}),
    ("a BETWEEN pk AND :v", {}, {":v": {"S": "a"}}),
    ("a BETWEEN pk AND :v", {}, {":v": {"S": "z"}}),
    ("pk BETWEEN :u AND :v", {}, {":u": {"S": "a"}, ":v": {"S": "z"}}),
    ("attribute_type(pk, :v)", {}, {":v": {"S": "S"}}),
    ("pk = pk", {}, {}),
    ("pk.x = :v", {}, {":v": {"S": "S"}}),
    ("pk = :missing", {}, {}),
    ("pk ==", {}, {}),
    ("pk < :v", {}, {":v": {"BOOL": True}}),
]


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(("text", "names", "values"), CONDITIONS)
def test_a_condition_on_the_partition_key_sees_the_application_s_key(
    text: str, names: Body, values: Body, exists: bool
) -> None:
    world = spread_world()
    if exists:
        item = {**KEY, "a": {"S": "room"}, "tags": {"SS": ["room", "x"]}}
        both(world, "PutItem", Item=item)
    others = {
        "ConditionExpression": text,
        **({"ExpressionAttributeNames": names} if names else {}),
        **({"ExpressionAttributeValues": values} if values else {}),
    }
    both(world, "PutItem", Item=KEY, ReturnValuesOnConditionCheckFailure="ALL_OLD", **others)
    both(world, "GetItem", Key=KEY)


UPDATES = [
    ("SET b = pk", {}),
    ("SET b = if_not_exists(pk, :v)", {":v": {"S": "x"}}),
    ("SET b = if_not_exists(a, pk) REMOVE c", {}),
    ("SET b = pk + :v", {":v": {"N": "1"}}),
    ("SET b = list_append(pk, :v)", {":v": {"L": []}}),
    ("SET pk = :v", {":v": {"S": "x"}}),
    ("ADD n :v SET b = pk", {":v": {"N": "2"}}),
    ("REMOVE pk", {}),
]


@pytest.mark.parametrize("returned", ["ALL_NEW", "UPDATED_NEW", "ALL_OLD", "UPDATED_OLD"])
@pytest.mark.parametrize(("text", "values"), UPDATES)
def test_an_update_with_the_partition_key_stores_the_application_s_key(
    text: str, values: Body, returned: str
) -> None:
    world = spread_world()
    for _ in range(2):
        given = {"ExpressionAttributeValues": values} if values else {}
        both(world, "UpdateItem", Key=KEY, UpdateExpression=text, ReturnValues=returned, **given)
    both(world, "GetItem", Key=KEY)


OPERATORS = "EQ NE LT LE GT GE BEGINS_WITH CONTAINS NOT_CONTAINS IN NULL NOT_NULL BETWEEN"


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("operator", OPERATORS.split())
@pytest.mark.parametrize("text", ["room", "ro", "s"])
def test_a_legacy_condition_on_the_partition_key_sees_the_application_s_key(
    operator: str, text: str, exists: bool
) -> None:
    world = spread_world()
    if exists:
        both(world, "PutItem", Item=KEY)
    values = [] if "NULL" in operator else [{"S": text}] * (2 if operator == "BETWEEN" else 1)
    expected = {"pk": {"ComparisonOperator": operator, "AttributeValueList": values}}
    both(world, "PutItem", Item={**KEY, "n": {"N": "1"}}, Expected=expected)
    both(world, "GetItem", Key=KEY)


ONE: Body = {"S": "room"}


@pytest.mark.parametrize(
    "expected",
    [
        {"AttributeValueList": [ONE]},
        {"Value": ONE, "AttributeValueList": [ONE]},
        {"Value": ONE, "AttributeValueList": [ONE], "ComparisonOperator": "EQ"},
        {"Value": ONE, "Exists": True, "ComparisonOperator": "EQ"},
        {"Value": ONE, "Exists": False},
        {"Value": ONE, "ComparisonOperator": ""},
        {"ComparisonOperator": "EQ"},
        {"Value": ONE, "Exists": True},
        {"Value": ONE},
    ],
)
def test_a_legacy_condition_in_a_wrong_form_gets_dynamodb_s_error(expected: Body) -> None:
    world = spread_world()
    both(world, "PutItem", Item=KEY)
    both(world, "PutItem", Item={**KEY, "n": {"N": "1"}}, Expected={"pk": expected})
    both(world, "GetItem", Key=KEY)


@pytest.mark.parametrize("names", [5, True, ["kind"], {"#k": 5}, {}])
def test_an_update_of_a_spread_index_with_wrong_names_gets_dynamodb_s_error(names: Any) -> None:
    update = {"UpdateExpression": "SET kind = :v", "ExpressionAttributeValues": {":v": ONE}}
    both(World(spread_index=True), "UpdateItem", Key=KEY, **update, ExpressionAttributeNames=names)


@pytest.mark.parametrize("operation", ["BatchGetItem", "BatchWriteItem"])
@pytest.mark.parametrize("of_table", [None, {}, [], 5, {"Keys": None}, [None]])
def test_a_batch_that_asks_a_table_for_nothing_gets_dynamodb_s_error(
    operation: str, of_table: Any
) -> None:
    world = spread_world()
    request = {"RequestItems": {TABLE: of_table}}
    plain = outcome(world.plain.send, operation, request)
    assert outcome(world.processes[0].send, operation, request) == plain
    assert "error" in plain


def test_a_key_that_ends_like_a_bucket_is_refused() -> None:
    world = spread_world()
    key = {**KEY, "pk": {"S": "room\u241fhs3"}}
    with pytest.raises(WireError, match="reserved for buckets"):
        world.processes[0].send("GetItem", {"TableName": TABLE, "Key": key})


def test_a_stale_view_is_renewed_before_an_item_is_placed() -> None:
    world = World(processes=2)
    early, late = world.processes
    world.registry.spread(world.label("room"), 4)
    world.registry.renew(early.view)
    early.send("PutItem", {"TableName": TABLE, "Item": KEY})
    found = late.send("GetItem", {"TableName": TABLE, "Key": KEY, "ConsistentRead": True})
    assert found["Item"] == KEY
    changed = {"TableName": TABLE, "Key": KEY, "UpdateExpression": "SET a = pk"}
    late.send("UpdateItem", changed)
    assert isinstance(world.stored.sent[-1], UpstreamCall)
    assert world.stored.sent[-1].bucket is not None


def test_partiql_on_a_declared_table_is_refused() -> None:
    world = World()
    with pytest.raises(WireError, match="PartiQL"):
        world.processes[0].send("ExecuteStatement", {"Statement": f"DELETE {TABLE}"})


def test_before_the_adoption_is_complete_a_spread_key_is_refused() -> None:
    world = World()
    view = world.processes[0].view
    view.pins.clear()
    world.registry.entries = []
    world.registry.spread(world.label("room"), 4)
    process = type(world.processes[0])(world.table, world.stored, world.registry)
    with pytest.raises(WireError, match="adoption is not complete"):
        process.send("PutItem", {"TableName": TABLE, "Item": KEY})


def test_two_rules_for_one_prefix_are_refused() -> None:
    table = declared()
    with pytest.raises(InvalidSetting, match="two rules"):
        type(table)("t", "pk", "sk", [*table.rules, table.rules[0]])
