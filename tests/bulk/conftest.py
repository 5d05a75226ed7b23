"""The same queue in memory, on a real server and on a real cluster: all must behave alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from uuid import uuid4

import pytest

from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.store import QueueStores
from heatsink.primitives.clock import Clock
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.stores.redis.queue import open_queue
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisCluster, RedisServer
from tests.servers import patient_url, real

from .driver import Driver


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with real(RedisServer) as started:
        yield started


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    with real(RedisCluster) as started:
        yield started


@asynccontextmanager
async def redis_queue(
    url: str, clock: ManualClock, of_server: Clock | None = None, stage: str = ""
) -> AsyncIterator[QueueStores]:
    """Scripts take the test's clock, or one that it sets, for the server's."""
    stores = open_queue(
        patient_url(url),
        clock,
        Random(1),
        BulkSettings(stage=stage or f"test-{uuid4().hex}", durability="relaxed"),
        now_ms=lambda: (of_server or clock).now_s() * 1000,
    )
    try:
        yield stores
    finally:
        await stores.close()


@pytest.fixture(params=["memory", "server", "cluster"])
async def stores(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[QueueStores]:
    if request.param == "memory":
        yield MemoryQueueServer(clock).stores()
        return
    async with redis_queue(request.getfixturevalue(request.param).url, clock) as opened:
        yield opened


@pytest.fixture
def driver(stores: QueueStores, clock: ManualClock) -> Driver:
    return Driver(stores, clock)
