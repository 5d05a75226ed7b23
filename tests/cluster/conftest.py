"""A client and our view of the cluster that a module's own fixture `cluster` starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest
from redis.asyncio import RedisCluster as Client

from heatsink.cluster.nodes import ClusterNodes
from heatsink.primitives.clock import SystemClock
from heatsink.testing.redis import RedisCluster


@pytest.fixture
async def client(cluster: RedisCluster) -> AsyncIterator[Client]:
    port = cluster.masters[0].port
    opened = Client(host="127.0.0.1", port=port, reinitialize_steps=0)  # as docs advise
    await opened.flushall(target_nodes=Client.PRIMARIES)
    yield opened
    await opened.aclose()


@pytest.fixture
async def nodes(cluster: RedisCluster) -> AsyncIterator[ClusterNodes]:
    opened = ClusterNodes(cluster.url, SystemClock(), Random(1))
    yield opened
    await opened.close()
