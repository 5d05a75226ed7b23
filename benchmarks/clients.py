"""Clients and stores as an application has them, with windows into them for counting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from heatsink.client import Heatsink, Settings
from heatsink.client.urls import open_stores
from heatsink.heat.count import Tracker
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.ids import Uuid7
from heatsink.registry.decisions import Meta
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff, Retries
from heatsink.spread.routing import Router
from heatsink.stores.stores import Stores

ARTIFACTS = Path(__file__).resolve().parent.parent / "artifacts"
CLOCK = SystemClock()
BODY = b"x" * 200
SECRET = b"benchmark-secret" * 2
FOUNDING = Meta(0, 0, 0, 0, "", "benchmark", b"benchmark-seed--", Uuid7.name, secret=SECRET)


@contextmanager
def sqlite_url() -> Iterator[str]:
    """A new database on the disk that holds the code: temporary folders may be in memory."""
    ARTIFACTS.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=ARTIFACTS, prefix="bench-") as folder:
        yield f"sqlite:///{folder}/bench.db"


def stores_at(url: str) -> Stores:
    return open_stores(url, CLOCK)


def client(stores: Stores, settings: Settings | None = None) -> Heatsink:
    return Heatsink(stores, settings or Settings(), CLOCK, Random(1))


@asynccontextmanager
async def a_router() -> AsyncIterator[tuple[Router, Registry]]:
    """A router and its registry as `Heatsink` builds them, with nothing running beside."""
    registry = Registry(stores_at("memory://").registry, CLOCK)
    await registry.open(FOUNDING)
    backoff = Backoff(Retries(), CLOCK, Random(1), Tracker(), registry.view)
    try:
        yield Router(registry, Uuid7(), backoff, CLOCK, Random(1)), registry
    finally:
        await registry.close()


async def pin(hs: Heatsink, buckets: dict[str, int]) -> None:
    """Pin keys and wait until rows that are written now are placed so."""
    for key, count in buckets.items():
        await hs.pin(key, buckets=count, reason="benchmark")
    for key, count in buckets.items():
        await _reached(hs, key, count)


async def _reached(hs: Heatsink, key: str, buckets: int) -> None:
    while True:
        if (await hs.explain(key)).buckets == buckets:
            return
        await asyncio.sleep(0.02)
