"""Single items: put, get, update, delete, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from .conftest import Refusal
from .deviations import deviates

GUIDE = "https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/"
UPDATES = GUIDE + "Expressions.UpdateExpressions.html"
CONDITIONS = GUIDE + "Expressions.OperatorsAndFunctions.html"
INCORRECT_TYPE = "An operand in the update expression has an incorrect data type"
OVERLAP = "https://github.com/getmoto/moto/issues/5429"
UNITS = GUIDE + "read-write-operations.html"

KEY = {"pk": {"S": "a"}, "sk": {"S": "1"}}
EVERY_TYPE: dict[str, Any] = {
    **KEY,
    "text": {"S": "ü"},
    "number": {"N": "-1.5"},
    "binary": {"B": b"\x00\xff"},
    "flag": {"BOOL": True},
    "nothing": {"NULL": True},
    "list": {"L": [{"S": "x"}, {"N": "2"}]},
    "map": {"M": {"inner": {"L": []}}},
    "texts": {"SS": ["a", "b"]},
    "numbers": {"NS": ["1", "2"]},
    "binaries": {"BS": [b"a", b"b"]},
    "empty": {"S": ""},
}


def put(client: DynamoDBClient, table: str, **attributes: Any) -> Any:
    return client.put_item(TableName=table, Item={**KEY, **attributes})


def get(client: DynamoDBClient, table: str, **key: Any) -> Any:
    answer = client.get_item(TableName=table, Key={**KEY, **key}, ConsistentRead=True)
    return answer.get("Item")


def update(client: DynamoDBClient, table: str, expression: str, **options: Any) -> Any:
    values = {f":{name}": value for name, value in options.pop("values", {}).items()}
    if values:
        options["ExpressionAttributeValues"] = values
    return client.update_item(TableName=table, Key=KEY, UpdateExpression=expression, **options).get(
        "Attributes"
    )


def test_an_item_comes_back_as_it_was_put(client: DynamoDBClient, table: str) -> None:
    client.put_item(TableName=table, Item=EVERY_TYPE)
    found = get(client, table)
    for kind in ("texts", "numbers", "binaries"):
        [(name, members)] = found[kind].items()
        found[kind] = {name: sorted(members)}
    assert found == EVERY_TYPE


def test_what_is_not_there_is_no_item(client: DynamoDBClient, table: str) -> None:
    assert get(client, table) is None


@pytest.mark.parametrize(
    ("given", "normal"),
    [("1.0", "1"), ("007", "7"), ("1E2", "100"), ("-0", "0"), ("0.10", "0.1"), ("1e-3", "0.001")],
)
def test_numbers_come_back_in_their_normal_form(
    client: DynamoDBClient, table: str, given: str, normal: str
) -> None:
    put(client, table, n={"N": given})
    assert get(client, table)["n"] == {"N": normal}


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("1" * 39, "more than 38 significant digits"),
        ("1E126", "Number overflow"),
        ("1E-131", "Number underflow"),
        ("abc", "cannot be converted to a numeric value"),
    ],
)
def test_numbers_have_limits(
    client: DynamoDBClient, table: str, refused: Refusal, number: str, message: str
) -> None:
    with refused:
        put(client, table, n={"N": number})
    assert refused.code == "ValidationException"
    assert message in refused.message


def test_a_put_returns_the_old_item_if_asked(client: DynamoDBClient, table: str) -> None:
    put(client, table, n={"N": "1"})
    answer = client.put_item(TableName=table, Item={**KEY}, ReturnValues="ALL_OLD")
    assert answer["Attributes"] == {**KEY, "n": {"N": "1"}}


def test_a_put_cannot_return_the_new_item(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    with refused:
        client.put_item(TableName=table, Item={**KEY}, ReturnValues="ALL_NEW")
    assert refused.code == "ValidationException"
    assert "ALL_OLD" in refused.message


def test_a_failed_condition_says_so_and_shows_the_item_if_asked(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    put(client, table, n={"N": "1"})
    with refused:
        client.put_item(
            TableName=table,
            Item={**KEY},
            ConditionExpression="attribute_not_exists(pk)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    assert refused.code == "ConditionalCheckFailedException"
    assert refused.message == "The conditional request failed"
    assert refused.response["Item"] == {**KEY, "n": {"N": "1"}}


def test_a_delete_is_idempotent_and_returns_what_was_there(
    client: DynamoDBClient, table: str
) -> None:
    put(client, table)
    first = client.delete_item(TableName=table, Key=KEY, ReturnValues="ALL_OLD")
    second = client.delete_item(TableName=table, Key=KEY, ReturnValues="ALL_OLD")
    assert first["Attributes"] == KEY
    assert "Attributes" not in second


def test_an_update_creates_the_item(client: DynamoDBClient, table: str) -> None:
    update(client, table, "SET n = :n", values={"n": {"N": "1"}})
    assert get(client, table) == {**KEY, "n": {"N": "1"}}


def test_an_update_without_an_expression_creates_the_bare_item(
    client: DynamoDBClient, table: str
) -> None:
    client.update_item(TableName=table, Key=KEY)
    assert get(client, table) == KEY


@deviates(
    "ministack",
    "removes the positions one after the other, each time from the shortened list",
    UPDATES,
    "REMOVE l[0], l[1]",
)
@pytest.mark.parametrize(
    ("before", "expression", "values", "after"),
    [
        ({"n": {"N": "1"}}, "SET n = n + :v", {"v": {"N": "2"}}, {"n": {"N": "3"}}),
        ({"n": {"N": "1"}}, "SET n = n - :v", {"v": {"N": "0.5"}}, {"n": {"N": "0.5"}}),
        ({}, "SET n = if_not_exists(n, :v) + :v", {"v": {"N": "2"}}, {"n": {"N": "4"}}),
        (
            {"l": {"L": [{"N": "1"}]}},
            "SET l = list_append(l, :v)",
            {"v": {"L": [{"N": "2"}]}},
            {"l": {"L": [{"N": "1"}, {"N": "2"}]}},
        ),
        (
            {"l": {"L": [{"N": "1"}]}},
            "SET l[9] = :v",
            {"v": {"N": "2"}},
            {"l": {"L": [{"N": "1"}, {"N": "2"}]}},
        ),
        (
            {"m": {"M": {"a": {"N": "1"}}}},
            "SET m.b = :v REMOVE m.a",
            {"v": {"N": "2"}},
            {"m": {"M": {"b": {"N": "2"}}}},
        ),
        (
            {"l": {"L": [{"N": "1"}, {"N": "2"}, {"N": "3"}]}},
            "REMOVE l[0], l[1]",
            {},
            {"l": {"L": [{"N": "3"}]}},
        ),
        (
            {"a": {"N": "1"}, "b": {"N": "2"}},
            "SET a = b, b = a",
            {},
            {"a": {"N": "2"}, "b": {"N": "1"}},
        ),
        ({}, "ADD n :v", {"v": {"N": "5"}}, {"n": {"N": "5"}}),
        ({"n": {"N": "1"}}, "ADD n :v", {"v": {"N": "-5"}}, {"n": {"N": "-4"}}),
        ({"s": {"SS": ["a", "b"]}}, "DELETE s :v", {"v": {"SS": ["a"]}}, {"s": {"SS": ["b"]}}),
        ({"s": {"SS": ["a"]}}, "DELETE s :v", {"v": {"SS": ["a"]}}, {}),
        ({"s": {"SS": ["a"]}}, "ADD s :v", {"v": {"SS": ["a"]}}, {"s": {"SS": ["a"]}}),
        ({"a": {"N": "1"}}, "REMOVE a, nothing", {}, {}),
    ],
)
def test_updates(
    client: DynamoDBClient, table: str, before: Any, expression: str, values: Any, after: Any
) -> None:
    put(client, table, **before)
    assert update(client, table, expression, values=values, ReturnValues="ALL_NEW") == {
        **KEY,
        **after,
    }
    assert get(client, table) == {**KEY, **after}


@pytest.mark.parametrize(
    ("which", "shown"),
    [
        ("NONE", None),
        ("ALL_OLD", {**KEY, "a": {"N": "1"}, "b": {"N": "1"}}),
        ("UPDATED_OLD", {"a": {"N": "1"}}),
        ("ALL_NEW", {**KEY, "a": {"N": "2"}, "b": {"N": "1"}}),
        ("UPDATED_NEW", {"a": {"N": "2"}}),
    ],
)
def test_an_update_returns_what_was_asked(
    client: DynamoDBClient, table: str, which: str, shown: Any
) -> None:
    put(client, table, a={"N": "1"}, b={"N": "1"})
    assert (
        update(client, table, "SET a = :v", values={"v": {"N": "2"}}, ReturnValues=which) == shown
    )


@deviates("ministack", "adds a number to a text", UPDATES, "SET t = t + :v")
@deviates("ministack", "accepts two actions on one path", OVERLAP, "SET a = :v, a = :v")
@deviates("ministack", "accepts a clause twice", UPDATES, "SET a = :v SET b = :v")
@deviates("ministack", "accepts what its grammar does not have", UPDATES, "SET a == :v")
@deviates("ministack", "takes an unknown function for an attribute", UPDATES, "SET a = nofun(t)")
@pytest.mark.parametrize(
    ("expression", "values", "message"),
    [
        ("SET pk = :v", {"v": {"S": "b"}}, "attribute pk. This attribute is part of the key"),
        ("SET n = absent", {}, "refers to an attribute that does not exist in the item"),
        ("SET a.b = :v", {"v": {"N": "1"}}, "The document path provided in the update expression"),
        ("SET t = t + :v", {"v": {"N": "1"}}, INCORRECT_TYPE),
        ("ADD t :v", {"v": {"N": "1"}}, INCORRECT_TYPE),
        ("SET a = :v, a = :v", {"v": {"N": "1"}}, "Two document paths overlap with each other"),
        ("SET a = :v SET b = :v", {"v": {"N": "1"}}, "section can only be used once"),
        ("SET a = :missing", {}, "is not defined; attribute value: :missing"),
        ("SET #missing = t", {}, "is not defined; attribute name: #missing"),
        ("SET name = :v", {"v": {"N": "1"}}, "reserved keyword; reserved keyword: name"),
        ("SET a == :v", {"v": {"N": "1"}}, 'Invalid UpdateExpression: Syntax error; token: "="'),
        ("", {}, "Invalid UpdateExpression: The expression can not be empty;"),
        ("SET a = t", {"unused": {"N": "1"}}, "unused in expressions: keys: {:unused}"),
        ("SET a = nofun(t)", {}, "Invalid function name; function: nofun"),
        ("ADD a :v", {"v": {"S": "1"}}, "operator: ADD, operand type: STRING"),
    ],
)
def test_updates_that_are_refused(
    client: DynamoDBClient,
    table: str,
    refused: Refusal,
    expression: str,
    values: Any,
    message: str,
) -> None:
    put(client, table, t={"S": "text"})
    with refused:
        update(client, table, expression, values=values)
    assert refused.code == "ValidationException"
    assert message in refused.message
    assert get(client, table) == {**KEY, "t": {"S": "text"}}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"sk": {"S": "1"}}, "Missing the key pk in the item"),
        ({"pk": {"N": "1"}, "sk": {"S": "1"}}, "Type mismatch for key pk expected: S actual: N"),
        ({"pk": {"S": ""}, "sk": {"S": "1"}}, "cannot contain an empty string value. Key: pk"),
        ({"pk": {"S": "a"}, "sk": {"S": ""}}, "cannot contain an empty string value. Key: sk"),
        ({"pk": {"S": "a" * 2049}, "sk": {"S": "1"}}, "2048 bytes"),
        ({"pk": {"S": "a"}, "sk": {"S": "1" * 1025}}, "exceeded the size limit of 1024 bytes"),
        ({**KEY, "x": {"S": "x" * 409_600}}, "Item size has exceeded the maximum allowed size"),
        ({**KEY, "x": {"SS": []}}, "An string set  may not be empty"),
        ({**KEY, "x": {"SS": ["a", "a"]}}, "contains duplicates"),
        ({**KEY, "x": {}}, "must contain exactly one of the supported datatypes"),
        ({**KEY, "x": {"S": "a", "N": "1"}}, "must contain exactly one of the supported datatypes"),
    ],
)
def test_items_that_are_refused(
    client: DynamoDBClient, table: str, refused: Refusal, item: Any, message: str
) -> None:
    with refused:
        client.put_item(TableName=table, Item=item)
    assert refused.code == "ValidationException"
    assert message in refused.message


def test_keys_and_items_just_within_their_limits(client: DynamoDBClient, table: str) -> None:
    longest = {"pk": {"S": "a" * 2048}, "sk": {"S": "1" * 1024}}
    client.put_item(TableName=table, Item=longest)
    assert get(client, table, **longest) == longest
    room = 409_600 - len("pk") - len("a") - len("sk") - len("1") - len("x")
    put(client, table, x={"S": "x" * room})


@pytest.mark.parametrize(
    "key",
    [{"pk": {"S": "a"}}, {"pk": {"N": "1"}, "sk": {"S": "1"}}, {**KEY, "more": {"S": "x"}}, {}],
)
def test_a_key_must_match_the_schema(
    client: DynamoDBClient, table: str, refused: Refusal, key: Any
) -> None:
    with refused:
        client.get_item(TableName=table, Key=key)
    assert refused.code == "ValidationException"
    assert refused.message == "The provided key element does not match the schema"


def test_an_unknown_table_is_not_found(client: DynamoDBClient, refused: Refusal) -> None:
    with refused:
        client.get_item(TableName="no-such-table", Key=KEY)
    assert refused.code == "ResourceNotFoundException"
    assert refused.message.startswith("Requested resource not found")


def test_a_projection_keeps_what_it_names(client: DynamoDBClient, table: str) -> None:
    put(
        client,
        table,
        m={"M": {"a": {"N": "1"}, "b": {"N": "2"}}},
        l={"L": [{"N": "0"}, {"N": "1"}, {"N": "2"}]},
        name={"S": "x"},
    )
    answer = client.get_item(
        TableName=table,
        Key=KEY,
        ProjectionExpression="m.b, l[2], l[0], #n, absent",
        ExpressionAttributeNames={"#n": "name"},
    )
    assert answer["Item"] == {
        "m": {"M": {"b": {"N": "2"}}},
        "l": {"L": [{"N": "0"}, {"N": "2"}]},
        "name": {"S": "x"},
    }


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("n = :one", True),
        ("n <> :one", False),
        ("absent <> :one", True),
        ("n < :two AND n <= :one AND n > :zero AND n >= :one", True),
        ("n BETWEEN :zero AND :two", True),
        ("n IN (:zero, :one)", True),
        ("NOT n IN (:zero, :two)", True),
        ("n = :text", False),
        ("n < :text", False),
        ("attribute_type(t, :kind)", True),
        ("begins_with(t, :text)", True),
        ("contains(t, :text)", True),
        ("contains(s, :text)", True),
        ("contains(l, :one)", True),
        ("size(t) = :five", True),
        ("size(l) < :two AND size(s) = :two", True),
        ("attribute_exists(m.a) AND attribute_not_exists(m.b)", True),
        ("n = :two OR n = :one AND t = :nonsense", False),
        ("(n = :two OR n = :one) AND NOT t = :nonsense", True),
        ("s = :set", True),
    ],
)
def test_conditions(client: DynamoDBClient, table: str, condition: str, holds: bool) -> None:
    put(
        client,
        table,
        n={"N": "1"},
        t={"S": "texts"},
        s={"SS": ["text", "other"]},
        l={"L": [{"N": "1"}]},
        m={"M": {"a": {"N": "1"}}},
    )
    known = {
        ":zero": {"N": "0"},
        ":one": {"N": "1"},
        ":two": {"N": "2"},
        ":five": {"N": "5"},
        ":text": {"S": "text"},
        ":nonsense": {"S": "nonsense"},
        ":kind": {"S": "S"},
        ":set": {"SS": ["other", "text"]},
    }
    words = condition.replace("(", " ").replace(")", " ").replace(",", " ").split()
    values: Any = {name: value for name, value in known.items() if name in words}
    options = {"ExpressionAttributeValues": values} if values else {}
    try:
        client.delete_item(TableName=table, Key=KEY, ConditionExpression=condition, **options)
    except client.exceptions.ConditionalCheckFailedException:
        assert not holds
    else:
        assert holds


@deviates("ministack", "says the condition failed", CONDITIONS, "begins_with(n, :one)", "nofun(n)")
@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("n BETWEEN :two AND :one", "The BETWEEN operator requires upper bound"),
        ("begins_with(n, :one)", "function: begins_with, operand type: N"),
        ("n = ", 'Invalid ConditionExpression: Syntax error; token: "<EOF>"'),
        ("attribute_exists(n) AND", 'Invalid ConditionExpression: Syntax error; token: "<EOF>"'),
        ("nofun(n)", "Invalid function name; function: nofun"),
    ],
)
def test_conditions_that_are_refused(
    client: DynamoDBClient, table: str, refused: Refusal, condition: str, message: str
) -> None:
    known: Any = {":one": {"N": "1"}, ":two": {"N": "2"}}
    values = {name: value for name, value in known.items() if name in condition}
    options: Any = {"ExpressionAttributeValues": values} if values else {}
    with refused:
        client.delete_item(TableName=table, Key=KEY, ConditionExpression=condition, **options)
    assert refused.code == "ValidationException"
    assert message in refused.message


@pytest.mark.parametrize(
    ("size", "units"), [(0, 1.0), (1_000, 1.0), (1_100, 2.0), (3_000, 3.0), (10_000, 10.0)]
)
def test_a_write_costs_a_unit_per_kilobyte(
    client: DynamoDBClient, table: str, size: int, units: float
) -> None:
    answer = client.put_item(
        TableName=table, Item={**KEY, "x": {"S": "x" * size}}, ReturnConsumedCapacity="TOTAL"
    )
    assert answer["ConsumedCapacity"] == {"TableName": table, "CapacityUnits": units}


@deviates("ministack", "charges one unit whatever the size", UNITS, 5_000, 12_000)
@pytest.mark.parametrize(
    ("size", "consistent", "units"),
    [(0, False, 0.5), (0, True, 1.0), (5_000, True, 2.0), (5_000, False, 1.0), (12_000, True, 3.0)],
)
def test_a_read_costs_a_unit_per_four_kilobytes(
    client: DynamoDBClient, table: str, size: int, consistent: bool, units: float
) -> None:
    put(client, table, x={"S": "x" * size})
    answer = client.get_item(
        TableName=table, Key=KEY, ConsistentRead=consistent, ReturnConsumedCapacity="TOTAL"
    )
    assert answer["ConsumedCapacity"]["CapacityUnits"] == units


def test_overwriting_a_large_item_with_a_small_one_costs_by_the_large_one(
    client: DynamoDBClient, table: str
) -> None:
    put(client, table, x={"S": "x" * 5_000})
    answer = client.put_item(TableName=table, Item={**KEY}, ReturnConsumedCapacity="TOTAL")
    assert answer["ConsumedCapacity"]["CapacityUnits"] == 5.0


def test_keys_may_be_numbers_and_binaries(
    client: DynamoDBClient, make_table: Callable[..., str]
) -> None:
    table = make_table("N", "B")
    client.put_item(TableName=table, Item={"pk": {"N": "1.0"}, "sk": {"B": b"\x01"}})
    answer = client.get_item(TableName=table, Key={"pk": {"N": "1"}, "sk": {"B": b"\x01"}})
    assert answer["Item"] == {"pk": {"N": "1"}, "sk": {"B": b"\x01"}}
