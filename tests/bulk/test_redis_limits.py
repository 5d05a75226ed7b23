"""Limits in Lua and in Python agree on whatever happens."""

from __future__ import annotations

from random import Random

import pytest

from heatsink.bulk.batch import Rate
from heatsink.bulk.store import LATE_MS
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisServer
from tests.planted import usually

from .conftest import redis_queue
from .stepped import HOUR_S, ServerClock

LANE = "ada:mail"
RATES = [Rate(1), Rate(7), Rate(1_000), Rate(123_456), Rate(30_000, 60.0), Rate(100, 3600.0), None]


@pytest.mark.parametrize("seed", range(usually(6, full=20)))
async def test_lua_and_python_agree(seed: int, server: RedisServer, clock: ManualClock) -> None:
    rng, of_server = Random(seed), ServerClock(clock)
    python = MemoryQueueServer(of_server).stores(clock).limits
    async with redis_queue(server.url, clock, of_server) as stores:
        lua = stores.limits
        for _ in range(150):
            step, wait_s = rng.random(), rng.choice([0.0, 0.0013, 0.07, 0.6, 2.0, 9.0, 40.0])
            await clock.advance(wait_s)
            if rng.random() < 0.1:
                of_server.offset_s += rng.choice([-HOUR_S, -0.5, 1.0, 5.0, HOUR_S])
            for limits in (python, lua):
                pick = Random(f"{seed} {step}")
                if step < 0.15:
                    await limits.declare(LANE, pick.choice(RATES))
                elif step < 0.4:
                    await limits.refused(LANE, pick.uniform(0, 5_000), pick.choice([0, 1_500]))
            starts, ahead_ms = rng.randint(1, 3_000), rng.choice([0, 50, 1_000])
            late_ms = rng.choice([LATE_MS, LATE_MS, 33.7, 250.0])
            granted = await lua.reserve(LANE, starts, ahead_ms, late_ms)
            assert granted == await python.reserve(LANE, starts, ahead_ms, late_ms)
            assert await lua.rate_of(LANE) == await python.rate_of(LANE)
