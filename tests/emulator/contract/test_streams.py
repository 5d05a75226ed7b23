"""Streams, tags and protection of tables, through an unmodified SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from mypy_boto3_dynamodb import DynamoDBClient

from .conftest import Refusal
from .deviations import deviates

ONE_KEY: Any = {
    "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}],
    "BillingMode": "PAY_PER_REQUEST",
}
TABLE = "streamed"
API = "https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/"
STREAMS = API + "API_Types_Amazon_DynamoDB_Streams.html"


@pytest.fixture
def streams(client: DynamoDBClient) -> Any:
    return boto3.client(
        "dynamodbstreams",
        endpoint_url=client.meta.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106  the engines do not look
        config=Config(retries={"total_max_attempts": 1}),
    )


@pytest.fixture
def arn(client: DynamoDBClient) -> Iterator[str]:
    wanted: Any = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    client.create_table(TableName=TABLE, **ONE_KEY, StreamSpecification=wanted)
    yield client.describe_table(TableName=TABLE)["Table"]["LatestStreamArn"]
    client.delete_table(TableName=TABLE)


def records(streams: Any, arn: str, kind: str = "TRIM_HORIZON") -> list[Any]:
    found = []
    for shard in streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]:
        iterator = streams.get_shard_iterator(
            StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType=kind
        )["ShardIterator"]
        while iterator:
            page = streams.get_records(ShardIterator=iterator, Limit=2)
            found += page["Records"]
            iterator = page.get("NextShardIterator") if page["Records"] else None
    return found


@deviates("ministack", "does not serve the Streams API here", STREAMS)
def test_every_change_of_an_item_is_told_in_order(
    client: DynamoDBClient, streams: Any, arn: str
) -> None:
    where: Any = {"TableName": TABLE, "Key": {"pk": {"S": "a"}}}
    client.put_item(TableName=TABLE, Item={"pk": {"S": "a"}, "n": {"N": "1"}})
    client.update_item(
        **where, UpdateExpression="ADD n :n", ExpressionAttributeValues={":n": {"N": "1"}}
    )
    client.delete_item(**where)
    found = records(streams, arn)
    assert [one["eventName"] for one in found] == ["INSERT", "MODIFY", "REMOVE"]
    assert found[1]["dynamodb"]["OldImage"]["n"] == {"N": "1"}
    assert found[1]["dynamodb"]["NewImage"]["n"] == {"N": "2"}
    assert all(one["dynamodb"]["Keys"] == {"pk": {"S": "a"}} for one in found)
    assert records(streams, arn, "LATEST") == []


@deviates("ministack", "does not serve the Streams API here", STREAMS)
def test_a_stream_is_listed_and_described(streams: Any, arn: str) -> None:
    listed = streams.list_streams(TableName=TABLE)["Streams"]
    assert arn in [one["StreamArn"] for one in listed]
    described = streams.describe_stream(StreamArn=arn)["StreamDescription"]
    assert described["StreamStatus"] == "ENABLED"
    assert described["StreamViewType"] == "NEW_AND_OLD_IMAGES"
    assert described["KeySchema"] == ONE_KEY["KeySchema"]


def test_a_protected_table_is_not_deleted(client: DynamoDBClient, refused: Refusal) -> None:
    client.create_table(TableName="protected", **ONE_KEY, DeletionProtectionEnabled=True)
    with refused:
        client.delete_table(TableName="protected")
    assert refused.code == "ValidationException"
    client.update_table(TableName="protected", DeletionProtectionEnabled=False)
    client.delete_table(TableName="protected")


def test_tags_are_added_listed_and_removed(client: DynamoDBClient, table: str) -> None:
    arn = client.describe_table(TableName=table)["Table"]["TableArn"]
    tags: Any = [{"Key": "env", "Value": "test"}, {"Key": "team", "Value": "a"}]
    client.tag_resource(ResourceArn=arn, Tags=tags)
    client.untag_resource(ResourceArn=arn, TagKeys=["env"])
    listed = client.list_tags_of_resource(ResourceArn=arn)["Tags"]
    assert listed == [{"Key": "team", "Value": "a"}]


def test_throughput_and_billing_mode_change(client: DynamoDBClient, table: str) -> None:
    units: Any = {"ReadCapacityUnits": 3, "WriteCapacityUnits": 4}
    client.update_table(TableName=table, BillingMode="PROVISIONED", ProvisionedThroughput=units)
    described = client.describe_table(TableName=table)["Table"]["ProvisionedThroughput"]
    assert (described["ReadCapacityUnits"], described["WriteCapacityUnits"]) == (3, 4)
