"""A relay in memory, on a real server, and on a real cluster: all must behave alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from random import Random
from uuid import uuid4

import pytest

from heatsink.heat.report import HeatBus
from heatsink.registry.decisions import SoftDecision, SoftStore
from heatsink.registry.news import NewsStore
from heatsink.stores.memory.messages import MemoryBus, MemoryNews, MemorySoft
from heatsink.stores.redis.address import RedisKeys
from heatsink.stores.redis.connection import Connection
from heatsink.stores.redis.heat import RedisBus
from heatsink.stores.redis.news import RedisNews, RedisSoft
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisCluster, RedisServer
from tests.servers import patient, real


@dataclass
class Relay:
    bus: HeatBus
    news: NewsStore
    soft: Callable[[], SoftStore]
    """A reader with a place of its own."""


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with real(RedisServer) as started:
        yield started


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    with real(RedisCluster) as started:
        yield started


@pytest.fixture
def keys() -> RedisKeys:
    return RedisKeys(f"test-{uuid4().hex}")


@pytest.fixture
async def connection(server: RedisServer, clock: ManualClock) -> AsyncIterator[Connection]:
    made = Connection(patient(server.url), clock, Random(1))
    yield made
    await made.close()


@pytest.fixture
def bus(connection: Connection, keys: RedisKeys) -> RedisBus:
    return RedisBus(connection, keys, reports_max=1_000)


@pytest.fixture(params=["memory", "server", "cluster"])
async def relay(
    request: pytest.FixtureRequest, keys: RedisKeys, clock: ManualClock
) -> AsyncIterator[Relay]:
    if request.param == "memory":
        log: list[SoftDecision] = []
        yield Relay(MemoryBus(), MemoryNews(), lambda: MemorySoft(log))
        return
    url = request.getfixturevalue(request.param).url
    connection = Connection(patient(url), clock, Random(1))
    bus = RedisBus(connection, keys, reports_max=1_000)
    yield Relay(bus, RedisNews(connection, keys, clock), lambda: RedisSoft(connection, keys))
    await connection.close()
