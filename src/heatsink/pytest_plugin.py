"""The pytest plugin of Heatsink: fixtures for tests of applications.

`dynamodb` is an emulator of DynamoDB, `heatsink_redis` a private Redis, `heatsink_client` a client
with a queue on this Redis, and `heatsink_worker` starts workers of the queue. An entry point makes
pytest load the plugin; it imports the rest of Heatsink when a test uses a fixture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from heatsink.bulk import Actions
    from heatsink.client.blocking import BlockingHeatsink
    from heatsink.testing.dynamodb import LocalDynamoDB
    from heatsink.testing.redis import RedisServer

    StartWorker = Callable[[Actions], None]


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


@pytest.fixture(scope="session")
def heatsink_redis_server() -> Iterator[RedisServer]:
    """A Redis-compatible server for this process. With pytest-xdist, each worker has its own."""
    from heatsink.testing.redis import RedisServer

    with RedisServer(append_only=True) as server:
        yield server


@pytest.fixture
def heatsink_redis(heatsink_redis_server: RedisServer) -> RedisServer:
    """The private Redis of this process, empty. `heatsink_redis.url` is its URL."""
    heatsink_redis_server.command("FLUSHALL")
    return heatsink_redis_server


@pytest.fixture
def heatsink_client(heatsink_redis: RedisServer) -> Iterator[BlockingHeatsink]:
    """A client without asyncio: data in memory, and a queue on the private Redis."""
    from heatsink.client import connect_sync

    with connect_sync("memory://", queue=heatsink_redis.url) as client:
        yield client


@pytest.fixture
def heatsink_worker(heatsink_redis: RedisServer) -> Iterator[StartWorker]:
    """Start workers of the private queue: `heatsink_worker(actions)`. They stop with the test."""
    with ExitStack() as running:
        yield lambda actions: running.enter_context(_working(heatsink_redis.url, actions))


@contextmanager
def _working(queue: str, actions: Actions) -> Iterator[None]:
    from heatsink.client import connect_sync

    with connect_sync("memory://", queue=queue) as client:
        worker = client.worker(actions)
        thread = threading.Thread(target=worker.run, name="heatsink-worker")
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join()
