"""UpdateTable: what a table keeps, and what its description says."""

from __future__ import annotations

from typing import Any

import pytest

from heatsink.testing import ManualClock

from .calls import TABLE, Calls


@pytest.fixture
def calls() -> Calls:
    calls = Calls(ManualClock())
    calls.create()
    return calls


def updated(calls: Calls, **change: Any) -> Any:
    calls("UpdateTable", TableName=TABLE, **change)
    assert calls.status == 200
    for _ in range(100):
        calls.engine.tend()
    return calls("DescribeTable", TableName=TABLE)["Table"]


def test_warm_throughput_is_described_and_kept(calls: Calls) -> None:
    warm = {"ReadUnitsPerSecond": 9_000, "WriteUnitsPerSecond": 3_000}
    assert updated(calls, WarmThroughput=warm)["WarmThroughput"] == {**warm, "Status": "ACTIVE"}
    more = updated(calls, WarmThroughput={"WriteUnitsPerSecond": 4_000})["WarmThroughput"]
    assert more == {**warm, "WriteUnitsPerSecond": 4_000, "Status": "ACTIVE"}


def test_the_maximum_on_demand_outlives_other_changes(calls: Calls) -> None:
    most = {"MaxReadRequestUnits": -1, "MaxWriteRequestUnits": 5}
    assert updated(calls, OnDemandThroughput=most)["OnDemandThroughput"] == most
    warm = {"WriteUnitsPerSecond": 3_000}
    assert updated(calls, WarmThroughput=warm)["OnDemandThroughput"] == most
    assert calls.engine.table(TABLE).throughput.limits.table.writes == 5
    none = {"MaxReadRequestUnits": -1, "MaxWriteRequestUnits": -1}
    assert "OnDemandThroughput" not in updated(calls, OnDemandThroughput=none)


@pytest.mark.parametrize("operation", ["UpdateTable", "DeleteTable", "DescribeTable"])
def test_a_missing_table_name_is_named(calls: Calls, operation: str) -> None:
    refused = calls(operation)
    assert refused["message"] == (
        "The parameter 'TableName' is required but was not present in the request"
    )


def test_units_are_checked_before_the_table_is_looked_up(calls: Calls) -> None:
    units: dict[str, Any] = {"ReadCapacityUnits": 0, "WriteCapacityUnits": 10**12 + 1}
    refused = calls("UpdateTable", TableName="none", ProvisionedThroughput=units)
    assert "Value '0' at 'provisionedThroughput.readCapacityUnits'" in refused["message"]
    units["ReadCapacityUnits"] = 1
    refused = calls("UpdateTable", TableName="none", ProvisionedThroughput=units)
    assert refused["message"] == (
        "Given value 1000000000001 for WriteCapacityUnits is out of bounds"
    )
    units = {"ReadCapacityUnits": "x", "WriteCapacityUnits": 1}
    refused = calls("UpdateTable", TableName="none", ProvisionedThroughput=units)
    assert refused["Message"] == "STRING_VALUE cannot be converted to Long"


def test_units_of_an_index_of_an_on_demand_table_are_refused(calls: Calls) -> None:
    index = {
        "IndexName": "by-city",
        "KeySchema": [{"AttributeName": "city", "KeyType": "HASH"}],
        "Projection": {"ProjectionType": "ALL"},
    }
    city = [{"AttributeName": "city", "AttributeType": "S"}]
    updated(calls, AttributeDefinitions=city, GlobalSecondaryIndexUpdates=[{"Create": index}])
    units = {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1}
    update = {"IndexName": "by-city", "ProvisionedThroughput": units}
    refused = calls(
        "UpdateTable", TableName=TABLE, GlobalSecondaryIndexUpdates=[{"Update": update}]
    )
    assert "when BillingMode is PAY_PER_REQUEST" in refused["message"]
