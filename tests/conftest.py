"""Fixtures that many tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings

from heatsink import Heatsink, connect
from heatsink.testing import ManualClock

settings.register_profile(
    "heatsink", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("heatsink")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rng() -> Random:
    return Random(7)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/heatsink.db"


@pytest.fixture
async def hs(url: str) -> AsyncIterator[Heatsink]:
    async with connect(url) as client:
        yield client
