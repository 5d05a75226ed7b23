"""A layout is in two places of a table: beside the rows, and where starting processes look."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from heatsink import Heatsink, connect
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.primitives.clock import SystemClock
from heatsink.server.commands.fsck import run_fsck
from heatsink.stores.dynamodb import make_table, open_table
from heatsink.stores.dynamodb.address import DynamoAddress, parse
from heatsink.stores.dynamodb.table import EPOCHS, key, keys_shard
from tests.spread.test_log import spread

CLOCK = SystemClock()
HALVES = {"the key's own": key("conv", EPOCHS), "the copy": key(keys_shard("conv"), b"conv")}


@pytest.fixture
async def address() -> AsyncIterator[DynamoAddress]:
    async with running_engine(EngineSettings(port=0), CLOCK) as endpoint:
        made = parse("messages", {"endpoint": endpoint})
        await make_table(made, CLOCK)
        yield made


def url(address: DynamoAddress) -> str:
    return f"dynamodb://{address.table}?endpoint={address.endpoint}"


async def lose(address: DynamoAddress, half: str) -> None:
    """As a restore in the middle of a transaction may."""
    table, client = open_table(address, CLOCK)
    assert await table.get(HALVES[half], consistent=True)
    await table.call("DeleteItem", {"Key": HALVES[half]})
    await client.close()


async def layouts_of(hs: Heatsink) -> tuple[object, object]:
    return hs.parts.registry.view.layout("conv"), await hs.parts.stores.registry.layout("conv")


@pytest.mark.parametrize("half", HALVES)
async def test_half_of_a_layout_is_found_missing_and_mended(
    address: DynamoAddress, half: str
) -> None:
    """Without a row that proves an epoch: nothing else in the table knows of it."""
    async with connect(url(address)) as hs:
        await spread(hs, "conv", 3)
        await spread(hs, "other", 2)
        (layout, _) = await layouts_of(hs)
    await lose(address, half)

    outcome = await run_fsck(url(address), False, CLOCK)
    assert (outcome.findings.clean, outcome.findings.unlike_layouts) == (False, 1)
    assert "conv: processes that start find another layout" in str(outcome)
    assert "--rebuild" in str(outcome)

    mended = await run_fsck(url(address), True, CLOCK)
    assert (mended.findings.clean, mended.keys_mended) == (True, 1)
    async with connect(url(address), coordinate=False) as hs:
        assert await layouts_of(hs) == (layout, layout)
