"""Fixtures that many tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings

from heatsink import Heatsink, connect
from heatsink.stores.redis import connection
from heatsink.testing import ManualClock

from .servers import PATIENCE_S

settings.register_profile(
    "heatsink",
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("heatsink")


@pytest.fixture(scope="session", autouse=True)
def patience_with_connects() -> Iterator[None]:
    """No URL says how long a connect to a Redis may take, and a machine may stall for a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "CONNECT_S", PATIENCE_S)
        yield


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
