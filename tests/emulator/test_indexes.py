"""Secondary indexes without a socket: entries, costs, lag, and a hot partition of an index."""

from __future__ import annotations

from typing import Any

import pytest

from heatsink.emulator.settings import EngineSettings
from heatsink.testing import ManualClock

from .calls import TABLE, Calls

ARN = f"arn:aws:dynamodb:us-east-1:000000000000:table/{TABLE}"
PROVISIONED: Any = {"ProvisionedThroughput": {"ReadCapacityUnits": 10, "WriteCapacityUnits": 10}}


def key(*names: str, role: str = "HASH") -> list[Any]:
    return [{"AttributeName": name, "KeyType": role} for name in names]


def by_city(projection: str = "ALL", **options: Any) -> Any:
    extra = {"NonKeyAttributes": ["x"]} if projection == "INCLUDE" else {}
    return {
        "IndexName": "by-city",
        "KeySchema": [*key("city"), *key("age", role="RANGE")],
        "Projection": {"ProjectionType": projection, **extra},
        **options,
    }


def create(calls: Calls, index: Any, local: Any = None, **options: Any) -> Any:
    schemas = [*index["KeySchema"], *(local or {"KeySchema": []})["KeySchema"]]
    names = dict.fromkeys(["pk", "sk", *(one["AttributeName"] for one in schemas)])
    kinds = {"age": "N"}
    return calls(
        "CreateTable",
        TableName=TABLE,
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": kinds.get(name, "S")} for name in names
        ],
        KeySchema=[*key("pk"), *key("sk", role="RANGE")],
        GlobalSecondaryIndexes=[index],
        **({"LocalSecondaryIndexes": [local]} if local else {}),
        **(options or {"BillingMode": "PAY_PER_REQUEST"}),
    )


def put(calls: Calls, pk: str, city: str | None = None, age: int = 1, **options: Any) -> Any:
    item: Any = {"pk": {"S": pk}, "sk": {"S": "1"}, "x": {"S": "x"}, "y": {"S": "y"}}
    if city is not None:
        item |= {"city": {"S": city}, "age": {"N": str(age)}}
    return calls("PutItem", TableName=TABLE, Item=item, **options)


def of_city(calls: Calls, city: str, condition: str = "", **options: Any) -> Any:
    values = {":c": {"S": city}, **options.pop("values", {})}
    return calls(
        "Query",
        TableName=TABLE,
        IndexName="by-city",
        KeyConditionExpression=f"city = :c{condition}",
        ExpressionAttributeValues=values,
        **options,
    )


def keys_of(answer: Any) -> list[str]:
    return [item["pk"]["S"] for item in answer["Items"]]


@pytest.fixture
def calls(clock: ManualClock) -> Calls:
    made = Calls(clock)
    create(made, by_city())
    return made


def test_a_write_costs_what_it_changes_in_the_index(calls: Calls) -> None:
    def cost(*arguments: Any) -> Any:
        answer = put(calls, *arguments, ReturnConsumedCapacity="INDEXES")
        used = answer["ConsumedCapacity"]
        found = used.get("GlobalSecondaryIndexes", {}).get("by-city", {})
        return used["CapacityUnits"], used["Table"]["CapacityUnits"], found.get("CapacityUnits")

    assert cost("a") == (1, 1, None)  # not in the index
    assert cost("a", "rome") == (2, 1, 1)
    assert cost("a", "rome") == (1, 1, None)  # the same entry
    assert cost("a", "oslo") == (3, 1, 2)  # a delete and a put
    assert cost("a") == (2, 1, 1)  # a delete


def test_a_hot_value_of_the_index_throttles_writes_to_the_table(clock: ManualClock) -> None:
    calls = Calls(clock)
    create(calls, by_city())
    refused = 0
    for number in range(1_500):
        answer = put(calls, f"key{number}", "rome")
        refused += calls.status != 200
    assert refused == 500
    assert answer["__type"].endswith("#ThrottlingException")
    [reason] = answer["throttlingReasons"]
    assert reason == {
        "reason": "IndexWriteKeyRangeThroughputExceeded",
        "resource": f"{ARN}/index/by-city",
    }
    assert "Item" not in calls.get("key1499", consistent=True)
    put(calls, "elsewhere", "oslo")
    assert calls.status == 200
    put(calls, "not in the index")
    assert calls.status == 200
    table, index = calls.engine.partitions()
    assert (table.index, index.index) == (None, "by-city")
    assert table.throttles == {}
    assert index.throttles == {"partition": 500}
    hot = max(index.partitions, key=lambda one: one.state.throttles)
    assert hot.hottest == "rome"


def test_a_provisioned_index_throttles_by_its_own_capacity(clock: ManualClock) -> None:
    calls = Calls(clock, EngineSettings(burst_s=1.0))
    small: Any = {"ReadCapacityUnits": 10, "WriteCapacityUnits": 2}
    large: Any = {"ReadCapacityUnits": 10, "WriteCapacityUnits": 100}
    create(calls, by_city(ProvisionedThroughput=small), ProvisionedThroughput=large)
    accepted = 0
    for number in range(10):
        answer = put(calls, f"key{number}", f"city{number}")
        accepted += calls.status == 200
    assert accepted == 2
    assert answer["__type"].endswith("#ProvisionedThroughputExceededException")
    assert "global secondary indexes of the table" in answer["message"]
    assert answer["ThrottlingReasons"][0]["resource"].endswith("/index/by-city")


def test_a_throttled_index_leaves_the_units_of_the_table(clock: ManualClock) -> None:
    calls = Calls(clock, EngineSettings(burst_s=1.0))
    small: Any = {"ReadCapacityUnits": 10, "WriteCapacityUnits": 1}
    create(
        calls,
        by_city(ProvisionedThroughput=small),
        ProvisionedThroughput={**small, "WriteCapacityUnits": 4},
    )
    assert [_status(calls, f"key{n}", "rome") for n in range(6)].count(200) == 1
    assert [_status(calls, f"other{n}") for n in range(6)].count(200) == 3


def _status(calls: Calls, *arguments: Any) -> int:
    put(calls, *arguments)
    return calls.status


async def test_reads_of_an_index_lag(clock: ManualClock) -> None:
    calls = Calls(clock, EngineSettings(index_lag_s=1.0))
    create(calls, by_city())
    for number in range(20):
        put(calls, f"key{number:02}", "rome", number)
    await clock.advance(0.5)
    seen = keys_of(of_city(calls, "rome"))
    assert seen == [f"key{number:02}" for number in range(len(seen))]
    assert len(seen) < 20
    await clock.advance(0.5)
    assert len(keys_of(of_city(calls, "rome"))) == 20


def test_several_attributes_form_a_key(clock: ManualClock) -> None:
    calls = Calls(clock)
    index = {
        "IndexName": "rounds",
        "KeySchema": [*key("cup", "region"), *key("round", "age", role="RANGE")],
        "Projection": {"ProjectionType": "ALL"},
    }
    create(calls, index)
    for number, (region, round_) in enumerate(
        (("na", "final"), ("na", "semi"), ("eu", "semi"), ("na", "semi"))
    ):
        item = {
            "pk": {"S": f"m{number}"},
            "sk": {"S": "1"},
            "cup": {"S": "winter"},
            "region": {"S": region},
            "round": {"S": round_},
            "age": {"N": str(10 - number)},
        }
        calls("PutItem", TableName=TABLE, Item=item)
        assert calls.status == 200

    def ask(condition: str, **values: Any) -> Any:
        names = {
            f"#{name}": name
            for name in ("cup", "region", "round", "age")
            if f"#{name}" in condition
        }
        return calls(
            "Query",
            TableName=TABLE,
            IndexName="rounds",
            KeyConditionExpression=condition,
            ExpressionAttributeNames=names,
            ExpressionAttributeValues={f":{name}": value for name, value in values.items()},
        )

    where = {"c": {"S": "winter"}, "r": {"S": "na"}}
    both = "#cup = :c AND #region = :r"
    assert keys_of(ask(both, **where)) == ["m0", "m3", "m1"]
    assert keys_of(ask(f"{both} AND #round = :o", **where, o={"S": "semi"})) == ["m3", "m1"]
    semi = {**where, "o": {"S": "semi"}}
    assert keys_of(ask(f"{both} AND #round = :o AND #age > :a", **semi, a={"N": "7"})) == ["m1"]
    assert keys_of(ask(f"{both} AND begins_with(#round, :o)", **where, o={"S": "fi"})) == ["m0"]
    assert "missed key schema element: region" in ask("#cup = :c", c={"S": "winter"})["message"]
    ask(f"{both} AND #age > :a", **where, a={"N": "7"})
    assert calls.status == 400
    ask(f"{both} AND #round > :o AND #age = :a", **semi, a={"N": "7"})
    assert calls.status == 400


def test_pages_of_an_index_go_on_from_both_keys(calls: Calls) -> None:
    for number in range(7):
        put(calls, f"key{number}", "rome", number // 3)
    found: list[str] = []
    request: Any = {"Limit": 2, "ScanIndexForward": False}
    while True:
        answer = of_city(calls, "rome", **request)
        found += keys_of(answer)
        last = answer.get("LastEvaluatedKey")
        if last is None:
            break
        assert last.keys() == {"pk", "sk", "city", "age"}
        request["ExclusiveStartKey"] = last
    assert found == [f"key{number}" for number in reversed(range(7))]
    wrong = of_city(calls, "rome", ExclusiveStartKey={"pk": {"S": "a"}, "sk": {"S": "1"}})
    assert wrong["message"].startswith("The provided starting key is invalid")


def test_a_batch_and_a_transaction_write_to_the_index(calls: Calls) -> None:
    item = {"pk": {"S": "b"}, "sk": {"S": "1"}, "city": {"S": "rome"}, "age": {"N": "2"}}
    calls("BatchWriteItem", RequestItems={TABLE: [{"PutRequest": {"Item": item}}]})
    other = {**item, "pk": {"S": "t"}}
    answer = calls(
        "TransactWriteItems",
        TransactItems=[{"Put": {"TableName": TABLE, "Item": other}}],
        ReturnConsumedCapacity="INDEXES",
    )
    [used] = answer["ConsumedCapacity"]
    assert used["GlobalSecondaryIndexes"]["by-city"]["WriteCapacityUnits"] == 2
    assert keys_of(of_city(calls, "rome")) == ["b", "t"]
