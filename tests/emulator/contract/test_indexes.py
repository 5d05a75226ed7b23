"""Secondary indexes: what they hold, queries and scans of them, their costs, their life."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from tests.waiting import until

from .conftest import Refusal
from .deviations import deviates

GUIDE = "https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/"
API = "https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/"
GLOBAL, LOCAL = "by-city", "by-age"
ALL, NOT_PROJECTED = "Select type ALL_ATTRIBUTES is not supported", "does not project"
SAME_HASH = "Index KeySchema does not have the same leading hash key as table KeySchema"
UNDEFINED = "Some index key attributes are not defined in AttributeDefinitions"
EMPTY = "List of GlobalSecondaryIndexes is empty"
KINDS = {"pk": "S", "sk": "S", "city": "S", "age": "N"}


def key(hash_: str, sort: str | None = None) -> Any:
    schema = [{"AttributeName": hash_, "KeyType": "HASH"}]
    return [*schema, *([{"AttributeName": sort, "KeyType": "RANGE"}] if sort else [])]


def definitions(*names: str) -> Any:
    return [{"AttributeName": name, "AttributeType": KINDS[name]} for name in names]


def index(name: str, schema: Any, kind: str = "ALL", *extra: str) -> Any:
    names = {"NonKeyAttributes": list(extra)} if extra else {}
    return {
        "IndexName": name,
        "KeySchema": schema,
        "Projection": {"ProjectionType": kind, **names},
    }


@pytest.fixture
def people(make_named: Callable[..., str]) -> str:
    """A table with one index of each kind."""
    return make_named(
        AttributeDefinitions=definitions("pk", "sk", "city", "age"),
        KeySchema=key("pk", "sk"),
        GlobalSecondaryIndexes=[index(GLOBAL, key("city", "age"), "INCLUDE", "name")],
        LocalSecondaryIndexes=[index(LOCAL, key("pk", "age"), "KEYS_ONLY")],
        BillingMode="PAY_PER_REQUEST",
    )


@pytest.fixture
def make_named(client: DynamoDBClient) -> Any:
    made: list[str] = []

    def make(**request: Any) -> str:
        name = f"indexed-{len(made)}"
        client.create_table(TableName=name, **request)
        made.append(name)
        return name

    yield make
    for name in made:
        client.delete_table(TableName=name)


def person(pk: str, sk: str, city: str | None = None, age: int | None = None) -> Any:
    found: Any = {"pk": {"S": pk}, "sk": {"S": sk}, "name": {"S": f"{pk}{sk}"}, "note": {"S": "n"}}
    if city is not None:
        found["city"] = {"S": city}
    if age is not None:
        found["age"] = {"N": str(age)}
    return found


def fill(client: DynamoDBClient, table: str) -> None:
    for one in (
        person("a", "1", "rome", 30),
        person("a", "2", "rome", 20),
        person("a", "3", "oslo", 10),
        person("b", "1", "rome", 25),
        person("b", "2", "rome"),  # not in either index
        person("b", "3", None, 5),  # in the local one only
    ):
        client.put_item(TableName=table, Item=one)


def of_city(client: DynamoDBClient, table: str, condition: str = "", **options: Any) -> Any:
    values = {":c": {"S": "rome"}, **options.pop("values", {})}
    return client.query(
        TableName=table,
        IndexName=GLOBAL,
        KeyConditionExpression=f"city = :c{condition}",
        ExpressionAttributeValues=values,
        **options,
    )


def names(answer: Any) -> list[str]:
    return [item["pk"]["S"] + item["sk"]["S"] for item in answer["Items"]]


def test_a_query_of_a_global_index_is_in_the_order_of_its_sort_key(
    client: DynamoDBClient, people: str
) -> None:
    fill(client, people)
    assert names(of_city(client, people)) == ["a2", "b1", "a1"]
    assert names(of_city(client, people, ScanIndexForward=False)) == ["a1", "b1", "a2"]
    older = of_city(client, people, " AND age > :a", values={":a": {"N": "20"}})
    assert names(older) == ["b1", "a1"]


def test_an_index_holds_its_projected_attributes(client: DynamoDBClient, people: str) -> None:
    fill(client, people)
    [first, *_] = of_city(client, people)["Items"]
    assert first.keys() == {"pk", "sk", "city", "age", "name"}


@deviates("ministack", "shows all attributes", GUIDE + "LSI.html#LSI.Projections")
def test_a_local_index_fetches_what_it_lacks(client: DynamoDBClient, people: str) -> None:
    fill(client, people)
    request: Any = {
        "TableName": people,
        "IndexName": LOCAL,
        "KeyConditionExpression": "pk = :p",
        "ExpressionAttributeValues": {":p": {"S": "a"}},
        "ConsistentRead": True,
    }
    page = client.query(**request)
    assert names(page) == ["a3", "a2", "a1"]
    assert page["Items"][0].keys() == {"pk", "sk", "age"}
    whole = client.query(**request, Select="ALL_ATTRIBUTES")["Items"]
    assert whole[0] == person("a", "3", "oslo", 10)


def test_what_a_filter_of_a_local_index_fetches_is_not_shown(
    client: DynamoDBClient, people: str
) -> None:
    fill(client, people)
    page = client.query(
        TableName=people,
        IndexName=LOCAL,
        KeyConditionExpression="pk = :p",
        FilterExpression="city = :c",
        ExpressionAttributeValues={":p": {"S": "a"}, ":c": {"S": "oslo"}},
    )
    assert page["ScannedCount"] == 3
    assert 0 < page["Count"] < 3
    assert page["Items"][0].keys() == {"pk", "sk", "age"}


def test_a_scan_of_an_index_skips_items_without_its_keys(
    client: DynamoDBClient, people: str
) -> None:
    fill(client, people)
    assert sorted(names(client.scan(TableName=people, IndexName=GLOBAL))) == [
        "a1",
        "a2",
        "a3",
        "b1",
    ]
    assert client.scan(TableName=people, IndexName=LOCAL)["Count"] == 5


def test_pages_of_an_index_go_on_from_its_key_and_the_tables(
    client: DynamoDBClient, people: str
) -> None:
    for number in range(5):
        client.put_item(TableName=people, Item=person("a", str(number), "rome", 1))
    found: list[str] = []
    start: Any = {}
    while True:
        page = of_city(client, people, Limit=2, **start)
        found += names(page)
        if "LastEvaluatedKey" not in page:
            break
        assert page["LastEvaluatedKey"].keys() == {"pk", "sk", "city", "age"}
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
    assert sorted(found) == [f"a{number}" for number in range(5)]


def test_an_index_follows_updates_and_deletes(client: DynamoDBClient, people: str) -> None:
    fill(client, people)
    where: Any = {"TableName": people, "Key": {"pk": {"S": "a"}, "sk": {"S": "1"}}}
    client.update_item(
        **where,
        UpdateExpression="SET city = :o",
        ExpressionAttributeValues={":o": {"S": "oslo"}},
    )
    assert names(of_city(client, people)) == ["a2", "b1"]
    client.update_item(**where, UpdateExpression="REMOVE age")
    assert names(of_city(client, people, values={":c": {"S": "oslo"}})) == ["a3"]
    client.delete_item(TableName=people, Key={"pk": {"S": "b"}, "sk": {"S": "1"}})
    assert names(of_city(client, people)) == ["a2"]


def test_units_are_told_for_each_index(client: DynamoDBClient, people: str) -> None:
    answer = client.put_item(
        TableName=people, Item=person("a", "1", "rome", 1), ReturnConsumedCapacity="INDEXES"
    )
    used = answer["ConsumedCapacity"]
    assert used["CapacityUnits"] == 3
    assert used["Table"]["CapacityUnits"] == 1
    assert used["GlobalSecondaryIndexes"][GLOBAL]["CapacityUnits"] == 1
    assert used["LocalSecondaryIndexes"][LOCAL]["CapacityUnits"] == 1
    read = of_city(client, people, ReturnConsumedCapacity="INDEXES")["ConsumedCapacity"]
    assert read["GlobalSecondaryIndexes"][GLOBAL]["CapacityUnits"] == 0.5
    assert read["Table"]["CapacityUnits"] == 0


@deviates(
    "ministack",
    "answers as if the index had all attributes",
    GUIDE + "GSI.html#GSI.Projections",
    *(ALL, NOT_PROJECTED),
)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"ConsistentRead": True},
            "Consistent reads are not supported on global secondary indexes",
        ),
        ({"Select": "ALL_ATTRIBUTES"}, ALL),
        ({"ProjectionExpression": "note"}, NOT_PROJECTED),
        ({"IndexName": "no-such-index"}, "The table does not have the specified index"),
    ],
)
def test_what_a_global_index_cannot_do(
    client: DynamoDBClient, people: str, refused: Refusal, options: Any, message: str
) -> None:
    request: Any = {"TableName": people, "IndexName": GLOBAL, **options}
    with refused:
        client.query(
            **request,
            KeyConditionExpression="city = :c",
            ExpressionAttributeValues={":c": {"S": "rome"}},
        )
    assert refused.code == "ValidationException"
    assert message in refused.message


@pytest.mark.parametrize("value", [{"N": "1"}, {"S": ""}, {"NULL": True}], ids=str)
def test_a_key_of_an_index_has_its_type(
    client: DynamoDBClient, people: str, refused: Refusal, value: Any
) -> None:
    with refused:
        client.put_item(TableName=people, Item={**person("a", "1"), "city": value})
    assert refused.code == "ValidationException"
    assert GLOBAL in refused.message


def test_an_index_is_added_to_a_table_with_items_and_removed(
    client: DynamoDBClient, make_named: Callable[..., str]
) -> None:
    table = make_named(
        AttributeDefinitions=definitions("pk", "sk"),
        KeySchema=key("pk", "sk"),
        BillingMode="PAY_PER_REQUEST",
    )
    fill(client, table)

    def indexes() -> Any:
        return client.describe_table(TableName=table)["Table"].get("GlobalSecondaryIndexes", [])

    client.update_table(
        TableName=table,
        AttributeDefinitions=definitions("city", "age"),
        GlobalSecondaryIndexUpdates=[{"Create": index(GLOBAL, key("city", "age"))}],
    )
    until(lambda: [one["IndexStatus"] for one in indexes()] == ["ACTIVE"])
    assert names(of_city(client, table)) == ["a2", "b1", "a1"]
    client.update_table(
        TableName=table, GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": GLOBAL}}]
    )
    until(lambda: not indexes())


@deviates(
    "ministack",
    "creates the table",
    API + "API_CreateTable.html",
    *(SAME_HASH, UNDEFINED, EMPTY),
)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"LocalSecondaryIndexes": [index(LOCAL, key("city", "age"))]},
            SAME_HASH,
        ),
        (
            {"GlobalSecondaryIndexes": [index(GLOBAL, key("nowhere"))]},
            UNDEFINED,
        ),
        (
            {"GlobalSecondaryIndexes": [index(GLOBAL, key("city"))] * 2},
            "Duplicate index name",
        ),
        ({"GlobalSecondaryIndexes": []}, EMPTY),
    ],
)
def test_definitions_that_are_refused(
    client: DynamoDBClient, refused: Refusal, change: Any, message: str
) -> None:
    with refused:
        client.create_table(
            TableName="never-made",
            AttributeDefinitions=definitions("pk", "sk", "city", "age"),
            KeySchema=key("pk", "sk"),
            BillingMode="PAY_PER_REQUEST",
            **change,
        )
    assert refused.code == "ValidationException"
    assert message in refused.message
