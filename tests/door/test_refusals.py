"""What the core and its drivers refuse, how the errors look on the wire, and what is counted."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from botocore.retries.standard import ThrottledRetryableChecker

from heatsink import errors
from heatsink.door.core import tables_named
from heatsink.door.drivers import of_heatsink
from heatsink.door.forms import tables_in_statements
from heatsink.door.protocol import Body, WireError
from heatsink.stores.dynamodb.wire.errors import ValidationFailed

from .grammar import text_of
from .world import TABLE, World

WRONG = (400, "ValidationException")
EXCEEDED = (400, "ProvisionedThroughputExceededException")
LATER = (503, "InternalServerError")
ON_THE_WIRE: dict[type[errors.HeatsinkError], tuple[int, str]] = {
    errors.HeatsinkError: LATER,
    errors.InvalidInput: WRONG,
    errors.InvalidKey: WRONG,
    errors.InvalidId: WRONG,
    errors.InvalidCursor: WRONG,
    errors.InvalidBody: WRONG,
    errors.InvalidSetting: WRONG,
    errors.NotFound: WRONG,
    errors.Misconfigured: LATER,
    errors.NoTable: LATER,
    errors.TableExists: LATER,
    errors.NoAccess: LATER,
    errors.Conflict: WRONG,
    errors.Deleted: WRONG,
    errors.IdReused: WRONG,
    errors.TokenExpired: WRONG,
    errors.Retryable: LATER,
    errors.Throttled: EXCEEDED,
    errors.Unavailable: LATER,
    errors.NoRegistry: LATER,
    errors.Overloaded: LATER,
    errors.Closed: LATER,
    errors.RegistryError: LATER,
    errors.Deposed: LATER,
    errors.Outdated: LATER,
    errors.WrongIncarnation: LATER,
}


def made(kind: type[errors.HeatsinkError]) -> errors.HeatsinkError:
    return errors.NoRegistry() if kind is errors.NoRegistry else kind("some words")


def is_repeated(error: WireError) -> bool:
    """Whether an SDK of AWS sends the request again."""
    of_botocore: Any = ThrottledRetryableChecker
    return error.status >= 500 or error.code in of_botocore._THROTTLED_ERROR_CODES


def test_the_table_of_this_test_has_every_error() -> None:
    classes = (one for _, one in inspect.getmembers(errors, inspect.isclass))
    assert set(ON_THE_WIRE) == {one for one in classes if issubclass(one, errors.HeatsinkError)}


@pytest.mark.parametrize("kind", ON_THE_WIRE, ids=lambda kind: kind.__name__)
def test_an_sdk_repeats_a_request_exactly_if_the_error_says_that_this_may_help(
    kind: type[errors.HeatsinkError],
) -> None:
    error = made(kind)
    found = of_heatsink(error)
    assert (found.status, found.code) == ON_THE_WIRE[kind]
    assert found.message == f"Heatsink: {error}"
    assert is_repeated(found) == errors.answer_of(error).retryable


def test_retries_that_were_throttled_until_the_deadline_are_throttling() -> None:
    error = errors.Overloaded("tried 4 times")
    error.__cause__ = errors.Throttled("chat")
    found = of_heatsink(error)
    assert (found.status, found.code) == EXCEEDED
    refused = of_heatsink(ValidationFailed("a mistake in the request"))
    assert (refused.status, refused.code) == WRONG
    assert of_heatsink(found) is found


STATEMENTS: list[tuple[str, set[str]]] = [
    ('SELECT * FROM "chat" WHERE room = ?', {"chat"}),
    ("select a, b from chat", {"chat"}),
    ('SELECT * FROM "chat"."by-kind" WHERE kind = 1', {"chat"}),
    ("INSERT INTO chat VALUE {'room': 'r'}", {"chat"}),
    ("UPDATE \"chat\" SET a = 1 WHERE room = 'r'", {"chat"}),
    ("DELETE FROM /* all */ chat -- FROM rooms\nWHERE room = 'r'", {"chat"}),
    ('SELECT * FROM "arn:aws:dynamodb:eu-west-1:1:table/chat"', {"chat"}),
    ("EXISTS(SELECT * FROM chat WHERE room = 'r')", {"chat"}),
    ("SELECT * FROM chats", set()),
    ('SELECT * FROM "my-chat"', set()),
    ('SELECT chat FROM "other" WHERE chat = 1', set()),
    ("SELECT * FROM other WHERE a = 'FROM chat'", set()),
    ("SELECT * FROM other WHERE a = 'it''s FROM chat'", set()),
    ('SELECT * FROM "a""chat"', set()),
    # not understood: every table whose name occurs counts
    ("DELETE chat", {"chat"}),
    ("SELECT * FROM chat-room", {"chat"}),
    ("SELECT * FROM chat.kinds", {"chat"}),
    ("SELECT * FROM ", set()),
    ("SELECT * FROM (chat)", {"chat"}),
    ("", set()),
]


@pytest.mark.parametrize(("statement", "tables"), STATEMENTS)
def test_a_statement_concerns_the_tables_that_it_names(statement: str, tables: set[str]) -> None:
    declared = ["chat", "rooms"]
    one = {"Statement": statement}
    for request in (one, {"Statements": [one]}, {"TransactStatements": [one, 7]}):
        assert tables_in_statements(request, declared) == tables
        assert tables_named("ExecuteStatement", request, declared) == tables


def test_partiql_passes_on_a_table_whose_name_contains_that_of_a_declared_one() -> None:
    core = World().processes[0].core
    assert core.begin("ExecuteStatement", {"Statement": "SELECT * FROM chats"}) is None
    with pytest.raises(WireError, match="PartiQL"):
        core.begin("ExecuteStatement", {"Statement": "SELECT * FROM chat"})


@pytest.mark.parametrize(
    "request_",
    [
        {"TableName": TABLE},
        {"TableName": f"arn:aws:dynamodb:eu-west-1:111122223333:table/{TABLE}"},
        {"RequestItems": {TABLE: []}},
        {"TransactItems": [{"Anything": {"TableName": TABLE}}]},
    ],
)
def test_an_operation_that_nobody_knows_is_refused_on_a_declared_table(request_: Body) -> None:
    core = World().processes[0].core
    with pytest.raises(WireError, match="TruncateItems is not possible on the spread table"):
        core.begin("TruncateItems", request_)
    assert core.begin("TruncateItems", {"TableName": "other"}) is None


def test_waits_and_refusals_are_counted_once_each() -> None:
    world = World()
    process, registry = world.processes[0], world.registry
    counts = process.core.counts
    ahead: Body = {"pk": {"S": "room"}, "sk": {"S": f"MSG#{text_of(registry.closed_ms + 500)}#1"}}
    process.send("PutItem", {"TableName": TABLE, "Item": ahead})
    assert (counts["waits"], counts["refusals"]) == (1, 0)
    reserved = {**ahead, "pk": {"S": "room\u241fhs1"}}
    refused: list[tuple[str, Any]] = [
        ("GetItem", {"TableName": TABLE, "Key": reserved}),
        ("TruncateItems", {"TableName": TABLE}),
        ("ExecuteStatement", {"Statement": "DELETE FROM chat"}),
        ("Query", {"TableName": TABLE, "IndexName": "none", "KeyConditions": {}}),
    ]
    for number, (operation, request) in enumerate(refused, start=1):
        with pytest.raises(WireError) as raised:
            process.send(operation, request)
        ours = raised.value.message.startswith("Heatsink: ")
        assert counts["refusals"] == (number if ours else number - 1)
    assert counts["refusals"] == 3  # the last one is DynamoDB's
    assert counts["waits"] == 1


def test_of_two_mistakes_in_a_transaction_the_first_one_is_reported() -> None:
    """The core finds the second one itself, since that item is in a bucket."""
    world = World()
    world.registry.spread(world.label("room"), 3)
    world.registry.closed_ms += 100
    world.renew(world.processes[0])
    update = {
        "Key": {"pk": {"S": "cold"}, "sk": {"S": "META"}},
        "UpdateExpression": "SET a = :a",
        "ConditionExpression": "a = a",
        "ExpressionAttributeValues": {":a": {"S": "x"}},
    }
    delete = {
        "Key": {"pk": {"S": "room"}, "sk": {"S": f"MSG#{text_of(world.now_ms() - 1)}"}},
        "ConditionExpression": "pk <= :p",
        "ExpressionAttributeValues": {":p": {"SS": ["x"]}},
    }
    actions = [
        {"Update": {"TableName": TABLE, **update}},
        {"Delete": {"TableName": TABLE, **delete}},
    ]
    messages = []
    for given in (actions, actions[::-1]):
        for send in (world.plain.send, world.processes[0].send):
            with pytest.raises(WireError) as raised:
                send("TransactWriteItems", {"TransactItems": given})
            messages.append(raised.value.message)
    assert messages[0] == messages[1] != messages[2] == messages[3]
