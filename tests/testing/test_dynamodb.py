"""The emulator for tests of applications: the fixture, and faults on demand."""

from __future__ import annotations

import socket
import subprocess
import sys
import unittest
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError
from mypy_boto3_dynamodb import DynamoDBClient

from heatsink.emulator.settings import EngineSettings
from heatsink.errors import HeatsinkError
from heatsink.testing.dynamodb import LocalDynamoDB
from tests.waiting import until

pytestmark = pytest.mark.server("the emulator listens")

ONCE = Config(retries={"total_max_attempts": 1})
ITEM: Any = {"pk": {"S": "a"}}


def create(client: DynamoDBClient) -> None:
    client.create_table(
        TableName="orders",
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )


@pytest.fixture
def client(dynamodb: LocalDynamoDB) -> Iterator[DynamoDBClient]:
    made = dynamodb.client(config=ONCE)
    create(made)
    yield made
    made.close()


def post(dynamodb: LocalDynamoDB, command: str, **wanted: Any) -> tuple[int, Any]:
    answer = httpx.post(f"{dynamodb.url}/control/{command}", json=wanted)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_begins_without_tables(client: DynamoDBClient, number: int) -> None:
    assert client.list_tables()["TableNames"] == ["orders"]
    client.put_item(TableName="orders", Item={"pk": {"S": str(number)}})
    assert client.scan(TableName="orders")["Count"] == 1


def test_the_next_requests_fail(dynamodb: LocalDynamoDB, client: DynamoDBClient) -> None:
    dynamodb.fail(operation="PutItem", count=2, error="ProvisionedThroughputExceededException")
    for _ in range(2):
        with pytest.raises(client.exceptions.ProvisionedThroughputExceededException):
            client.put_item(TableName="orders", Item=ITEM)
    client.put_item(TableName="orders", Item=ITEM)


def test_a_failed_request_may_have_been_applied(
    dynamodb: LocalDynamoDB, client: DynamoDBClient
) -> None:
    assert post(dynamodb, "fail", applied=True, error="Disconnect", table="orders") == (200, {})
    with pytest.raises(ConnectionClosedError):
        client.put_item(TableName="orders", Item=ITEM)
    assert client.scan(TableName="orders")["Count"] == 1


def test_one_key_is_throttled(dynamodb: LocalDynamoDB, client: DynamoDBClient) -> None:
    dynamodb.throttle("orders", "a")
    with pytest.raises(ClientError, match="ThrottlingException"):
        client.put_item(TableName="orders", Item=ITEM)
    client.put_item(TableName="orders", Item={"pk": {"S": "b"}})
    with pytest.raises(client.exceptions.TransactionCanceledException, match="Throttling"):
        client.transact_write_items(TransactItems=[{"Put": {"TableName": "orders", "Item": ITEM}}])
    unprocessed = client.batch_write_item(
        RequestItems={
            "orders": [{"PutRequest": {"Item": ITEM}}, {"PutRequest": {"Item": {"pk": {"S": "c"}}}}]
        }
    )["UnprocessedItems"]
    assert unprocessed == {"orders": [{"PutRequest": {"Item": ITEM}}]}
    assert post(dynamodb, "reset", tables=False) == (200, {})
    client.put_item(TableName="orders", Item=ITEM)


@pytest.mark.usefixtures("client")
def test_a_partition_splits(dynamodb: LocalDynamoDB) -> None:
    def events() -> list[Any]:
        report: Any = httpx.get(f"{dynamodb.url}/partitions").json()[0]
        return [one["what"] for one in report["events"] if one["done"]]

    dynamodb.split("orders", "a")
    until(lambda: events() == ["Isolate"], "the key is isolated")


@pytest.mark.parametrize(
    ("command", "wanted", "message"),
    [
        ("fail", {"count": 0}, "count must be"),
        ("fail", {"operatoin": "PutItem"}, "there is no field 'operatoin'"),
        ("fail", {"operation": "PutItm"}, "there is no operation 'PutItm': did you mean 'PutItem'"),
        ("throttle", {"table": "missing", "key": "a"}, "Requested resource not found"),
        ("throttle", {"table": "orders", "key": {"N": "1"}}, "key must have type S, as the key"),
        ("split", {"table": "orders", "partition": 99}, "there is no partition 99"),
        ("explode", {}, "POST to /control/fail"),
    ],
)
def test_a_wrong_command_is_refused(
    dynamodb: LocalDynamoDB, client: DynamoDBClient, command: str, wanted: Any, message: str
) -> None:
    status, answer = post(dynamodb, command, **wanted)
    assert status in (400, 404)
    assert answer["message"].startswith(message)
    assert client.list_tables()["TableNames"] == ["orders"]


class WithUnittest(unittest.TestCase):
    """The emulator in a test case of the standard library."""

    def setUp(self) -> None:
        self.dynamodb = self.enterContext(LocalDynamoDB())

    def test_a_table(self) -> None:
        client = self.dynamodb.client()
        create(client)
        assert client.list_tables()["TableNames"] == ["orders"]
        client.close()


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    text = (
        "import sys; sys.modules['httptools'] = None\n"
        "from heatsink.testing.dynamodb import LocalDynamoDB\n"
        "LocalDynamoDB().start()"
    )
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert last.startswith(
        "heatsink.errors.Misconfigured: a DynamoDB endpoint needs httptools: in "
    )
    assert "'.[local]'" in last
    assert "Exception in thread" not in ran.stderr


def test_an_emulator_that_cannot_start_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HeatsinkError, match=str(port)):
            LocalDynamoDB(EngineSettings(port=port)).start()
