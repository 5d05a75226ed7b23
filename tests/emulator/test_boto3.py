"""What an unmodified SDK makes of being throttled by our engine."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from mypy_boto3_dynamodb import DynamoDBClient

from heatsink.emulator.settings import EngineSettings

from .contract.conftest import client_of
from .contract.engines import ours

pytestmark = pytest.mark.server("the emulator listens")

SLOW = EngineSettings(port=0, write_limit=0.001, read_limit=0.001)
KEY: Any = {"pk": {"S": "hot"}}
ARN = "arn:aws:dynamodb:us-east-1:000000000000:table/things"


def make_table(client: DynamoDBClient) -> None:
    client.create_table(
        TableName="things",
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )


def throttled(call: Any, **request: Any) -> dict[str, Any]:
    call(TableName="things", **request)
    with pytest.raises(ClientError) as caught:
        call(TableName="things", **request)
    response: Any = caught.value.response
    return {"code": response["Error"]["Code"], **response}


def test_the_sdk_sees_which_limit_it_was() -> None:
    with ours(SLOW) as url:
        client = client_of(url)
        make_table(client)
        write = throttled(client.put_item, Item=KEY)
        read = throttled(client.get_item, Key=KEY, ConsistentRead=True)
        client.close()
    assert write["code"] == "ThrottlingException"
    assert write["throttlingReasons"] == [
        {"reason": "TableWriteKeyRangeThroughputExceeded", "resource": ARN}
    ]
    assert read["code"] == "ProvisionedThroughputExceededException"
    assert read["ThrottlingReasons"] == [
        {"reason": "TableReadKeyRangeThroughputExceeded", "resource": ARN}
    ]


def test_a_hot_value_of_an_index_throttles_writers_of_the_table() -> None:
    """The writers use many keys of the table. Only one value of the index is hot."""
    arn = f"{ARN}/index/by-state"
    with ours(EngineSettings(port=0, write_limit=20.0)) as url:
        client = client_of(url)
        client.create_table(
            TableName="things",
            AttributeDefinitions=[
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "state", "AttributeType": "S"},
            ],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "by-state",
                    "KeySchema": [{"AttributeName": "state", "KeyType": "HASH"}],
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                }
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        with pytest.raises(ClientError) as caught:
            _put_many(client, 1_000)
        for number in range(8):
            client.put_item(TableName="things", Item={"pk": {"S": f"calm{number}"}})
        client.close()
    response: Any = caught.value.response
    assert response["Error"]["Code"] == "ThrottlingException"
    assert response["throttlingReasons"] == [
        {"reason": "IndexWriteKeyRangeThroughputExceeded", "resource": arn}
    ]


def _put_many(client: DynamoDBClient, count: int) -> None:
    for number in range(count):
        item: Any = {"pk": {"S": f"hot{number}"}, "state": {"S": "new"}}
        client.put_item(TableName="things", Item=item)
