"""`--data`: what a client has seen is there after a restart, however the emulator ended."""

from __future__ import annotations

import os
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


def test_a_damaged_file_is_refused_and_stays_as_it_is(path: Path) -> None:
    calls = opened(path)
    calls.create()
    calls.put("a")
    died(calls)
    end = len(path.read_bytes())
    calls = opened(path)
    calls.put("b")
    calls.put("c")
    died(calls)
    whole = path.read_bytes()
    for at in (end, end + 5, end + 12):
        damaged = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        path.write_bytes(damaged)
        with pytest.raises(Misconfigured, match=f"is damaged at byte {end}"):
            opened(path)
        assert path.read_bytes() == damaged


def transacted(*keys: str) -> Any:
    puts = [{"pk": {"S": key}, "sk": {"S": "1"}} for key in keys]
    return [{"Put": {"TableName": TABLE, "Item": item}} for item in puts]


def test_a_transaction_that_was_cut_off_is_dropped_as_a_whole(path: Path) -> None:
    calls = opened(path)
    calls.create()
    died(calls)
    start = path.stat().st_size
    calls = opened(path)
    calls("TransactWriteItems", TransactItems=transacted("a", "b", "c"))
    died(calls)
    longer = path.read_bytes()
    for end in range(start, len(longer)):
        path.write_bytes(longer[:end])
        calls = opened(path)
        assert contents(calls) == []
        died(calls)
    path.write_bytes(longer)
    calls = opened(path)
    assert [item["pk"]["S"] for item in contents(calls)] == ["a", "b", "c"]
    died(calls)


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_a_client_request_token_is_known_after_a_restart(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_rewritten: bool
) -> None:
    calls = opened(path)
    calls.create()
    add = {
        "TableName": TABLE,
        "Key": KEY,
        "UpdateExpression": "ADD n :n",
        "ExpressionAttributeValues": {":n": {"N": "1"}},
    }
    once = {"TransactItems": [{"Update": add}], "ClientRequestToken": "token"}
    calls("TransactWriteItems", **once)
    died(calls)
    if is_rewritten:
        monkeypatch.setattr(journal, "RECORDS_MIN", 0)
        monkeypatch.setattr(journal, "KEPT_SHARE", 2.0)
        died(opened(path))
    calls = opened(path)
    calls("TransactWriteItems", **once)
    assert contents(calls)[0]["n"] == {"N": "1"}
    died(calls)


def test_a_full_disk_loses_only_the_write_that_it_refuses(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = opened(path)
    calls.create()
    calls.put("a")
    with monkeypatch.context() as full:
        written = os.write
        full.setattr(os, "write", lambda file, body: written(file, body[: len(body) // 2]))
        calls("PutItem", TableName=TABLE, Item={**KEY, "pk": {"S": "b"}})
    assert calls.status == 500
    calls.put("c")
    died(calls)
    calls = opened(path)
    assert [item["pk"]["S"] for item in contents(calls)] == ["a", "c"]
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
