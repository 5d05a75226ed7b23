"""The pytest plugin of Heatsink: the fixture `dynamodb`. An entry point makes pytest load it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from heatsink.testing.dynamodb import LocalDynamoDB


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("heatsink")
    group.addoption(
        "--dynamodb-seed", type=int, default=0, help="seed of everything random in the emulator"
    )


@pytest.fixture(scope="session")
def dynamodb_server(request: pytest.FixtureRequest) -> Iterator[LocalDynamoDB]:
    """A DynamoDB emulator for this process. With pytest-xdist, each worker has its own."""
    from heatsink.testing.dynamodb import LocalDynamoDB

    with LocalDynamoDB(seed=request.config.getoption("--dynamodb-seed")) as server:
        yield server


@pytest.fixture
def dynamodb(dynamodb_server: LocalDynamoDB) -> LocalDynamoDB:
    """The DynamoDB emulator of this process, without tables and faults."""
    dynamodb_server.reset()
    return dynamodb_server
