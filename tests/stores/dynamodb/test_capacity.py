"""What a write really cost is heat, and whose limit it met is told apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from heatsink import Heatsink, Retries, connect
from heatsink.clock import SystemClock
from heatsink.dynamo.server import running_engine
from heatsink.dynamo.settings import EngineSettings
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse


@asynccontextmanager
async def client(units: int | None = None, **limits: float) -> AsyncIterator[Heatsink]:
    clock = SystemClock()
    async with running_engine(EngineSettings(port=0, **limits), clock) as endpoint:  # type: ignore[arg-type]
        await make_table(parse("messages", {"endpoint": endpoint}), clock, units)
        url, patient = f"dynamodb://messages?endpoint={endpoint}", Retries(deadline_s=30)
        async with connect(url, retries=patient, coordinate=False) as hs:
            yield hs


async def test_what_weighs_beside_the_body_is_counted() -> None:
    async with client() as hs:
        await hs.log.append("small", b"x" * 100)
        await hs.log.append("just under a kilobyte", b"x" * 1_020)
        entries = hs._tracker.roll().entries
    assert entries["small"][1] == 1
    assert entries["just under a kilobyte"][1] == 2


async def test_a_throttled_partition_is_heat() -> None:
    async with client(write_limit=5.0, burst_s=1.0) as hs:
        for n in range(12):
            await hs.log.append("hot", b"%d" % n)
        assert hs._tracker.roll().entries["hot"][4] > 0
        assert (await hs.explain("hot")).table_refusal is None


async def test_a_throttled_table_is_not_and_explain_says_so() -> None:
    async with client(units=3, write_limit=1e6, burst_s=1.0) as hs:
        for n in range(12):
            await hs.log.append(f"key {n}", b"")
        explained = await hs.explain("key 1")
        assert all(entry[4] == 0 for entry in hs._tracker.roll().entries.values())
    assert "more buckets do not help" in str(explained)
