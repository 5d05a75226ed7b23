"""A request of a wrong form never passes unadapted: it gets DynamoDB's error, or is refused."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from heatsink.door.protocol import OURS, Body
from heatsink.server.door.access import tables_in
from heatsink.server.door.upstream import SMALL, concerns, decoded_if_small
from tests.planted import usually

from .differential import REUSED, Differential, comparable
from .mutations import Mutations
from .world import TABLE, World, outcome

REQUESTS = 300


@pytest.mark.parametrize("seed", range(usually(4, 100)))
def test_a_request_of_a_wrong_form_is_answered_as_on_a_plain_table(seed: int) -> None:
    world = World(spread_index=seed % 2 == 1)
    run, mutations = Differential(seed, world), Mutations(Random(seed))
    [process], refused, accepted = world.processes, 0, 0
    run.run(60)  # spreads the keys
    for _ in range(REQUESTS):
        world.renew(process)
        run.grammar.now_ms = world.now_ms()
        operation, usual = run.grammar.request()
        parameters = mutations.of(usual)
        found = outcome(process.send, operation, parameters)
        if message(found).startswith(OURS):
            refused += 1
            continue
        plain = outcome(world.plain.send, operation, parameters)
        if plain.get("error") == REUSED and "error" in found:
            continue  # a wrong request with the token of another one: either error is due
        assert found.get("error") == plain.get("error"), (operation, parameters, plain, found)
        if "error" not in plain and operation not in ("Scan", "Query"):
            accepted += 1
            assert comparable(found) == comparable(plain), (operation, parameters)
    assert accepted > REQUESTS / 20
    assert refused < REQUESTS / 50
    run.compare_pages("Scan", {"TableName": TABLE}, process)


def message(answer: Body) -> str:
    body = answer.get("body", {})
    return str(body.get("message") or body.get("Message") or "")


@pytest.mark.parametrize(
    "request_",
    [
        {"TableName": TABLE, "RequestItems": 5},
        {"TableName": TABLE, "TransactItems": [5]},
        {"TransactItems": [5, {"Get": {"TableName": TABLE}}, {"Put": 5}]},
        {"RequestItems": {TABLE: 5}, "TransactItems": {}},
        {"TableName": ["x"], "RequestItems": {TABLE: None}},
        {"TableName": f"arn:aws:dynamodb:eu-west-1:111122223333:table/{TABLE}"},
        {"TableName": "other", "RequestItems": {TABLE: {}}},
        {"TableName": TABLE, "Key": {"pk": {"S": "x" * SMALL}}},
    ],
)
@pytest.mark.parametrize("operation", ["GetItem", "TransactGetItems"])
def test_the_door_sees_the_table_whatever_else_is_wrong(operation: str, request_: Body) -> None:
    body = msgspec.json.encode(request_)
    assert TABLE in tables_in(body)
    assert concerns({TABLE}, operation, body, decoded_if_small(operation, body))


@pytest.mark.parametrize("operation", ["GetItem", "TransactGetItems"])
def test_a_request_on_other_tables_does_not_concern_a_declared_one(operation: str) -> None:
    for request_ in ({"TableName": "other"}, {"TableName": "other", "Key": {"TableName": TABLE}}):
        body = msgspec.json.encode(request_)
        assert not concerns({TABLE}, operation, body, decoded_if_small(operation, body))


def test_what_is_no_request_names_no_table() -> None:
    for body in (b"", b"{", b"[5]", b"5", b'{"TableName":5}', b"[" * 10_000, b"[" * SMALL):
        assert tables_in(body) == set()
        assert not concerns({TABLE}, "GetItem", body, decoded_if_small("GetItem", body))
