"""A server of each test's own, asked without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from heatsink import Heatsink, connect
from heatsink.primitives.clock import SystemClock
from heatsink.server.process import ServeSettings, running_app

Asker = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
async def hs() -> AsyncIterator[Heatsink]:
    async with connect("memory://") as client:
        yield client


@pytest.fixture
def asking(hs: Heatsink, tmp_path: Path) -> Asker:
    """`async with asking(tokens=…) as api`: the server with other settings than the usual."""

    @asynccontextmanager
    async def ask(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        chosen = ServeSettings(data=tmp_path, **settings)
        async with running_app(hs, chosen, SystemClock()) as app:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                yield client

    return ask


@pytest.fixture
async def api(asking: Asker) -> AsyncIterator[httpx.AsyncClient]:
    async with asking() as client:
        yield client
