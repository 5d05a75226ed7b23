"""`--data`: what a client has seen is there after a restart, however the emulator ended."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from heatsink.emulator import journal
from heatsink.emulator.engine import Engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import Misconfigured
from heatsink.testing import ManualClock

from .calls import TABLE, Calls

KEY = {"pk": {"S": "a"}, "sk": {"S": "1"}}
GSI: Any = {
    "Create": {
        "IndexName": "by-city",
        "KeySchema": [{"AttributeName": "city", "KeyType": "HASH"}],
        "Projection": {"ProjectionType": "ALL"},
    }
}


def opened(path: Path) -> Calls:
    """An emulator on the file. Like a process that was killed, its predecessor says no goodbye."""
    return Calls(ManualClock(), EngineSettings(data=str(path)))


def died(calls: Calls) -> None:
    calls.engine.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tables.data"


def contents(calls: Calls) -> Any:
    items = calls("Scan", TableName=TABLE, ConsistentRead=True)["Items"]
    return sorted(items, key=lambda item: (item["pk"]["S"], item["sk"]["S"]))


def test_every_kind_of_write_comes_back(path: Path) -> None:
    calls = opened(path)
    calls.create()
    rng = Random(3)
    for number in range(200):
        pk, sk = rng.choice("abcdef"), rng.choice("123")
        key = {"pk": {"S": pk}, "sk": {"S": sk}}
        match rng.randrange(5):
            case 0:
                calls.put(pk, sk, size=number)
            case 1:
                calls("DeleteItem", TableName=TABLE, Key=key)
            case 2:
                calls(
                    "UpdateItem",
                    TableName=TABLE,
                    Key=key,
                    UpdateExpression="ADD n :n REMOVE x",
                    ExpressionAttributeValues={":n": {"N": str(number)}},
                )
            case 3:
                put = {"PutRequest": {"Item": {**key, "b": {"BS": ["AAAA"]}}}}
                calls("BatchWriteItem", RequestItems={TABLE: [put]})
            case _:
                action = {"Put": {"TableName": TABLE, "Item": {**key, "t": {"NULL": True}}}}
                calls("TransactWriteItems", TransactItems=[action])
        assert calls.status == 200
        if number % 67 == 0:
            before = contents(calls)
            died(calls)
            calls = opened(path)
            assert contents(calls) == before
    died(calls)


def test_indexes_tags_and_time_to_live_come_back(path: Path) -> None:
    calls = opened(path)
    calls.create()
    calls("PutItem", TableName=TABLE, Item={**KEY, "city": {"S": "Rome"}})
    arn = calls("DescribeTable", TableName=TABLE)["Table"]["TableArn"]
    calls("TagResource", ResourceArn=arn, Tags=[{"Key": "team", "Value": "a"}])
    ttl = {"AttributeName": "expires", "Enabled": True}
    calls("UpdateTimeToLive", TableName=TABLE, TimeToLiveSpecification=ttl)
    attributes = [{"AttributeName": one, "AttributeType": "S"} for one in ("pk", "sk", "city")]
    calls(
        "UpdateTable",
        TableName=TABLE,
        AttributeDefinitions=attributes,
        GlobalSecondaryIndexUpdates=[GSI],
    )
    assert calls.status == 200
    died(calls)
    calls = opened(path)
    found = calls(
        "Query",
        TableName=TABLE,
        IndexName="by-city",
        KeyConditionExpression="city = :c",
        ExpressionAttributeValues={":c": {"S": "Rome"}},
    )
    assert found["Count"] == 1
    assert calls("ListTagsOfResource", ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "a"}]
    ttl = calls("DescribeTimeToLive", TableName=TABLE)["TimeToLiveDescription"]
    assert ttl["AttributeName"] == "expires"
    calls("DeleteTable", TableName=TABLE)
    died(calls)
    calls = opened(path)
    assert calls("ListTables")["TableNames"] == []
    died(calls)


def test_a_record_that_was_cut_off_is_dropped(path: Path) -> None:
    calls = opened(path)
    calls.create()
    calls.put("a")
    died(calls)
    whole = path.read_bytes()
    calls = opened(path)
    calls.put("b")
    died(calls)
    longer = path.read_bytes()
    for end in range(len(whole), len(longer)):
        path.write_bytes(longer[:end])
        calls = opened(path)
        assert [item["pk"]["S"] for item in contents(calls)] == ["a"]
        assert path.read_bytes() == whole
        died(calls)


def test_a_long_journal_is_written_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "RECORDS_MIN", 10)
    calls = opened(path)
    calls.create()
    for number in range(50):
        calls.put("a", size=number)
    died(calls)
    size = path.stat().st_size
    calls = opened(path)
    assert path.stat().st_size < size / 5
    calls.put("b")
    before = contents(calls)
    died(calls)
    calls = opened(path)
    assert contents(calls) == before
    died(calls)


def test_a_reset_empties_the_file(path: Path) -> None:
    calls = opened(path)
    calls.create()
    calls.engine.reset()
    died(calls)
    calls = opened(path)
    assert calls("ListTables")["TableNames"] == []
    died(calls)


def test_a_file_of_another_kind_or_in_use_is_refused(path: Path) -> None:
    first = opened(path)
    with pytest.raises(Misconfigured, match="another emulator uses"):
        opened(path)
    died(first)
    path.write_bytes(msgspec.json.encode({"not": "ours"}))
    with pytest.raises(Misconfigured, match="is no data of the emulator"):
        opened(path)
    with pytest.raises(Misconfigured, match="cannot open"):
        Engine(EngineSettings(data=str(path.parent)), ManualClock(), Random(1))
