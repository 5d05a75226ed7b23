"""Every store there is, for the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb import dynamodb_stores, make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.memory import memory_stores
from heatsink.stores.sqlite import sqlite_stores
from heatsink.stores.stores import Stores
from heatsink.stores.throttled import PartitionLimit, throttled
from heatsink.testing import ManualClock

PLENTY = PartitionLimit(writes_s=1e9, reads_s=1e9)
UNLIMITED = EngineSettings(port=0, write_limit=1e9, read_limit=1e9)


@asynccontextmanager
async def opened(kind: str, folder: Path, clock: Clock) -> AsyncIterator[Stores]:
    if kind == "dynamodb":
        async with running_engine(UNLIMITED, clock) as endpoint:
            address = parse("messages", {"endpoint": endpoint})
            await make_table(address, clock)
            made = dynamodb_stores(address, clock)
            await made.open()
            yield made
            await made.close()
        return
    made = memory_stores(clock) if "memory" in kind else sqlite_stores(folder / "s.db", clock)
    yield throttled(made, PLENTY, clock) if "throttled" in kind else made
    await made.close()


@pytest.fixture(params=["memory", "sqlite", "throttled memory", "throttled sqlite", "dynamodb"])
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Stores]:
    async with opened(request.param, tmp_path, clock) as made:
        yield made
