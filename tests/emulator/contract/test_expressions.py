"""Expressions: what is refused, in which words, and in which order. No table is needed for most."""

from __future__ import annotations

from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from .conftest import Refusal
from .deviations import deviates

GUIDE = "https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/"
CONDITIONS = GUIDE + "Expressions.OperatorsAndFunctions.html"
UPDATES = GUIDE + "Expressions.UpdateExpressions.html"
NAMES = GUIDE + "HowItWorks.NamingRulesDataTypes.html"
SCAN = "https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_Scan.html"

KEY: Any = {"pk": {"S": "a"}, "sk": {"S": "1"}}
MISUSED = "The function is not allowed to be used this way in an expression; function: "
WRONG_TYPE = "Incorrect operand type for operator or function; operator or function: "
VALUES: Any = {":s": {"S": "a"}, ":n": {"N": "1"}, ":l": {"L": []}, ":x": {"S": "b"}}


def used(text: str) -> dict[str, Any]:
    values = {name: value for name, value in VALUES.items() if name in text}
    return {"ExpressionAttributeValues": values} if values else {}


@deviates(
    "ministack",
    "accepts them",
    CONDITIONS,
    *("abs(a) = :n", "abort = :s", "abs(abort) = :s", "size(a)", "a = a", ""),
    *("contains(a, begins_with(b, :s))", "attribute_exists(:s)", "begins_with(a)"),
    *("size(:n) > :n", "a BETWEEN :x AND :s", "a BETWEEN :n AND :s"),
)
@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("((a = :s))", "The expression has redundant parentheses;"),
        ("a = :s AND ((a = :n))", "The expression has redundant parentheses;"),
        ("abs(a) = :n", "Invalid function name; function: abs"),
        ("abort = :s", "Attribute name is a reserved keyword; reserved keyword: abort"),
        ("abs(abort) = :s", "Invalid function name; function: abs"),
        ("size(a)", MISUSED + "size"),
        ("contains(a, begins_with(b, :s))", MISUSED + "begins_with"),
        ("attribute_exists(:s)", ("Operator or function requires a document path; operator or "
         "function: attribute_exists")),
        ("begins_with(a)", ("Incorrect number of operands for operator or function; operator or "
         "function: begins_with, number of operands: 1")),
        ("begins_with(a, :n)", WRONG_TYPE + "begins_with, operand type: N"),
        ("size(:n) > :n", WRONG_TYPE + "size, operand type: N"),
        ("a = a", ("The first operand must be distinct from the remaining operands for this "
         "operator or function; operator: =, first operand: [a]")),
        ("a BETWEEN :x AND :s", ("The BETWEEN operator requires upper bound to be greater than or "
         "equal to lower bound; lower bound operand: AttributeValue: {S:b}, upper bound operand: "
         "AttributeValue: {S:a}")),
        ("a BETWEEN :n AND :s", ("The BETWEEN operator requires same data type for lower and upper "
         "bounds; lower bound operand: AttributeValue: {N:1}, upper bound operand: "
         "AttributeValue: {S:a}")),
        ("", "The expression can not be empty;"),
    ],
)  # fmt: skip
def test_conditions_that_are_refused(
    client: DynamoDBClient, table: str, refused: Refusal, condition: str, message: str
) -> None:
    with refused:
        client.scan(TableName=table, FilterExpression=condition, **used(condition))
    assert refused.code == "ValidationException"
    assert refused.message == f"Invalid FilterExpression: {message}"


@deviates(
    "ministack",
    "takes these for syntax errors",
    CONDITIONS,
    *("(a) = :s", "size(:s) = :n", "attribute_type(:n, :n_type)", "(size(a)) = :n"),
    "a IN (:s, (:n))",
)
@pytest.mark.parametrize(
    "condition",
    ["(a) = :s", "(a = :s)", "(a = :s AND (a = :s))", "NOT (a = :n)", "size(:s) = :n",
     "attribute_type(:n, :n_type)", "(size(a)) = :n", "a IN (:s, (:n))"],
)  # fmt: skip
def test_conditions_that_hold(client: DynamoDBClient, table: str, condition: str) -> None:
    client.put_item(TableName=table, Item={**KEY, "a": {"S": "a"}})
    values = used(condition)["ExpressionAttributeValues"]
    if ":n_type" in condition:
        values[":n_type"] = {"S": "N"}
    found = client.scan(
        TableName=table, FilterExpression=condition, ExpressionAttributeValues=values
    )
    assert found["Count"] == 1


@deviates("ministack", "accepts them, or has other words", UPDATES)
@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("SET a = :s SET b = :s",
         'The "SET" section can only be used once in an update expression;'),
        ("SET a = abs(:n)", "Invalid function name; function: abs"),
        ("SET a = list_append(a, :n)", WRONG_TYPE + "list_append, operand type: N"),
        ("SET a = a + :s", WRONG_TYPE + "+, operand type: S"),
        ("SET a = if_not_exists(:s, :n)",
         "Operator or function requires a document path; operator or function: if_not_exists"),
        ("SET a = :s, a.b = :n",
         ("Two document paths overlap with each other; must remove or rewrite one of these paths; "
         "path one: [a], path two: [a, b]")),
        ("SET a[1] = :s, a.b = :n",
         ("Two document paths conflict with each other; must remove or rewrite one of these paths; "
         "path one: [a, [1]], path two: [a, b]")),
    ],
)  # fmt: skip
def test_updates_that_are_refused(
    client: DynamoDBClient, table: str, refused: Refusal, update: str, message: str
) -> None:
    with refused:
        client.update_item(TableName=table, Key=KEY, UpdateExpression=update, **used(update))
    assert refused.message == f"Invalid UpdateExpression: {message}"


@deviates("ministack", "appends them in the order of the expression", UPDATES)
def test_elements_beyond_the_end_are_appended_in_the_order_of_their_positions(
    client: DynamoDBClient, table: str
) -> None:
    client.put_item(TableName=table, Item={**KEY, "l": {"L": [{"S": "0"}]}})
    found = client.update_item(
        TableName=table,
        Key=KEY,
        UpdateExpression="SET l[9] = :nine, l[5] = :five, l[0] = :zero ADD l[8] :eight",
        ExpressionAttributeValues={
            ":eight": {"N": "8"},
            ":nine": {"S": "9"},
            ":five": {"S": "5"},
            ":zero": {"S": "z"},
        },
        ReturnValues="ALL_NEW",
    )["Attributes"]
    assert found["l"] == {"L": [{"S": "z"}, {"S": "5"}, {"N": "8"}, {"S": "9"}]}


@pytest.mark.parametrize("path", ["pk.a", "sk[0]"])
@deviates("ministack", "accepts them", CONDITIONS)
def test_no_expression_reaches_into_a_key(
    client: DynamoDBClient, table: str, refused: Refusal, path: str
) -> None:
    with refused:
        client.get_item(TableName=table, Key=KEY, ProjectionExpression=path)
    said = (
        "Key attributes must be scalars; list random access '[]' and map lookup '.' are not "
        f"allowed: Key: {path[:2]}"
    )
    assert refused.message == said
    with refused:
        wanted: Any = {"Keys": [KEY], "ProjectionExpression": path}
        client.batch_get_item(RequestItems={table: wanted})
    assert refused.message == said
    with refused:
        get: Any = {"TableName": table, "Key": KEY, "ProjectionExpression": path}
        client.transact_get_items(TransactItems=[{"Get": get}])
    assert refused.message == said
    with refused:
        client.scan(TableName=table, FilterExpression=f"attribute_exists({path})")
    assert refused.message.endswith(f"not allowed: Key: {path[:2]}")


@deviates("ministack", "accepts them, or has other words", UPDATES)
@pytest.mark.parametrize("update", ["SET a.b = :s", "REMOVE a.b", "DELETE a.b :ss", "ADD a.b :n"])
def test_a_path_whose_parent_is_missing_is_refused(
    client: DynamoDBClient, table: str, refused: Refusal, update: str
) -> None:
    client.put_item(TableName=table, Item=KEY)
    options = used(update)
    if ":ss" in update:
        options = {"ExpressionAttributeValues": {":ss": {"SS": ["x"]}}}
    with refused:
        client.update_item(TableName=table, Key=KEY, UpdateExpression=update, **options)
    assert refused.message == (
        "The document path provided in the update expression is invalid for update"
    )


@deviates("ministack", "accepts any name", NAMES)
@pytest.mark.parametrize("name", ["", "x" * 65_536])
def test_an_attribute_name_has_1_to_65535_bytes(
    client: DynamoDBClient, table: str, refused: Refusal, name: str
) -> None:
    with refused:
        client.put_item(TableName=table, Item={**KEY, name: {"S": "x"}})
    assert refused.code == "ValidationException"


@deviates("ministack", "accepts any starting key", SCAN)
def test_a_starting_key_belongs_to_its_segment(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    client.put_item(TableName=table, Item=KEY)
    shares = [client.scan(TableName=table, Segment=one, TotalSegments=2)["Count"] for one in (0, 1)]
    with refused:
        client.scan(
            TableName=table, Segment=shares.index(0), TotalSegments=2, ExclusiveStartKey=KEY
        )
    assert refused.code == "ValidationException"


def test_a_transaction_reads_each_item_once(
    client: DynamoDBClient, table: str, refused: Refusal
) -> None:
    get: Any = {"Get": {"TableName": table, "Key": KEY}}
    with refused:
        client.transact_get_items(TransactItems=[get, get])
    assert refused.message == ("Transaction request cannot include multiple operations on one item")
