"""Real servers for tests. In CI a missing one fails; elsewhere it skips and says how to get it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import pytest

from heatsink.testing.servers import MissingServer

Server = TypeVar("Server")


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
