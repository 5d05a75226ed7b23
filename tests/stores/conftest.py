"""Every store there is, for the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heatsink.stores.memory import memory_stores
from heatsink.stores.sqlite import sqlite_stores
from heatsink.stores.stores import Stores
from heatsink.stores.throttled import PartitionLimit, throttled
from heatsink.testing import ManualClock

PLENTY = PartitionLimit(writes_s=1e9, reads_s=1e9)


@pytest.fixture(params=["memory", "sqlite", "throttled memory", "throttled sqlite"])
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Stores]:
    if "memory" in request.param:
        made = memory_stores(clock)
    else:
        made = sqlite_stores(tmp_path / "store.db", clock)
    yield throttled(made, PLENTY, clock) if "throttled" in request.param else made
    await made.close()
