"""Real servers for tests. In CI a missing one fails; elsewhere it skips and says how to get it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import pytest

from heatsink.stores.redis.address import RedisAddress, parse
from heatsink.testing.redis import MissingServer

Server = TypeVar("Server")
PATIENCE_S = 5.0


def patient(url: str) -> RedisAddress:
    """Of a Redis, for tests that are not about a slow one: the machine may be."""
    return parse(patient_url(url))


def patient_url(url: str) -> str:
    return f"{url}?timeout_s={PATIENCE_S:g}"


@contextmanager
def real(make: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
    try:
        server = make()
        started = server.__enter__()
    except MissingServer as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    try:
        yield started
    finally:
        server.__exit__(None, None, None)
