"""UpdateTable and the smaller operations about tables, without a socket."""

from __future__ import annotations

from typing import Any

import pytest

from heatsink.emulator.settings import EngineSettings
from heatsink.testing import ManualClock

from .calls import TABLE, Calls

ON_DEMAND: Any = {"BillingMode": "PAY_PER_REQUEST"}
SMALL: Any = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5}
BY_X: Any = {
    "IndexName": "by-x",
    "KeySchema": [{"AttributeName": "x", "KeyType": "HASH"}],
    "Projection": {"ProjectionType": "KEYS_ONLY"},
}
X: Any = [{"AttributeName": "x", "AttributeType": "S"}]


@pytest.fixture
def calls(clock: ManualClock) -> Calls:
    made = Calls(clock)
    made.create()
    return made


def update(calls: Calls, **changes: Any) -> Any:
    return calls("UpdateTable", TableName=TABLE, **changes)


def describe(calls: Calls) -> Any:
    return calls("DescribeTable", TableName=TABLE)["Table"]


def settle(calls: Calls) -> None:
    while describe(calls)["TableStatus"] != "ACTIVE":
        calls.engine.tend()


def create_index(calls: Calls) -> Any:
    return update(calls, AttributeDefinitions=X, GlobalSecondaryIndexUpdates=[{"Create": BY_X}])


def of_x(calls: Calls, x: str) -> Any:
    return calls(
        "Query",
        TableName=TABLE,
        IndexName="by-x",
        KeyConditionExpression="x = :x",
        ExpressionAttributeValues={":x": {"S": x}},
    )


def test_a_new_index_is_filled_while_the_table_is_written(calls: Calls) -> None:
    for number in range(1_200):
        calls.put(f"old{number}", size=1)
    answer = create_index(calls)["TableDescription"]
    assert answer["TableStatus"] == "UPDATING"
    assert answer["GlobalSecondaryIndexes"][0]["IndexStatus"] == "CREATING"
    assert "backfilling" in of_x(calls, "x")["message"]
    calls.engine.tend()
    for number in range(0, 1_200, 3):
        key = {"pk": {"S": f"old{number}"}, "sk": {"S": "1"}}
        calls("DeleteItem", TableName=TABLE, Key=key)
        calls.put(f"new{number}", size=1)
    assert update(calls, DeletionProtectionEnabled=True)["__type"].endswith("InUseException")
    settle(calls)
    index = describe(calls)["GlobalSecondaryIndexes"][0]
    assert (index["IndexStatus"], index["ItemCount"]) == ("ACTIVE", 1_200)
    found = {item["pk"]["S"] for item in of_x(calls, "x")["Items"]}
    assert found == {f"old{n}" for n in range(1_200) if n % 3} | {
        f"new{n}" for n in range(0, 1_200, 3)
    }


def test_an_index_is_deleted_with_its_definitions(calls: Calls) -> None:
    create_index(calls)
    settle(calls)
    assert create_index(calls)["message"] == "Attempting to create an index which already exists"
    gone: Any = [{"Delete": {"IndexName": "by-x"}}]
    update(calls, GlobalSecondaryIndexUpdates=gone)
    [index] = describe(calls)["GlobalSecondaryIndexes"]
    assert index["IndexStatus"] == "DELETING"
    settle(calls)
    described = describe(calls)
    assert "GlobalSecondaryIndexes" not in described
    assert [one["AttributeName"] for one in described["AttributeDefinitions"]] == ["pk", "sk"]
    error = update(calls, GlobalSecondaryIndexUpdates=gone)
    assert error["__type"].endswith("#ResourceNotFoundException")


def test_capacity_and_billing_mode_change(clock: ManualClock) -> None:
    calls = Calls(clock, EngineSettings(burst_s=1.0))
    calls.create(ProvisionedThroughput=SMALL)

    def accepted() -> int:
        answers = [calls.put(f"key{n}") for n in range(20)]
        return sum("__type" not in answer for answer in answers)

    assert accepted() == 5
    larger = {**SMALL, "WriteCapacityUnits": 9}
    update(calls, ProvisionedThroughput=larger)
    assert describe(calls)["ProvisionedThroughput"]["WriteCapacityUnits"] == 9
    assert "will not change" in update(calls, ProvisionedThroughput=larger)["message"]
    update(calls, **ON_DEMAND)
    settle(calls)
    assert describe(calls)["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert accepted() == 20
    assert update(calls, ProvisionedThroughput=SMALL)["__type"].endswith("#ValidationException")
    update(calls, BillingMode="PROVISIONED", ProvisionedThroughput=SMALL)
    assert accepted() == 5


def test_more_throughput_splits_partitions(clock: ManualClock) -> None:
    calls = Calls(clock)
    calls.create(ProvisionedThroughput=SMALL)
    for number in range(100):
        calls.put(f"key{number}")
    update(calls, ProvisionedThroughput={**SMALL, "WriteCapacityUnits": 4_000})
    assert describe(calls)["TableStatus"] == "UPDATING"
    settle(calls)
    [report] = calls.engine.partitions()
    assert len(report.partitions) == 5
    assert sum(one.rows for one in report.partitions) == describe(calls)["ItemCount"]
    update(calls, WarmThroughput={"WriteUnitsPerSecond": 8_000})
    settle(calls)
    [report] = calls.engine.partitions()
    assert len(report.partitions) == 9


def test_a_protected_table_is_not_deleted(clock: ManualClock) -> None:
    calls = Calls(clock)
    calls.create(**ON_DEMAND, DeletionProtectionEnabled=True)
    assert "protected against deletion" in calls("DeleteTable", TableName=TABLE)["message"]
    assert describe(calls)["DeletionProtectionEnabled"]
    update(calls, DeletionProtectionEnabled=False)
    calls("DeleteTable", TableName=TABLE)
    assert calls.status == 200


def test_an_update_must_change_something(calls: Calls) -> None:
    assert update(calls)["message"].startswith("At least one of ProvisionedThroughput")
    two = [{"Delete": {"IndexName": "one"}}, {"Delete": {"IndexName": "two"}}]
    error = update(calls, GlobalSecondaryIndexUpdates=two)
    assert error["__type"].endswith("#LimitExceededException")


def test_tags_of_a_table(calls: Calls) -> None:
    arn = describe(calls)["TableArn"]
    tags = [{"Key": "env", "Value": "test"}, {"Key": "team", "Value": "a"}]
    calls("TagResource", ResourceArn=arn, Tags=tags)
    calls("TagResource", ResourceArn=arn, Tags=[{"Key": "team", "Value": "b"}])
    calls("UntagResource", ResourceArn=arn, TagKeys=["env", "none"])
    assert calls("ListTagsOfResource", ResourceArn=arn) == {"Tags": [{"Key": "team", "Value": "b"}]}
    assert calls("TagResource", ResourceArn="x", Tags=tags)["__type"].endswith(
        "ValidationException"
    )


def test_descriptions_of_the_service(calls: Calls) -> None:
    assert calls("DescribeLimits")["TableMaxReadCapacityUnits"] == 40_000
    assert calls("DescribeEndpoints")["Endpoints"]
    backups = calls("DescribeContinuousBackups", TableName=TABLE)["ContinuousBackupsDescription"]
    assert backups["PointInTimeRecoveryDescription"] == {"PointInTimeRecoveryStatus": "DISABLED"}
