"""A store that is wiped or replaced under a running client: reads are refused, as writes are."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from heatsink import Heatsink, Settings
from heatsink.client.urls import open_stores
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import NoRegistry, WrongIncarnation
from heatsink.primitives.clock import SystemClock
from heatsink.registry.decisions import Snapshot
from heatsink.spread.log import Receipt
from heatsink.stores.dynamodb import make_table, open_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.stores import Stores

from .test_restore import all_items

CLOCK = SystemClock()
BOUND_S = 10.0
Wipe = Callable[[], Awaitable[None]]


class Place:
    """A store, and how to wipe it behind everybody's back."""

    def __init__(self, stores: Stores, wipe: Wipe) -> None:
        self.stores = stores
        self.wipe = wipe

    async def replace(self) -> None:
        """As `fsck --rebuild` on a restored copy does."""
        meta = (await self.stores.registry.meta()).meta
        other = structs.replace(meta, incarnation="another")
        await self.stores.registry.restore(other, Snapshot(meta.version, {}, {}, {}))


@asynccontextmanager
async def in_memory() -> AsyncIterator[Place]:
    stores = open_stores("memory://", CLOCK)

    async def wipe() -> None:
        registry: Any = stores.registry
        registry.__init__(CLOCK)
        for partition in ("conv", "views"):
            await stores.log.erase(partition)

    yield Place(stores, wipe)


@asynccontextmanager
async def in_a_file(folder: Path) -> AsyncIterator[Place]:
    async def wipe() -> None:
        with sqlite3.connect(folder / "chat.db") as database:
            for table in ("meta", "log", "epochs", "pins", "rows", "shares", "tokens"):
                database.execute(f"DELETE FROM {table}")  # noqa: S608 (our own names)
        database.close()

    yield Place(open_stores(f"sqlite:///{folder}/chat.db", CLOCK), wipe)


@asynccontextmanager
async def in_a_table() -> AsyncIterator[Place]:
    async with running_engine(EngineSettings(port=0), CLOCK) as endpoint:
        address = parse("messages", {"endpoint": endpoint})
        await make_table(address, CLOCK)
        table, client = open_table(address, CLOCK)

        async def wipe() -> None:
            await table.delete_all(await all_items(table))

        yield Place(open_stores(f"dynamodb://messages?endpoint={endpoint}", CLOCK), wipe)
        await client.close()


@pytest.fixture(params=["memory", "sqlite", "dynamodb"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    made = {"memory": in_memory, "dynamodb": in_a_table}.get(request.param)
    async with made() if made else in_a_file(tmp_path) as place:
        yield place


@asynccontextmanager
async def client(place: Place) -> AsyncIterator[tuple[Heatsink, Receipt]]:
    async with Heatsink(place.stores, Settings(), CLOCK, Random(1)) as hs:
        receipt = await hs.log.append("conv", b"hello")
        await hs.counters.add("views")
        yield hs, receipt


def reads(hs: Heatsink, receipt: Receipt) -> dict[str, Callable[[], Awaitable[Any]]]:
    return {
        "page": lambda: hs.log.page("conv"),
        "get": lambda: hs.log.get("conv", receipt.id),
        "value": lambda: hs.counters.value("views"),
        "explain": lambda: hs.explain("conv"),
    }


async def expect_refused(hs: Heatsink, receipt: Receipt, why: str) -> None:
    for read in reads(hs, receipt).values():
        with pytest.raises(WrongIncarnation, match=why):
            await read()
    with pytest.raises(WrongIncarnation, match=why):
        await hs.log.append("conv", b"lost")
    with pytest.raises(WrongIncarnation, match=why):
        await hs.counters.add("views")


async def until_refused(hs: Heatsink) -> None:
    async with asyncio.timeout(BOUND_S):
        while not hs.parts.registry.refusal:
            await asyncio.sleep(0.01)


async def test_reads_of_a_wiped_store_are_refused(place: Place) -> None:
    async with client(place) as (hs, receipt):
        await place.wipe()
        await until_refused(hs)
        await expect_refused(hs, receipt, "wiped.*reconnect")


async def test_reads_of_another_incarnation_are_refused(place: Place) -> None:
    async with client(place) as (hs, receipt):
        await place.replace()
        await until_refused(hs)
        await expect_refused(hs, receipt, "another incarnation: reconnect")


async def test_a_store_that_is_set_back_is_refused_for_good(place: Place) -> None:
    """Of the same incarnation, as after a backup of it was put back under who still runs."""
    registry = place.stores.registry
    async with client(place) as (hs, receipt):
        backup, past = (await registry.meta()).meta, await registry.snapshot()
        await hs.pin("conv", buckets=8, reason="a test")
        await hs.parts.registry.renew()
        await registry.restore(backup, past)
        await until_refused(hs)
        await expect_refused(hs, receipt, "set back.*reconnect")
        known = hs.parts.registry.view
        soon = structs.replace(backup, version=known.version, closed_ms=known.horizon_ms + 60_000)
        await registry.restore(soon, structs.replace(past, version=known.version))
        with pytest.raises(WrongIncarnation, match="set back"):
            await hs.parts.registry.renew()
        await expect_refused(hs, receipt, "set back.*reconnect")


async def test_a_closed_time_that_is_set_back_is_refused(place: Place) -> None:
    """Without a change of layout: epochs could begin where this process has placed rows already."""
    registry = place.stores.registry
    async with client(place) as (hs, receipt):
        backup, past = (await registry.meta()).meta, await registry.snapshot()
        await registry.restore(structs.replace(backup, closed_ms=backup.closed_ms - 60_000), past)
        await until_refused(hs)
        await expect_refused(hs, receipt, "set back.*reconnect")


@pytest.mark.parametrize("name", ["page", "get", "value"])
async def test_who_slept_does_not_believe_a_wiped_store(place: Place, name: str) -> None:
    """Nothing in the background has noticed yet: what finds nothing asks before it says so."""
    async with client(place) as (hs, receipt):
        for task in hs.parts.tasks:
            task.cancel()
        await place.wipe()
        hs.parts.registry._renewed_s = float("-inf")
        with pytest.raises(WrongIncarnation, match="wiped"):
            await reads(hs, receipt)[name]()


async def test_what_finds_nothing_asks_nothing_while_the_view_is_fresh(place: Place) -> None:
    async with client(place) as (hs, _):
        for task in hs.parts.tasks:
            task.cancel()
        await hs.parts.registry.renew()

        async def meta() -> Any:
            raise AssertionError("one request too many")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place.stores.registry, "meta", meta)
            assert (await hs.log.page("nobody")).entries == []
            assert await hs.counters.value("nobody") == 0


async def test_a_store_that_nobody_founded_says_what_to_do(place: Place) -> None:
    with pytest.raises(
        NoRegistry, match=r"If the store is new, connect a client .* restore a backup"
    ):
        await place.stores.registry.meta()
    await place.stores.close()
