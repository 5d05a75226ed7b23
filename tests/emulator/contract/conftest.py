"""One client per engine for the whole run, one table per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from mypy_boto3_dynamodb import DynamoDBClient

from . import engines
from .deviations import expect_known

_numbers = count()


def client_of(url: str) -> DynamoDBClient:
    return boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106  the engines do not look
        config=Config(retries={"total_max_attempts": 1}, parameter_validation=False),
    )


@pytest.fixture(scope="session", params=engines.names())
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, DynamoDBClient]]:
    with engines.running(request.param) as url:
        client = client_of(url)
        yield request.param, client
        client.close()


@pytest.fixture
def client(engine: tuple[str, DynamoDBClient], request: pytest.FixtureRequest) -> DynamoDBClient:
    name, client = engine
    expect_known(name, request)
    return client


@pytest.fixture
def make_table(client: DynamoDBClient) -> Iterator[Callable[..., str]]:
    made = []

    def make(hash_kind: str = "S", sort_kind: str | None = "S", **options: Any) -> str:
        name = f"contract-{next(_numbers)}"
        kinds = {"pk": hash_kind, **({"sk": sort_kind} if sort_kind else {})}
        client.create_table(
            TableName=name,
            AttributeDefinitions=[
                {"AttributeName": key, "AttributeType": kind}  # type: ignore[typeddict-item]
                for key, kind in kinds.items()
            ],
            KeySchema=[
                {"AttributeName": key, "KeyType": role}  # type: ignore[typeddict-item]
                for key, role in zip(kinds, ("HASH", "RANGE"), strict=False)
            ],
            **(options or {"BillingMode": "PAY_PER_REQUEST"}),
        )
        made.append(name)
        return name

    yield make
    for name in made:
        client.delete_table(TableName=name)


@pytest.fixture
def table(make_table: Callable[..., str]) -> str:
    return make_table()


class Refusal:
    """The error of a call that must fail."""

    code = ""
    message = ""
    response: Any = None

    def __enter__(self) -> Refusal:
        return self

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> bool:
        assert isinstance(error, ClientError), "the call was not refused"
        self.response = error.response
        self.code = error.response["Error"]["Code"]
        self.message = error.response["Error"]["Message"]
        return True


@pytest.fixture
def refused() -> Refusal:
    return Refusal()
