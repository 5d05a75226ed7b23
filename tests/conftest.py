"""Fixtures that many tests share."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import HealthCheck, settings

from heatsink import Heatsink, connect
from heatsink.stores.redis import connection
from heatsink.testing import ManualClock

from . import waiting
from .planted import usually
from .servers import PATIENCE_S

pytest_plugins = [
    "tests.plugins.cpu",
    "tests.plugins.garbage",
    "tests.plugins.planted",
    "tests.plugins.selection",
    "tests.plugins.sleeps",
    "tests.plugins.unsteady",
]

settings.register_profile(
    "heatsink",
    deadline=None,
    max_examples=usually(15, full=100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("heatsink")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with Ctrl-C ignored, and their children inherit that. Tests
    # send Ctrl-C to themselves and to commands.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that share a server and a browser, so that one worker runs them all."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/server/dashboard/"))


@pytest.fixture(scope="session", autouse=True)
def patience_with_connects() -> Iterator[None]:
    """No URL says how long a connect to a Redis may take, and a machine may stall for a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "CONNECT_S", PATIENCE_S)
        yield


@pytest.fixture(scope="session", autouse=True)
def patience_with_servers() -> None:
    """Clients of httpx give up after five seconds, in which a busy machine may start a server."""
    for phase in ("connect", "read", "write", "pool"):
        setattr(DEFAULT_TIMEOUT_CONFIG, phase, waiting.PATIENCE_S)


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Commands set up the log of their process, which is that of all tests."""
    root = logging.getLogger()
    handlers, level, known = root.handlers, root.level, _levels()
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        for name in _levels():
            logging.getLogger(name).setLevel(known.get(name, logging.NOTSET))


def _levels() -> dict[str, int]:
    """Of loggers that commands set: those of other libraries are none of ours."""
    loggers = logging.getLogger().manager.loggerDict.items()
    ours = [(name, each) for name, each in loggers if name.startswith(("heatsink", "uvicorn"))]
    return {name: each.level for name, each in ours if isinstance(each, logging.Logger)}


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    with logging_as_before():
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
