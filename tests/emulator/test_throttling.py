"""Hot partitions, table limits and stale replicas, on a clock that the test turns."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from heatsink.emulator.settings import EngineSettings
from heatsink.testing import ManualClock

from .calls import TABLE, Calls

ARN = f"arn:aws:dynamodb:us-east-1:000000000000:table/{TABLE}"
ONE_SECOND = EngineSettings(burst_s=1.0)
PROVISIONED: Any = {
    "ProvisionedThroughput": {"ReadCapacityUnits": 10, "WriteCapacityUnits": 10},
}


@pytest.fixture
def calls(clock: ManualClock) -> Calls:
    made = Calls(clock, ONE_SECOND)
    made.create()
    return made


async def puts_for(seconds: int, calls: Calls, clock: ManualClock, pk: str, a_second: int) -> int:
    """How many of the puts of one key are accepted when they come evenly."""
    accepted = 0
    for number in range(seconds * a_second):
        calls.put(pk, str(number))
        accepted += calls.status == 200
        if number % 100 == 99:
            await clock.advance(100 / a_second)
    return accepted


async def test_one_key_gets_a_thousand_units_a_second(calls: Calls, clock: ManualClock) -> None:
    accepted = await puts_for(5, calls, clock, "hot", 4_000)
    assert 5_000 <= accepted <= 6_000 + 25  # the burst of one second included


def test_large_items_use_the_limit_up_sooner(calls: Calls) -> None:
    accepted = 0
    for number in range(600):
        calls.put("hot", str(number), size=4_000)
        accepted += calls.status == 200
    assert accepted == 250


def test_other_partitions_do_not_notice(calls: Calls) -> None:
    for number in range(1_500):
        calls.put("hot", str(number))
    refused = 0
    for number in range(400):
        calls.put(f"key{number}")
        refused += calls.status != 200
    assert 60 <= refused <= 140, "a quarter of the keys, which share its partition"


def test_a_throttled_write_names_the_partition_as_the_reason(calls: Calls) -> None:
    for number in range(1_000):
        calls.put("hot", str(number))
    error = calls.put("hot")
    assert calls.status == 400
    assert error["__type"].endswith("#ThrottlingException")
    assert "check if you have a hot key" in error["message"]
    reason = {"reason": "TableWriteKeyRangeThroughputExceeded", "resource": ARN}
    assert error["throttlingReasons"] == [reason]


def test_a_throttled_read_names_the_partition_as_the_reason(calls: Calls) -> None:
    for _ in range(3_000):
        calls.get("hot", consistent=True)
    error = calls.get("hot")
    assert error["__type"].endswith("#ProvisionedThroughputExceededException")
    reason = {"reason": "TableReadKeyRangeThroughputExceeded", "resource": ARN}
    assert error["ThrottlingReasons"] == [reason]
    calls.put("hot")
    assert calls.status == 200, "reads and writes have limits of their own"


def test_eventually_consistent_reads_cost_half(calls: Calls) -> None:
    accepted = 0
    for _ in range(7_000):
        calls.get("hot")
        accepted += calls.status == 200
    assert accepted == 6_000


def test_a_failed_condition_uses_units_too(calls: Calls) -> None:
    calls.put("hot")
    kinds = set()
    for _ in range(1_000):
        error = calls.put("hot", ConditionExpression="attribute_not_exists(pk)")
        kinds.add(error["__type"].partition("#")[2])
    assert kinds == {"ConditionalCheckFailedException", "ThrottlingException"}


async def test_a_provisioned_table_has_a_limit_of_its_own(clock: ManualClock) -> None:
    calls = Calls(clock, ONE_SECOND)
    calls.create(**PROVISIONED)
    for number in range(10):
        calls.put(str(number))
        assert calls.status == 200
    error = calls.put("more")
    assert error["__type"].endswith("#ProvisionedThroughputExceededException")
    assert error["message"].startswith("The level of configured provisioned throughput")
    reason = {"reason": "TableWriteProvisionedThroughputExceeded", "resource": ARN}
    assert error["ThrottlingReasons"] == [reason]
    await clock.advance(0.1)
    calls.put("more")
    assert calls.status == 200


def test_an_on_demand_table_may_have_a_limit_of_its_own(clock: ManualClock) -> None:
    calls = Calls(clock, ONE_SECOND)
    limit = {"MaxReadRequestUnits": -1, "MaxWriteRequestUnits": 2}
    calls.create(BillingMode="PAY_PER_REQUEST", OnDemandThroughput=limit)
    calls.put("a", size=1_500)
    error = calls.put("b")
    assert error["throttlingReasons"][0]["reason"] == "TableWriteMaxOnDemandThroughputExceeded"


@pytest.mark.parametrize(("idle_s", "units"), [(0, 1_000), (10, 11_000), (1_000, 300_000)])
async def test_without_adaptive_capacity_a_partition_saves_300_seconds_of_its_limit(
    clock: ManualClock, idle_s: int, units: int
) -> None:
    calls = Calls(clock, EngineSettings(adaptive=False))
    calls.create()
    await clock.advance(idle_s)
    accepted = 0
    while calls.put("hot", size=399_000) == {}:
        accepted += 390
    assert units <= accepted < units + 390, "the last one on credit"


def test_a_batch_returns_what_was_throttled_as_unprocessed(calls: Calls) -> None:
    for number in range(990):
        calls.put("hot", str(number))
    puts = [{"PutRequest": {"Item": {"pk": {"S": "hot"}, "sk": {"S": str(n)}}}} for n in range(25)]
    answer = calls("BatchWriteItem", RequestItems={TABLE: puts})
    assert answer["UnprocessedItems"] == {TABLE: puts[10:]}
    error = calls("BatchWriteItem", RequestItems={TABLE: puts})
    assert error["__type"].endswith("#ThrottlingException")


def test_a_batch_of_gets_returns_unprocessed_keys(calls: Calls) -> None:
    for _ in range(2_999):
        calls.get("hot", consistent=True)
    keys = [{"pk": {"S": "hot"}, "sk": {"S": str(n)}} for n in range(4)]
    answer = calls("BatchGetItem", RequestItems={TABLE: {"Keys": keys}})
    assert answer["UnprocessedKeys"][TABLE]["Keys"] == keys[2:]


async def test_a_throttled_transaction_takes_and_writes_nothing(
    calls: Calls, clock: ManualClock
) -> None:
    for number in range(1_000):
        calls.put("hot", str(number))
    puts = [
        {"Put": {"TableName": TABLE, "Item": {"pk": {"S": pk}, "sk": {"S": "new"}}}}
        for pk in ("cold1", "hot", "cold2")
    ]
    error = calls("TransactWriteItems", TransactItems=puts)
    assert error["__type"].endswith("#TransactionCanceledException")
    codes = [reason["Code"] for reason in error["CancellationReasons"]]
    assert codes == ["None", "ThrottlingError", "None"]
    assert "Item" not in calls.get("cold1", "new", consistent=True)
    await clock.advance(0.001)
    calls.put("hot", "last")
    assert calls.status == 200, "the hot partition owes nothing"


async def test_transactions_get_through_beside_single_writes(
    calls: Calls, clock: ManualClock
) -> None:
    """Three times as much as one partition takes, in an order drawn by lot."""
    rng, asked, done = Random(1), Counter[str](), Counter[str]()
    pair = [put_of("hot", name) for name in ("one", "other")]
    for number in range(12_000):
        kind = "pair" if rng.random() < 0.02 else "single"
        if kind == "pair":
            calls("TransactWriteItems", TransactItems=pair)
        else:
            calls.put("hot", str(number))
        asked[kind] += 1
        done[kind] += calls.status == 200
        await clock.advance(1 / 3_000)
    assert done["pair"] / asked["pair"] > 0.7 * done["single"] / asked["single"]
    assert 4_999 <= done["single"] + 4 * done["pair"] <= 5_000 + 3, "4 s, and one saved up"


def put_of(pk: str, sk: str) -> dict[str, Any]:
    return {"Put": {"TableName": TABLE, "Item": {"pk": {"S": pk}, "sk": {"S": sk}}}}


def test_a_throttled_transaction_gives_back_what_it_took(calls: Calls) -> None:
    for number in range(1_000):
        calls.put("hot", str(number))
    puts = [
        {"Put": {"TableName": TABLE, "Item": {"pk": {"S": pk}, "sk": {"S": "new"}}}}
        for pk in ("cold1", "hot")
    ]
    for _ in range(600):
        calls("TransactWriteItems", TransactItems=puts)
    accepted = 0
    for number in range(1_001):
        calls.put("cold1", str(number))
        accepted += calls.status == 200
    assert accepted == 1_000


def test_a_transaction_costs_double(calls: Calls) -> None:
    put = {"Put": {"TableName": TABLE, "Item": {"pk": {"S": "hot"}, "sk": {"S": "1"}}}}
    accepted = 0
    for _ in range(600):
        calls("TransactWriteItems", TransactItems=[put])
        accepted += calls.status == 200
    assert accepted == 500


async def test_an_eventually_consistent_read_is_stale_for_the_lag(clock: ManualClock) -> None:
    calls = Calls(clock, EngineSettings(replica_lag_s=2.0))
    calls.create()
    calls.put("a", size=1)
    assert "Item" not in calls.get("a")
    assert "Item" in calls.get("a", consistent=True)
    await clock.advance(1.9)
    assert "Item" not in calls.get("a")
    await clock.advance(0.1)
    assert calls.get("a")["Item"]["x"] == {"S": "x"}
    calls("DeleteItem", TableName=TABLE, Key={"pk": {"S": "a"}, "sk": {"S": "1"}})
    assert "Item" in calls.get("a")
    await clock.advance(2.0)
    assert "Item" not in calls.get("a")


async def test_queries_and_scans_are_stale_too_unless_consistent(clock: ManualClock) -> None:
    calls = Calls(clock, EngineSettings(replica_lag_s=2.0))
    calls.create()
    calls.put("a")
    query: Any = {
        "TableName": TABLE,
        "KeyConditionExpression": "pk = :p",
        "ExpressionAttributeValues": {":p": {"S": "a"}},
    }
    assert calls("Query", **query)["Count"] == 0
    assert calls("Query", **query, ConsistentRead=True)["Count"] == 1
    assert calls("Scan", TableName=TABLE)["Count"] == 0
    await clock.advance(2.0)
    assert calls("Query", **query)["Count"] == calls("Scan", TableName=TABLE)["Count"] == 1


async def test_a_token_is_remembered_for_ten_minutes(clock: ManualClock) -> None:
    calls = Calls(clock)
    calls.create()
    add = {
        "Update": {
            "TableName": TABLE,
            "Key": {"pk": {"S": "a"}, "sk": {"S": "1"}},
            "UpdateExpression": "ADD n :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
    }
    for waited_s, n in ((0, "1"), (599, "1"), (1, "2")):
        await clock.advance(waited_s)
        calls("TransactWriteItems", TransactItems=[add], ClientRequestToken="token")
        assert calls.get("a", consistent=True)["Item"]["n"] == {"N": n}


def test_a_repeated_transaction_costs_reads(clock: ManualClock) -> None:
    calls = Calls(clock)
    calls.create()
    put = {"Put": {"TableName": TABLE, "Item": {"pk": {"S": "a"}, "sk": {"S": "1"}}}}
    request: Any = {
        "TransactItems": [put],
        "ClientRequestToken": "token",
        "ReturnConsumedCapacity": "TOTAL",
    }
    first, second = (calls("TransactWriteItems", **request) for _ in range(2))
    assert first["ConsumedCapacity"][0]["WriteCapacityUnits"] == 2.0
    assert second["ConsumedCapacity"][0]["ReadCapacityUnits"] == 2.0


@pytest.mark.parametrize(("full", "taken"), [(True, 600), (False, 2)])
def test_a_new_table_begins_with_all_burst_capacity_or_none(
    clock: ManualClock, full: bool, taken: int
) -> None:
    calls = Calls(clock, EngineSettings(full_burst=full))
    calls.create(ProvisionedThroughput={"ReadCapacityUnits": 2, "WriteCapacityUnits": 2})
    accepted = 0
    for number in range(700):
        calls.put(f"key{number}")
        accepted += calls.status == 200
    assert accepted == taken
