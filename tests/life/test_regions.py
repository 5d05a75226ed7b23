"""Tables that replicate to other regions, as DescribeTable tells it. The engine has no regions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from heatsink import connect
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.emulator.table import EngineTable
from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import SystemClock
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse

CLOCK = SystemClock()
REPLICAS = [{"RegionName": "eu-west-1", "ReplicaStatus": "ACTIVE"}, {"RegionName": "us-east-1"}]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with running_engine(EngineSettings(port=0), CLOCK) as endpoint:
        await make_table(parse("messages", {"endpoint": endpoint}), CLOCK)
        yield f"dynamodb://messages?endpoint={endpoint}"


def describe_as(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    describe = EngineTable.describe
    monkeypatch.setattr(EngineTable, "describe", lambda table: {**describe(table), **more})


@pytest.mark.parametrize(
    "described",
    [
        {"Replicas": REPLICAS},
        {"Replicas": REPLICAS, "MultiRegionConsistency": "EVENTUAL"},
        {"Replicas": REPLICAS, "MultiRegionConsistency": "STRONG"},
    ],
    ids=["by default", "eventual", "strong"],
)
async def test_replication_is_refused_with_the_reason(
    url: str, monkeypatch: pytest.MonkeyPatch, described: dict[str, Any]
) -> None:
    describe_as(monkeypatch, **described)
    with pytest.raises(InvalidSetting, match="'messages' replicates to other regions") as refusal:
        async with connect(url):
            pass
    assert "miss acknowledged rows" in str(refusal.value)
    assert "use a table in one region" in str(refusal.value)


async def test_a_table_of_one_region_is_taken(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    describe_as(monkeypatch, Replicas=[])
    async with connect(url) as hs:
        await hs.log.append("conv", b"hello")


async def test_a_table_of_somebody_else_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe_as(monkeypatch, KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}])
    with pytest.raises(InvalidSetting, match="other keys than Heatsink's"):
        async with connect(url):
            pass
