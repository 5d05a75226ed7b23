"""Backup and restore drills: who remembers the lost future is refused until it reconnects."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heatsink import Heatsink, connect
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import WrongIncarnation
from heatsink.primitives.clock import SystemClock
from heatsink.server.commands.fsck import run_fsck
from heatsink.stores.dynamodb import make_table, open_table
from heatsink.stores.dynamodb.address import DynamoAddress, parse
from heatsink.stores.dynamodb.client import Item
from heatsink.stores.dynamodb.table import DynamoTable
from tests.spread.test_log import everything, spread

CLOCK = SystemClock()
UNLIMITED = EngineSettings(port=0, write_limit=1e9, read_limit=1e9)
HORIZON_AND_MORE_S = 1.0


async def write_history(hs: Heatsink) -> list[bytes]:
    """Rows in one bucket and in three, so that the restored registry has epochs to keep."""
    for n in range(10):
        await hs.log.append("conv", b"cold %d" % n)
    await spread(hs, "conv", 3)
    for n in range(10):
        await hs.log.append("conv", b"hot %d" % n)
    return await bodies(hs)


async def write_lost_future(hs: Heatsink) -> None:
    await spread(hs, "conv", 5)
    for n in range(10):
        await hs.log.append("conv", b"lost %d" % n)


async def bodies(hs: Heatsink) -> list[bytes]:
    return [entry.body for entry in await everything(hs, "conv", order="oldest")]


async def expect_refused(hs: Heatsink) -> None:
    """For good: waiting does not help."""
    for _ in range(2):
        with pytest.raises(WrongIncarnation, match="reconnect"):
            await hs.log.append("conv", b"from another life")
        with pytest.raises(WrongIncarnation, match="reconnect"):
            await hs.counters.add("views")
        with pytest.raises(WrongIncarnation, match="reconnect"):
            await hs.parts.registry.renew()
        await asyncio.sleep(0.2)


async def expect_as_before(url: str, kept: list[bytes]) -> None:
    async with connect(url) as again:
        assert await bodies(again) == kept
        assert again.parts.registry.view.layout("conv").buckets == 3
        await again.log.append("conv", b"after")
        assert await bodies(again) == [*kept, b"after"]
    assert (await run_fsck(url, False, CLOCK)).findings.clean


def back_up(file: Path, copy: Path) -> None:
    with sqlite3.connect(file) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    source.close()
    target.close()


def put_back(copy: Path, file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").rename(f"{file}.lost{suffix}")
    shutil.copy(copy, file)


async def test_a_sqlite_file_is_restored(tmp_path: Path) -> None:
    file, url = tmp_path / "chat.db", f"sqlite:///{tmp_path}/chat.db"
    async with connect(url) as forgotten:  # a process that nobody stopped
        kept = await write_history(forgotten)
        back_up(file, tmp_path / "copy.db")
        await write_lost_future(forgotten)
        put_back(tmp_path / "copy.db", file)
        outcome = await run_fsck(url, True, CLOCK)
        assert outcome.findings.clean
        assert "reconnect all clients" in str(outcome)
        await expect_refused(forgotten)
    await expect_as_before(url, kept)


@pytest.mark.sleeps("a horizon must pass")
async def test_a_rebuild_in_place_refuses_who_still_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with connect(url) as running:
        kept = await write_history(running)
        await run_fsck(url, True, CLOCK)
        await asyncio.sleep(HORIZON_AND_MORE_S)
        await expect_refused(running)
    await expect_as_before(url, kept)


@pytest.fixture
async def address() -> AsyncIterator[DynamoAddress]:
    async with running_engine(UNLIMITED, CLOCK) as endpoint:
        made = parse("messages", {"endpoint": endpoint})
        await make_table(made, CLOCK)
        yield made


async def all_items(table: DynamoTable) -> list[Item]:
    items: list[Item] = []
    start: Item | None = None
    while True:
        found, start = await table.page("Scan", {"ConsistentRead": True}, start)
        items += found
        if start is None:
            return items


async def replace_items(table: DynamoTable, items: list[Item]) -> None:
    await table.delete_all(await all_items(table))
    for item in items:
        await table.call("PutItem", {"Item": item})


@pytest.mark.sleeps("a horizon must pass")
async def test_a_dynamodb_table_is_restored(address: DynamoAddress) -> None:
    url = f"dynamodb://{address.table}?endpoint={address.endpoint}"
    table, client = open_table(address, CLOCK)
    async with connect(url) as forgotten:
        kept = await write_history(forgotten)
        snapshot = await all_items(table)
        await write_lost_future(forgotten)
        await replace_items(table, snapshot)
        outcome = await run_fsck(url, True, CLOCK)
        assert outcome.findings.clean
        await asyncio.sleep(HORIZON_AND_MORE_S)
        await expect_refused(forgotten)
    await client.close()
    await expect_as_before(url, kept)
